"""What models cost here: the built-in table, and what the operator's file says instead or besides. Pure.

[claude-fable-5-2]  # as sessions name it; a dated name is its model's
input = 8.0         # US dollars for a million tokens
output = 40.0
cache_write = 10.0  # one that lives for five minutes
cache_read = 0.2
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.harness.model_profiles import MODEL_PROFILES, SMALL, Context, Price, Profile, dollars
from services.harness.usage import Usage

CLASSES = ("input", "output", "cache_write", "cache_read")
MAX_DOLLARS = 1_000_000.0  # for a million tokens: more is a slip of the pen


class PricesError(Exception):
    """The file is wrong. Its text has a line for each problem: key, value, what was expected."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of models by name."""

    profiles: Mapping[str, Profile] = field(default_factory=lambda: MODEL_PROFILES)

    def profile_of(self, model: str) -> Profile | None:
        """Returns a model's profile, or None. A dated name is its model's; a later version is not."""
        if model in self.profiles:
            return self.profiles[model]
        name, _, date = model.rpartition("-")
        return self.profiles.get(name) if len(date) == 8 and date.isdigit() else None

    def context_of(self, model: str) -> Context:
        """Returns how a model deals with its context window; one that is not known counts as small."""
        profile = self.profile_of(model)
        return profile.context if profile else SMALL

    def cost_micros(self, model: str, usage: Usage) -> int | None:
        """Returns what one answer costs, in millionths of a US dollar; None when the model's price is not known."""
        profile = self.profile_of(model)
        if profile is None:
            return None
        if profile.long_price is not None and usage.prompt > profile.long_prompt:
            return profile.long_price.of(usage)
        return profile.price.of(usage)


BUILT_IN = Prices()


def with_prices(text: str, prices: Prices = BUILT_IN) -> Prices:
    """Reads TOML with a table for each model, which takes the place of what was known of it. Raises PricesError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise PricesError(f"is no TOML: {problem}") from None
    problems: list[str] = []
    added = {model: _price(model, table, problems) for model, table in tables.items()}
    if problems:
        raise PricesError("\n".join(problems))
    profiles = dict(prices.profiles)
    for model, price in added.items():
        known = prices.profile_of(model)
        profiles[model] = Profile(price, known.context) if known else Profile(price)
    return Prices(profiles)


def _price(model: str, table: Any, problems: list[str]) -> Price:
    if not isinstance(table, dict):
        problems.append(f"{model} = {table!r}: expected a table [{model}] with {', '.join(CLASSES)}")
        return dollars(0, 0, 0, 0)
    problems += [f"{model}.{key}: expected one of {', '.join(CLASSES)}" for key in table if key not in CLASSES]
    for each in CLASSES:
        if each not in table:
            problems.append(f"{model}.{each} is missing: US dollars for a million tokens")
        elif not _is_price(table[each]):
            problems.append(f"{model}.{each} = {table[each]!r}: expected US dollars from 0 to {MAX_DOLLARS:.0f}")
    sums = [float(table[each]) if _is_price(table.get(each)) else 0.0 for each in CLASSES]
    return dollars(*sums)


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DOLLARS

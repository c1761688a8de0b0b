"""What is special about each model: the only place that names one. Pure.

Prices are those of the model's maker in November 2026. An answer's cost is written into the log when it comes, so a
later price changes no session that was.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.harness.usage import Usage

TOKENS_PRICED = 1_000_000  # the number of tokens that a price is for


@dataclass(frozen=True, slots=True)
class Price:
    """Millionths of a US dollar for a million tokens of each class; cache writes that live for five minutes."""

    input: int
    output: int
    cache_creation: int
    cache_read: int

    def of(self, usage: Usage) -> int:
        """Returns the cost of tokens, in millionths of a US dollar, rounded up."""
        cost = (
            usage.input * self.input
            + usage.output * self.output
            + usage.cache_creation * self.cache_creation
            + usage.cache_read * self.cache_read
        )
        return -(-cost // TOKENS_PRICED)


@dataclass(frozen=True, slots=True)
class Profile:
    """One model. `long_price` holds for each request whose prompt has over `long_prompt` tokens, 0 for none."""

    price: Price
    long_prompt: int = 0
    long_price: Price | None = None


def _dollars(input: float, output: float, cache_creation: float, cache_read: float) -> Price:
    return Price(*(round(dollars * 1_000_000) for dollars in (input, output, cache_creation, cache_read)))


MODEL_PROFILES: dict[str, Profile] = {
    "claude-fable-5-1": Profile(_dollars(10, 50, 12.50, 0.25)),
    "claude-mythos-5-1": Profile(_dollars(10, 50, 12.50, 0.25)),
    "claude-fable-5": Profile(_dollars(10, 50, 12.50, 1.00)),
    "claude-mythos-5": Profile(_dollars(10, 50, 12.50, 1.00)),
    "claude-opus-5-5": Profile(_dollars(4, 20, 5, 0.20)),
    "claude-opus-5": Profile(_dollars(5, 25, 6.25, 0.50)),
    "claude-opus-4-5": Profile(_dollars(5, 25, 6.25, 0.50)),
    "claude-opus-4-6": Profile(_dollars(5, 25, 6.25, 0.50)),
    "claude-opus-4-7": Profile(_dollars(5, 25, 6.25, 0.50)),
    "claude-opus-4-8": Profile(_dollars(5, 25, 6.25, 0.50)),
    "claude-sonnet-5-5": Profile(_dollars(2, 10, 2.50, 0.10)),
    "claude-sonnet-5": Profile(_dollars(2, 10, 2.50, 0.20)),
    "claude-sonnet-4-5": Profile(_dollars(3, 15, 3.75, 0.30)),
    "claude-sonnet-4-6": Profile(_dollars(3, 15, 3.75, 0.30)),
    "claude-haiku-5-5": Profile(_dollars(0.10, 0.50, 0.125, 0.01), 100_000, _dollars(0.50, 2.50, 0.625, 0.05)),
    "claude-haiku-4-5": Profile(_dollars(1, 5, 1.25, 0.10)),
}
DEAREST = Price(
    *(
        max(getattr(profile.price, tokens) for profile in MODEL_PROFILES.values())
        for tokens in ("input", "output", "cache_creation", "cache_read")
    )
)


def profile_of(model: str) -> Profile | None:
    """Returns a model's profile, or None when none is known. A dated name is its model's; a later version is not."""
    name, _, date = model.rpartition("-")
    return MODEL_PROFILES.get(name if len(date) == 8 and date.isdigit() else model)


def cost_micros(model: str, usage: Usage) -> int | None:
    """Returns what one answer costs, in millionths of a US dollar; None when the model's price is not known."""
    profile = profile_of(model)
    if profile is None:
        return None
    if profile.long_price is not None and usage.prompt > profile.long_prompt:
        return profile.long_price.of(usage)
    return profile.price.of(usage)

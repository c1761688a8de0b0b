"""What a session asks for of its context: the policy, a value read from the configuration's JSON. Pure.

    {"compaction": "on" | "reset" | "off" | {"mode": ..., "at": 0.75, "instructions": "..."},
     "ignore": false,
     "window": 200000,
     "trim": {"tool_results": {"above": 0.5, "keep": 5, "at_least": 0.05}, "thinking": {...}, "images": {...}},
     "api": {"edits": [{"type": "clear_tool_uses_20250919", ...}]}}

A size is a share of the window (a number up to 1) or a number of tokens. What is left out is the model's default.
docs/context.md explains every key.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, cast

from services.harness.model_profiles import BETAS, CLEAR_THINKING, SMALL, Context
from services.kit.errors import Invalid

MAX_INSTRUCTIONS = 10_000  # characters
MAX_TOKENS = 10_000_000  # of a size: more is a slip of the pen
KINDS = ("tool_results", "thinking", "images")
MODES = ("on", "reset", "off")
Mode = Literal["on", "reset", "off"]


@dataclass(frozen=True, slots=True)
class Trim:
    """Old parts of one kind are cut when a request has over `above` tokens: all but the newest `keep` of them.

    Only when that saves `at_least` tokens: each cut costs the cached prompt behind it.
    """

    above: int
    keep: int
    at_least: int


NO_TRIMS: Mapping[str, Trim] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Policy:
    """How the model's context is made. `at` is the number of tokens from which the conversation is summarised.

    `trims` is by kind of `KINDS`; `edits` and `betas` are for the API to do, `edits` as JSON text. `ignore` shows what
    was summarised before. `system_messages`: the model takes a system message behind what was said before.
    """

    window: int = SMALL.window
    mode: Mode = "on"
    at: int = int(SMALL.window * SMALL.compact_at)
    instructions: str = ""
    ignore: bool = False
    trims: Mapping[str, Trim] = field(default_factory=lambda: NO_TRIMS)
    edits: str = ""
    betas: tuple[str, ...] = ()
    system_messages: bool = False


DEFAULT = Policy()


@functools.lru_cache(maxsize=256)  # a session asks for each request
def policy_of(text: str, model: Context) -> Policy:
    """Reads a policy for a model. Raises Invalid (`CONFIG_INVALID`), which names the field."""
    document = _object(_parsed(text), "", ("compaction", "ignore", "window", "trim", "api"))
    window = _tokens(document.get("window", model.window), "window", 0)
    mode: Mode = "reset" if model.needs_reset else "on"
    at = int(window * model.compact_at)
    policy = Policy(window, mode, at, system_messages=model.system_messages)
    policy = _compaction(policy, document.get("compaction", {}))
    policy = replace(policy, ignore=_flag(document.get("ignore", False), "ignore"))
    trims = _object(document.get("trim", {}), "trim", KINDS)
    policy = replace(
        policy, trims={kind: _trim(trims[kind], f"trim.{kind}", window) for kind in KINDS if kind in trims}
    )
    return _api(policy, document.get("api", {}), model)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text or "{}", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _wrong("", "is no JSON") from None


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's


def _compaction(policy: Policy, value: Any) -> Policy:
    if isinstance(value, str):
        value = {"mode": value}
    given = _object(value, "compaction", ("mode", "at", "instructions"))
    mode, instructions = given.get("mode", policy.mode), given.get("instructions", "")
    if mode not in MODES:
        raise _wrong("compaction.mode", f"is {mode!r}; expected one of {', '.join(MODES)}")
    if not isinstance(instructions, str) or len(instructions) > MAX_INSTRUCTIONS:
        raise _wrong("compaction.instructions", f"is no text of at most {MAX_INSTRUCTIONS} characters")
    at = _tokens(given["at"], "compaction.at", policy.window) if "at" in given else policy.at
    return replace(policy, mode=cast("Mode", mode), at=at, instructions=instructions)


def _trim(value: Any, path: str, window: int) -> Trim:
    given = _object(value, path, ("above", "keep", "at_least"))
    keep = given.get("keep", 3)
    if not isinstance(keep, int) or isinstance(keep, bool) or not 1 <= keep <= 1_000:
        raise _wrong(f"{path}.keep", f"is {keep!r}; expected a whole number from 1 to 1,000")
    above = _tokens(given.get("above", 0.5), f"{path}.above", window)
    return Trim(above, keep, _tokens(given.get("at_least", 0.05), f"{path}.at_least", window))


def _api(policy: Policy, value: Any, model: Context) -> Policy:
    """Takes edits for the API to make. What they hold beside their type is the API's to judge."""
    edits = _object(value, "api", ("edits",)).get("edits", [])
    if not isinstance(edits, list):
        raise _wrong("api.edits", "is no list")
    needed: set[str] = set()
    for place, edit in enumerate(edits):
        kind = edit.get("type") if isinstance(edit, dict) else None
        path = f"api.edits[{place}].type"
        if kind not in BETAS:
            raise _wrong(path, f"is {kind!r}; expected one of {', '.join(BETAS)}")
        if kind not in model.edits:
            raise _wrong(path, f"is {kind}, which the API does not make for this session's model")
        if kind == CLEAR_THINKING and place:
            raise _wrong(path, f"is {kind}, which has to be the first one")
        needed.add(BETAS[kind])
    text = json.dumps(edits, separators=(",", ":"), ensure_ascii=False) if edits else ""
    return replace(policy, edits=text, betas=tuple(sorted(needed)))


def _tokens(value: Any, path: str, window: int) -> int:
    """Returns a size in tokens. Without a window only tokens are a size."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS:
        if window and value <= 1:
            return max(1, int(window * value))
        if value > 1 and value == int(value):
            return int(value)
    share = "a share of the window up to 1, or " if window else ""
    raise _wrong(path, f"is {value!r}; expected {share}a number of tokens from 2 to {MAX_TOKENS:,}")


def _flag(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(path, f"is {value!r}; expected true or false")
    return value


def _object(value: Any, path: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, f"is {str(value)[:60]!r}; expected an object with {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise _wrong(f"{path}.{key}" if path else key, f"is not known; expected one of {', '.join(keys)}")
    return value


def _wrong(path: str, problem: str) -> Invalid:
    field = f"context_policy_json.{path}" if path else "context_policy_json"
    return Invalid("CONFIG_INVALID", f"{field} {problem}", field=field)

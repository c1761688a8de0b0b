"""Rules of warm pools: what is kept, what is made, when to try again. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from services.sandbox.hand import Labels, Recipe

MAX_FREE_SECONDS = 3600.0  # an older one is replaced: its image may have been built anew under the same name
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0  # after a sandbox that could not be made
_ABOUT_OTHERS = ("pool", "description")  # a recipe that differs in these only makes the same sandboxes


def fingerprint(recipe: Recipe, runner: bytes) -> str:
    """Returns the same for recipes and runners that make the same sandboxes."""
    made_by = {key: value for key, value in asdict(recipe).items() if key not in _ABOUT_OTHERS}
    text = json.dumps([made_by, hashlib.sha256(runner).hexdigest()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Plan:
    """What to do with the free sandboxes that were found: those to keep, by fingerprint, and those to destroy."""

    keep: Mapping[str, tuple[str, ...]]
    drop: tuple[str, ...]


def plan(found: Iterable[Labels], sizes: Mapping[str, int], now: float) -> Plan:
    """Sorts out free sandboxes, oldest first. `sizes` are the pools' by fingerprint, `now` is in Unix seconds.

    Destroyed are those of no pool, those too many, and the oldest of a pool when it is too old: one at a time, so that
    a pool whose sandboxes are all of one age is never empty for it.
    """
    by_pool: dict[str, list[Labels]] = defaultdict(list)
    for labels in found:
        if labels.pool:
            by_pool[labels.pool].append(labels)
    keep: dict[str, tuple[str, ...]] = dict.fromkeys(sizes, ())
    drop: list[str] = []
    for pool, oldest_first in by_pool.items():
        excess = max(0, len(oldest_first) - sizes.get(pool, 0))
        if not excess and now - oldest_first[0].create_time > MAX_FREE_SECONDS:
            excess = 1
        ids = tuple(labels.sandbox_id for labels in oldest_first)
        drop += ids[:excess]
        if pool in sizes:
            keep[pool] = ids[excess:]
    return Plan(keep, tuple(drop))


def pause(failures: int) -> float:
    """Returns how many seconds to wait after so many failures in a row."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 30))

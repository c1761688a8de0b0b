"""The brain's speed: what a turn, a wake and a crash cost, each with its bound, side by side.

See `docs/brain-operations.md`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.brain.progress import told
from bench.brain.shown import Shown

PARTS = ("turn", "deltas", "wake", "many", "recovery", "peers")


async def measure(size: str, only: str) -> AsyncIterator[Any]:
    """Yields the figures, each part on a mesh of its own, and what each part took."""
    parts = [name for name in PARTS if name.startswith(only)]
    taken: dict[str, float] = {}
    for number, name in enumerate(parts, 1):
        told(f"brain: {name}, part {number} of {len(parts)}, {size} size")
        begun = time.monotonic()
        async for figure in importlib.import_module(f"bench.brain.{name}").measure(size):
            yield figure
        taken[name] = round(time.monotonic() - begun, 1)
        told(f"brain: {name} took {taken[name]} s")
    yield Shown("what each part took, in s", {**taken, "all": round(sum(taken.values()), 1)})

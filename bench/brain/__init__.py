"""The brain's speed: what a turn, a wake and a crash cost, each with its bound, side by side.

See `docs/brain-operations.md`.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any

PARTS = ("turn", "deltas", "wake", "many", "recovery", "peers")


async def measure(size: str, only: str) -> AsyncIterator[Any]:
    """Yields the figures, each part on a mesh of its own."""
    for name in PARTS:
        if name.startswith(only):
            async for figure in importlib.import_module(f"bench.brain.{name}").measure(size):
                yield figure

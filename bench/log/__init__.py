"""The log's speed: every figure of its issue with its bound, measured side by side. See `docs/log.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bench.figure import Figure, Unmeasured
from bench.log import appends
from bench.log.world import SickDiskError, start

PARTS = {"appends": appends.measure}


async def measure(size: str, only: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures, each part on a store of its own."""
    for name, part in PARTS.items():
        if not name.startswith(only):
            continue
        try:
            async with start() as made:
                async for figure in part(made, size):
                    yield figure
        except SickDiskError as sick:
            yield Unmeasured(name, str(sick), missing=False)

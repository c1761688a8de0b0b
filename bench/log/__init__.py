"""The log's speed: every figure of its issue with its bound, measured side by side. See `docs/log-operations.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from bench.figure import Figure, Unmeasured
from bench.log import appends, blobs, layouts, slices, stores
from bench.log.world import SickDiskError, start


async def _appends(size: str) -> AsyncIterator[Figure | Unmeasured]:
    async with start() as world:
        async for figure in appends.measure(world, size):
            yield figure


async def _slices(size: str) -> AsyncIterator[Figure | Unmeasured]:
    async with start() as world:
        async for figure in slices.measure(world, size):
            yield figure


async def _blobs(size: str) -> AsyncIterator[Figure | Unmeasured]:
    async with start() as world:
        async for figure in blobs.measure(world, size):
            yield figure


PARTS = {"appends": _appends, "slices": _slices, "blobs": _blobs, "stores": stores.measure}
MORE = {"layouts": layouts.measure}  # compared once, for ADR 10: only when asked for


async def measure(size: str, only: str) -> AsyncIterator[Any]:
    """Yields the figures, each part on a store of its own."""
    for name, part in (MORE if only in MORE else PARTS).items():
        if name.startswith(only):
            try:
                async for figure in part(size):
                    yield figure
            except SickDiskError as sick:
                yield Unmeasured(name, str(sick), missing=False)

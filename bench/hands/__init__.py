"""The hands' speed and cost: every figure of their issue with its bound, side by side. See `docs/hands.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from bench.hands import abuses, crowds, executes, provisions, remote, repositories

PARTS = {
    "executes": executes.measure,
    "cold": provisions.measure_cold,
    "claims": provisions.measure_claims,
    "repositories": repositories.measure,
    "crowds": crowds.measure,
    "abuses": abuses.measure,
    "remote": remote.measure,
}


async def measure(size: str, only: str) -> AsyncIterator[Any]:
    """Yields the figures, each part on a service of its own."""
    for name, part in PARTS.items():
        if name.startswith(only):
            async for figure in part(size):
                yield figure

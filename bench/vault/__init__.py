"""The vault: calls of MCP tools, reads of secrets, tokens of sessions, many sessions, their ends, a vault that is away.

One real mesh for all of it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from bench.figure import Figure
from bench.vault import away, calls, crowd, ends, reads, world

PARTS = {
    "calls": calls.measure,
    "reads": reads.measure,
    "crowd": crowd.measure,
    "ends": ends.measure,
    "away": away.measure,
}


async def measure(size: str, only: str) -> AsyncIterator[Figure]:
    """Yields the figures, of the parts whose name begins with `only`."""
    logging.getLogger("services").setLevel(logging.ERROR)  # a vault that is away is said again and again
    async with world.start() as started:
        for name, part in PARTS.items():
            if name.startswith(only):
                async for figure in part(started, size):
                    yield figure

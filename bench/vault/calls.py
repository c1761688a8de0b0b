"""Execute of an MCP tool through the vault proxy, beside the same call on a kept MCP session and an echo.

The demo's shop wants a token that only the vault has. Interleaved blocks, one call at a time.
"""

from __future__ import annotations

import statistics
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from bench.figure import Figure
from bench.hands.world import p50, timed
from bench.vault.world import ARGUMENTS, TOOL, World
from handmesh.demo.stage import Stage

CALLS = 40  # of a block
BLOCKS = {"ci": 6, "full": 20}
ALLOWED_MS = 2.0  # beside the direct call and the echo
BOUND = 1.0

Call = Callable[[], Awaitable[Any]]


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields the figure."""
    async with AsyncExitStack() as stack:
        grant = (await world.woken()).grant
        calls: dict[str, Call] = {
            "execute": lambda: world.execute(grant, f"toolu_{uuid.uuid4().hex}"),
            "direct": await _direct(world.stage, stack),
            "echo": world.echo.echoed,
        }
        rows: dict[str, list[float]] = {name: [] for name in calls}
        for block in range(BLOCKS[size] + 1):
            for name, call in calls.items():
                took = p50(await timed(call, CALLS))
                if block:  # the first one warms up
                    rows[name].append(took)
    allowed = [direct + echo + ALLOWED_MS for direct, echo in zip(rows["direct"], rows["echo"], strict=True)]
    ratios = tuple(took / most for took, most in zip(rows["execute"], allowed, strict=True))
    shown = {f"{name}_p50_ms": round(statistics.median(values), 3) for name, values in rows.items()}
    yield Figure(f"Execute of an MCP tool p50 : direct + echo + {ALLOWED_MS:g} ms", "ratio", ratios, BOUND, more=shown)


async def _direct(stage: Stage, stack: AsyncExitStack) -> Call:
    """Returns the same call on a session of the MCP library that stays open."""
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    http = await stack.enter_async_context(
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {stage.token}"}, timeout=30)
    )
    client = await stack.enter_async_context(Client(streamable_http_client(stage.server_url, http_client=http)))

    async def call() -> None:
        await client.call_tool(TOOL, ARGUMENTS)

    return call

"""A session that ends while its grant is in use: until the grant is dead, from the answer to `EndSession` on."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator

import grpc

from bench.figure import Figure
from bench.vault.world import World
from services.kit.channels import raised

TIMES = {"ci": 5, "full": 40}
DEAD_SECONDS = 1.0


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields how long calls with the grant of a session that has ended still work: asked again and again, until not."""
    took = []
    for _ in range(TIMES[size]):
        woken = await world.woken()
        await world.execute(woken.grant, "toolu_before")  # so that the grant, the credential and a connection are kept
        await world.stage.client.session(woken.session_id).end("over")
        took.append(await _dead(world, woken.grant))
    more = {"p50_s": round(statistics.median(took), 4), "sessions": len(took)}
    yield Figure(
        "a grant after its session's end, until it is dead, at most", "s", (max(took),), DEAD_SECONDS, more=more
    )


async def _dead(world: World, grant: str) -> float:
    begun, number = time.perf_counter(), 0
    while True:
        try:
            number += 1
            await world.execute(grant, f"toolu_{number}")
        except grpc.aio.AioRpcError as error:
            if raised(error).reason != "GRANT_INVALID":
                raise
            return time.perf_counter() - begun

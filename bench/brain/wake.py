"""How long a sleeping session of 1,000 events takes from a client's message to the model being asked.

By a harness that has had it lately, and by one that has just been started and has to read all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from bench.brain.model import Plan
from bench.brain.progress import telling
from bench.brain.shown import Shown
from bench.brain.watch import Watch
from bench.brain.world import World, p50, percentile, start
from bench.figure import Figure

EVENTS = 1_000
WAKES = {"ci": 8, "full": 100}
BOUND_MS = 40.0
SLEEP_SECONDS = 0.05  # until its harness has let go of it
STARTS = {"ci": 4, "full": 20}  # of a harness, for one wake each
WARM_UP = 5


async def measure(size: str) -> AsyncIterator[Any]:
    """Wakes a long session and a short one in turns."""
    async with start(linger="0") as world:
        long, short = await world.session(), await world.session()
        for _ in telling("turns of the session that is to be long", range(EVENTS)):
            await world.turn(long, Plan("true"))
            if long.events()[-1].position >= EVENTS:
                break
        for _ in range(WARM_UP):
            await world.turn(short, Plan())
        taken: dict[str, list[float]] = {"long": [], "short": []}
        for number in telling("wakes", range(WAKES[size])):
            for name, watch in (("long", long), ("short", short)):
                await asyncio.sleep(SLEEP_SECONDS)
                sent = await world.turn(watch, Plan(number=number * 2 + (name == "long")))
                taken[name].append((await _asked(world, number * 2 + (name == "long")) - sent) / 1e6)
        cold = [await _cold(world, long, short, 10_000 + number) for number in range(STARTS[size])]
        events = long.events()[-1].position
    shown = {"events_at_last": events, "p95_ms": round(percentile(taken["long"], 95), 2)}
    yield Figure("wake of a session of 1,000 events to the request", "ms", tuple(taken["long"]), BOUND_MS, more=shown)
    yield Figure("wake of it by a harness that has to read all of it", "ms", tuple(cold), BOUND_MS)
    yield Shown("wake of a session of some events to the request", {"p50_ms": round(p50(taken["short"]), 2)})


async def _cold(world: World, long: Watch, short: Watch, number: int) -> float:
    """Wakes a long session by a new harness, which has had turns of another one, in ms."""
    await world.mesh.restart("harness")
    for _ in range(WARM_UP):
        await world.turn(short, Plan())
    await asyncio.sleep(SLEEP_SECONDS)
    sent = await world.turn(long, Plan(number=number))
    return (await _asked(world, number) - sent) / 1e6


async def _asked(world: World, number: int) -> int:
    """Returns when the model was asked last by a plan of this number."""
    return next(asked for found, asked, _ in reversed(await world.seen()) if found == number)

"""Many sessions: in flight at once, started at once, and asleep; and what a harness needs for them.

In flight: sessions start by chance (Poisson, 5 a second), and the model streams 5 pieces a second to each for 20 s, so
that about a hundred are at it. Each session is new, and watched before it has its message, as by whoever wants to see
each piece. It is counted from the message on; what it takes with the making is shown beside. The SDK alone has the same
load, at the same moments, before or after.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from bench.brain.model import Plan
from bench.brain.progress import telling
from bench.brain.shown import Shown
from bench.brain.watch import Watch
from bench.brain.world import World, cpu_seconds, first_piece, p50, percentile, resident, start
from bench.figure import Figure

STARTS_PER_SECOND, EVERY_MS = 5.0, 200.0
PIECES = {"ci": 10, "full": 100}
IN_FLIGHT = {"ci": 20, "full": 250}  # sessions that are started; those that start while it fills up do not count
FILLING = {"ci": 5, "full": 80}
LATER_MS = 50.0
BURST = {"ci": 20, "full": 100}
ASLEEP = {"ci": 20, "full": 1_000}
IDLE_SECONDS = {"ci": 1.0, "full": 10.0}
SETTLE_SECONDS = {"ci": 0.5, "full": 5.0}
AT_ONCE = 8
FRESH_MB, USED_MB = 60.0, 130.0
ASLEEP_MB, ASLEEP_CPU = 1.0, 0.5  # what a harness may need more, with sessions asleep: MB, and % of a CPU
CAPACITY = 300


class Taken(NamedTuple):
    """After how many ms the first piece of an answer came: from the message on, and with the session's making."""

    message: float
    whole: float


Start = Callable[[Plan], Awaitable[Taken]]


async def measure(size: str) -> AsyncIterator[Any]:
    """Measures on one mesh: asleep first, since these need a harness that has done nothing."""
    async with start(capacity=CAPACITY) as world:
        async for figure in _asleep(world, size):
            yield figure
        await world.turn(await world.session(), Plan("true"))
        await first_piece(world.sdk, Plan())
        async for figure in _in_flight(world, size):
            yield figure
        for name, begin in _arms(world).items():
            taken = [
                each.message for each in await asyncio.gather(*(begin(Plan(pieces=3)) for _ in range(BURST[size])))
            ]
            values = {"p50_ms": round(p50(taken), 1), "p95_ms": round(percentile(taken, 95), 1)}
            yield Shown(f"first delta in a burst of {BURST[size]}, {name}", values)
        used = resident(world.mesh.pids["harness"])
        yield Figure("harness after its turns, resident", "MB", (used,), USED_MB)


def _arms(world: World) -> dict[str, Start]:
    """Returns what starts an answer and returns after how many ms its first piece came, and ends with the answer."""

    async def ours(plan: Plan) -> Taken:
        begun = time.monotonic_ns()
        watch = Watch(await world.client.create_session())
        try:
            await watch.until("session_started", 0, 120)  # it follows: whoever comes later may miss the first piece
            sent = time.monotonic_ns()
            await watch.session.send(plan.text)
            came, _ = await watch.first_text(0, 120)
            await watch.until("turn_ended", 0, 120)
        finally:
            await watch.close()
        return Taken((came - sent) / 1e6, (came - begun) / 1e6)

    async def direct(plan: Plan) -> Taken:
        called, _, came = await first_piece(world.sdk, plan)
        return Taken((came - called) / 1e6, (came - called) / 1e6)

    return {"mesh": ours, "SDK alone": direct}


async def _in_flight(world: World, size: str) -> AsyncIterator[Any]:
    arms = _arms(world)
    every = {name: await _poisson(begin, size) for name, begin in arms.items()}
    taken = {name: [each.message for each in of] for name, of in every.items()}
    ours, theirs = (taken[name] for name in arms)
    later = _resampled(ours, theirs)
    shown = {f"{name}_p{of}_ms": round(percentile(values, of), 1) for name, values in taken.items() for of in (50, 95)}
    shown["mesh_with_its_making_p95_ms"] = round(percentile([each.whole for each in every["mesh"]], 95), 1)
    shown["at_once"] = round(STARTS_PER_SECOND * PIECES[size] * EVERY_MS / 1000)
    yield Figure("first delta with sessions in flight, p95, later than the SDK", "ms", later, LATER_MS, more=shown)


async def _poisson(begin: Start, size: str) -> list[Taken]:
    """Starts answers by chance, the same for all arms."""
    dice = random.Random(5)
    tasks = []
    async with asyncio.TaskGroup() as group:
        due = time.monotonic()
        for _ in telling("sessions in flight", range(IN_FLIGHT[size])):
            due += dice.expovariate(STARTS_PER_SECOND)
            await asyncio.sleep(due - time.monotonic())
            tasks.append(group.create_task(begin(Plan(pieces=PIECES[size], every_ms=EVERY_MS))))
    return [task.result() for task in tasks[FILLING[size] :]]


def _resampled(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Returns the difference of the p95 as often as samples are drawn again: its spread."""
    dice = random.Random(0)
    return tuple(
        percentile(dice.choices(ours, k=len(ours)), 95) - percentile(dice.choices(theirs, k=len(theirs)), 95)
        for _ in range(200)
    )


async def _asleep(world: World, size: str) -> AsyncIterator[Any]:
    before = await _idle(world, size)
    yield Figure("harness before its first turn, resident", "MB", (before[0],), FRESH_MB)
    left = telling("sessions to fall asleep", range(ASLEEP[size]))

    async def make() -> None:
        for _ in left:
            watch = Watch(await world.client.create_session(None, Plan().text))
            await watch.until("turn_ended", 0, 120)
            await watch.close()

    await asyncio.gather(*(make() for _ in range(AT_ONCE)))
    turned = resident(world.mesh.pids["harness"])
    after = await _idle(world, size)
    more = {"sessions": ASLEEP[size], "before_mb": round(before[0], 1), "after_its_turns_mb": round(turned, 1)}
    yield Figure("harness, more resident with sessions asleep", "MB", (after[0] - before[0],), ASLEEP_MB, more=more)
    used = {"before_percent": round(before[1], 2), "after_percent": round(after[1], 2)}
    yield Figure("harness, more of a CPU with sessions asleep", "%", (after[1] - before[1],), ASLEEP_CPU, more=used)


async def _idle(world: World, size: str) -> tuple[float, float]:
    """Starts the harness anew. Returns its memory in MB and its use of a CPU in %, while nobody wants anything."""
    await world.mesh.restart("harness")
    await asyncio.sleep(SETTLE_SECONDS[size])
    pid = world.mesh.pids["harness"]
    used = cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS[size])
    return resident(pid), (cpu_seconds(pid) - used) / IDLE_SECONDS[size] * 100

"""A call is asked for again while its hand is away, from when that is: it may have run for hours before."""

from __future__ import annotations

import asyncio
from typing import Any

from services.harness.turn.outage import TRY_AGAIN_SECONDS, Outage
from services.kit.errors import Conflict, Gone, Unavailable
from tests.harness.test_loop import LS, Told, make, outcomes, run
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, ports, said


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_an_outage_begins_with_its_first_failure() -> None:
    """Tries in a row count from the first of them; one that was at work for longer is none of them."""
    clock = Clock()
    outage = Outage(clock)
    clock.time += 10_000  # it ran
    assert not outage.too_long()
    for _ in range(2):
        outage.ask()
        clock.time += TRY_AGAIN_SECONDS / 2 - 1
        assert not outage.too_long()
    outage.ask()
    clock.time += 2
    assert outage.too_long()
    outage.ask()
    clock.time += TRY_AGAIN_SECONDS + 1  # it was there again, and the call ran on
    assert not outage.too_long()


async def test_a_call_that_ran_for_long_outlives_its_hands_service() -> None:
    """The service is restarted while a tool has run for an hour: the call is attached to again, and has its result."""
    clock, log, hands = Clock(), MemoryLog(), MemoryHands()
    execute, attempts = hands.execute, 0

    async def cut(*args: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            clock.time += 3_600
        if attempts < 3:
            raise Unavailable("SANDBOX_UNAVAILABLE", "restarted")
        return await execute(*args)

    hands.execute = cut  # type: ignore[method-assign]
    world = ports(ScriptedModel(said(t1=LS), said()), hands)
    object.__setattr__(world, "now", clock)
    await run(log, world)
    assert (attempts, outcomes(log)) == (3, ["OK"])


async def test_what_has_answered_is_not_said_to_be_away() -> None:
    """A service that comes back with bad news has come back: nothing holds the run up while the model is asked."""
    log, hands, told = MemoryLog(), MemoryHands(), Told()
    answers: list[Any] = [Unavailable("SANDBOX_UNAVAILABLE", "away"), Gone("SANDBOX_GONE", "gone")]
    emit, refusals = log.emit, [Unavailable("SESSION_UNAVAILABLE", "away"), Conflict("POSITION_CONFLICT", "later")]
    seen: list[Any] = []

    async def execute(*args: Any) -> Any:
        raise answers.pop(0)

    async def look() -> None:
        seen.append(told.condition.hindrances)

    async def emitted(events: Any, epoch: int, expected: int | None) -> Any:
        if seen and expected is not None and refusals:
            problem = refusals.pop(0)
            if not refusals:
                assert told.condition.hindrances
                problem.metadata["last_position"] = str(len(log.events))
                asyncio.get_running_loop().call_soon(look_soon)
            raise problem
        return await emit(events, epoch, expected)

    def look_soon() -> None:
        seen.append(told.condition.hindrances)

    hands.execute = execute  # type: ignore[method-assign]
    log.emit = emitted  # type: ignore[method-assign]
    await make().run(log, ports(ScriptedModel(said(t1=LS), look, said()), hands), "test", told)
    assert (outcomes(log), seen) == (["GONE"], [[], []])
    assert not answers and not refusals

"""A call is asked for again while its hand is away, from when that is: it may have run for hours before."""

from __future__ import annotations

from typing import Any

from services.harness.turn.outage import TRY_AGAIN_SECONDS, Outage
from services.kit.errors import Unavailable
from tests.harness.test_loop import LS, outcomes, run
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

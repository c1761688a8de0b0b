"""A session is kept for a moment after its turn: what is said to it then is answered under the same epoch."""

from __future__ import annotations

import asyncio

from handmesh.session.v1.event_pb2 import ConfigChanged, Event, HarnessWoke, InterruptRequested, SessionEnded
from services.harness.core import Config, Configured, Ended, Fact, Message, Replied, Started, Woke
from services.harness.loops.messages import make
from services.harness.ports import LINGERING, Ports
from services.harness.runs import Runs
from services.harness.turn import core
from services.harness.turn.state import fold_all
from services.harness.usage import Budgets
from tests.harness.test_loop import ends
from tests.support.harness_ports import SESSION, MemoryLog, ScriptedModel, Told, message, ports, said

LONG = 60.0


class Patient(Told):
    """Lets a session be kept for so long, and hears when it is."""

    def __init__(self, seconds: float = LONG) -> None:
        super().__init__()
        self.seconds = seconds
        self.kept = asyncio.Event()

    def step(self, name: str) -> None:
        if name == LINGERING:
            self.kept.set()

    def linger(self) -> float:
        return self.seconds


async def begin(log: MemoryLog, world: Ports, told: Patient) -> asyncio.Task[float | None]:
    """Lets a harness work until it keeps the session."""
    running = asyncio.create_task(make().run(log, world, "test", told))
    await told.kept.wait()
    told.kept.clear()
    return running


async def stop(running: asyncio.Task[float | None]) -> None:
    running.cancel()
    await asyncio.wait({running})


async def test_a_message_in_time_begins_a_turn_of_the_same_harness() -> None:
    """Nobody wakes, and the model is told what it would be told by a harness that did."""
    log, model, told = MemoryLog(), ScriptedModel(said("one"), said("two")), Patient()
    running = await begin(log, ports(model), told)
    await log.add(message("more", "m2"))
    await told.kept.wait()
    assert log.kinds().count("harness_woke") == 1
    assert (ends(log), told.epochs) == (["DONE", "DONE"], [3])
    assert [it["role"] for it in model.requests[-1]["messages"]] == ["user", "assistant", "user"]
    await stop(running)


async def test_what_calls_for_nothing_leaves_it_kept() -> None:
    """An interrupt without a turn, another configuration: no event of a harness comes of it."""
    log, told = MemoryLog(), Patient()
    running = await begin(log, ports(ScriptedModel(said())), told)
    before = len(log.events)
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()))
    await told.kept.wait()
    assert len(log.events) == before + 1
    await stop(running)


async def test_it_is_left_after_its_time() -> None:
    """The run ends by itself, and says that nothing calls for a harness."""
    assert await make().run(MemoryLog(), ports(ScriptedModel(said())), "test", Patient(0.01)) is None


async def test_a_session_that_has_ended_is_left_at_once() -> None:
    """So is one that another harness took, and one that is another type's from now on."""
    other = ConfigChanged()
    other.config.harness = "other"
    for event in (
        Event(event_id="end", session_ended=SessionEnded()),
        Event(event_id="woke", harness_woke=HarnessWoke(harness="messages")),
        Event(event_id="config", config_changed=other),
    ):
        log = MemoryLog()
        running = await begin(log, ports(ScriptedModel(said())), Patient())
        await log.add(event)
        async with asyncio.timeout(10):
            assert await running is None


def test_time_does_not_count_while_a_session_is_kept() -> None:
    """A turn's time begins with its message where no harness woke for it."""
    facts: list[Fact] = [
        Started(1, Config(budgets=Budgets(max_wall_time=20.0))),
        Message(2, "[]", time=90.0),
        Woke(3, time=100.0),
        Replied(4, "[]", "end_turn", 3, time=110.0),
        Ended(5, "DONE", 4, time=110.0),
        Message(6, "[]", time=500.0),
        Message(7, "[]", time=503.0),
        Replied(8, "[]", "end_turn", 7, time=504.0),
    ]
    state = fold_all(facts)
    assert state.used.worked == 14.0
    assert core.is_answered(fold_all([*facts, Ended(9, "DONE", 8, time=504.0)]))
    assert not core.is_answered(fold_all([*facts, Configured(9, Config(), time=505.0)]))


async def test_half_of_the_room_is_for_those_who_need_it() -> None:
    """With more sessions than that nothing is kept; a kept one counts as at rest."""
    asked: list[float] = []
    gate = asyncio.Event()

    class Asking:
        description = ""

        async def run(self, log, ports, instance, progress):  # type: ignore[no-untyped-def]
            progress.step(LINGERING)
            await gate.wait()
            asked.append(progress.linger())

    world = ports(ScriptedModel())
    runs = Runs({"messages": Asking()}, lambda id, newest: MemoryLog(), world, "test", 4, LONG)
    working = [asyncio.create_task(runs.work(f"{SESSION[:-1]}{number}", "messages")) for number in range(3)]
    while len(runs.list()) < 3:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not runs.is_working(f"{SESSION[:-1]}0")
    gate.set()
    await asyncio.gather(*working)
    assert asked == [0.0, LONG, LONG]

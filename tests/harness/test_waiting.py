"""A call that waits for another session lets its own rest: nobody holds it until something comes, or its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from handmesh.session.v1.config_pb2 import CustomTool, SessionConfig
from handmesh.session.v1.event_pb2 import ChildRested, Event, InterruptRequested
from services.harness.core import Config, ToolResult, ToolSpec
from services.harness.loops.messages import make
from services.harness.mesh.tool import Asked, NotYet
from services.harness.ports import Ports
from services.harness.turn.loop import LINGER_SECONDS
from tests.harness.test_loop import ends, outcomes
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, Told, ports, said

CONFIG = SessionConfig(mesh_tools=["wait"])
RESTED = Event(event_id="r", child_rested=ChildRested(child_session_id="sess_" + "1" * 26, kind="turn_ended"))
FAR = 1_000.0


class Waiter:
    """A tool that waits until `came`, or so many seconds more at each time that it is asked."""

    def __init__(self, world: Ports | None = None, seconds: float = FAR) -> None:
        self.seconds = seconds
        self.came = False
        self.since: list[float] = []
        self.world = world

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        return [ToolSpec("wait", "Waits.", '{"type": "object"}')]

    async def execute(self, asked: Asked) -> ToolResult:
        assert asked.may_rest and self.world is not None
        self.since.append(asked.since)
        if self.came:
            return ToolResult("it came", "OK")
        raise NotYet(self.world.now() + self.seconds)


def world(waiter: Waiter, *answers: object, hands: MemoryHands | None = None) -> Ports:
    """Ports with a model that waits once, and then says something."""
    made = ports(ScriptedModel(said(t1=("wait", {})), said(), *answers), hands or MemoryHands(), mesh=[waiter])  # type: ignore[arg-type]
    return timed(waiter, made)


def timed(waiter: Waiter, made: Ports) -> Ports:
    """Lets a world have the real time, and the tool its clock."""
    object.__setattr__(made, "now", time.time)
    waiter.world = made
    return made


async def run(log: MemoryLog, there: Ports) -> float | None:
    return await make().run(log, there, "test", Told())


async def test_a_session_rests_while_a_call_waits() -> None:
    """The run ends with the time at which the call is asked again; its call stays open in the log."""
    log, waiter = MemoryLog(CONFIG), Waiter()
    there = world(waiter)
    until = await run(log, there)
    assert until is not None and until > there.now() + FAR / 2
    assert (log.kinds().count("tool_started"), outcomes(log), ends(log)) == (1, [], [])


async def test_what_comes_brings_the_answer() -> None:
    """The next run sends the same call again, which is as old as it was, and the turn goes on."""
    log, waiter = MemoryLog(CONFIG), Waiter()
    there = world(waiter)
    await run(log, there)
    waiter.came = True
    await log.add(RESTED)
    assert await run(log, there) is None
    assert (outcomes(log), ends(log)) == (["OK"], ["DONE"])
    assert log.kinds().count("tool_started") == 1
    started = next(event for event in log.events if event.HasField("tool_started"))
    assert waiter.since[-1] == started.emit_time.ToNanoseconds() / 1e9


async def test_a_short_wait_is_spent_here() -> None:
    """What comes soon is answered by the same harness: being woken again costs more."""
    log, waiter = MemoryLog(CONFIG), Waiter(seconds=LINGER_SECONDS / 2)
    running = asyncio.create_task(run(log, world(waiter)))
    while len(waiter.since) < 1:
        await asyncio.sleep(0)
    waiter.came = True
    await log.add(RESTED)
    await running
    assert (log.kinds().count("harness_woke"), outcomes(log), len(waiter.since)) == (1, ["OK"], 2)


async def test_its_time_brings_it_back() -> None:
    """Without a word in the log, too."""
    log, waiter = MemoryLog(CONFIG), Waiter(seconds=0.02)
    running = asyncio.create_task(run(log, world(waiter)))
    while len(waiter.since) < 3:
        await asyncio.sleep(0.005)
    waiter.came = True
    await running
    assert (log.kinds().count("harness_woke"), outcomes(log)) == (1, ["OK"])


async def test_other_calls_go_on_meanwhile() -> None:
    """A call that waits holds up no other; when all the others are done, the session rests."""
    log, waiter = MemoryLog(CONFIG), Waiter()
    there = ports(ScriptedModel(said(t1=("wait", {}), t2=("bash", {"command": "x"}))), MemoryHands(), mesh=[waiter])
    assert await run(log, timed(waiter, there)) is not None
    assert [it.tool_use_id for it in log.only("tool_finished")] == ["t2"]


async def test_an_interrupt_ends_what_rests() -> None:
    """The call is settled as interrupted, and is not asked again."""
    log, waiter = MemoryLog(CONFIG), Waiter()
    there = world(waiter)
    await run(log, there)
    asked = len(waiter.since)
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()))
    await run(log, there)
    assert (outcomes(log), ends(log), len(waiter.since)) == (["INTERRUPTED"], ["INTERRUPTED"], asked)


async def test_a_clients_time_is_kept_beside_a_wait() -> None:
    """A call that a client is to answer ends at its own time, however long another one waits for a session."""
    custom = CustomTool(name="ask", description="Asks.", input_schema_json='{"type": "object"}')
    custom.timeout.FromSeconds(60)
    log, waiter = MemoryLog(SessionConfig(mesh_tools=["wait"], custom_tools=[custom])), Waiter()
    there = ports(ScriptedModel(said(t1=("wait", {}), t2=("ask", {}))), MemoryHands(), mesh=[waiter])
    until = await run(log, timed(waiter, there))
    assert until is not None and until < there.now() + 61

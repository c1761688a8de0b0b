"""A small mesh in memory, in which harness types are checked: one session's log, a hand, a model, and harnesses that
die.

Every call that a harness makes to its ports goes through its `Life`, which counts them. A life can end before any
call begins and after any has been done, as a process ends that is killed: nothing that it does reaches the world then.
What hands have begun goes on. Longer than a module should be: a small stand-in for each part of the mesh.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import (
    ConfigChanged,
    Event,
    HarnessWoke,
    InterruptRequested,
    MessageReceived,
    TokenUsage,
)
from handmesh.session.v1.session_pb2 import Preview
from services.harness.adapters.memory import SESSION, MemoryLog
from services.harness.condition import Condition
from services.harness.core import Fact, ToolResult, ToolSpec
from services.harness.ports import Answer, Appended, ModelFailure, Page, Ports, Sandbox, Standing, Toolbox
from services.kit.errors import Conflict, Gone

T = TypeVar("T")


def message(text: str, event_id: str) -> Event:
    """Makes a client's message."""
    content = json.dumps([{"type": "text", "text": text}])
    return Event(event_id=event_id, message_received=MessageReceived(content_json=content))


def interrupt() -> Event:
    """Makes a client's interrupt."""
    return Event(event_id="interrupt", interrupt_requested=InterruptRequested())


class Life:
    """One harness process. `ends_at` counts the moments around its calls: there it is struck."""

    def __init__(self, ends_at: int = 0, strike: Callable[[], Awaitable[None]] | None = None) -> None:
        self.moments = 0
        self.condition = Condition(lambda: 0.0)
        self.over = False
        self.epochs: list[int] = []
        self.steps: list[str] = []
        self.run: asyncio.Task[float | None] | None = None
        self._ends_at = ends_at
        self._strike = strike

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Does what the harness asks for, if it lives to ask, and tells it if it lives to hear."""
        await self._moment()
        done = await work()
        await self._moment()
        return done

    async def _moment(self) -> None:
        await asyncio.sleep(0)
        if not self.over:
            self.moments += 1
            if self.moments != self._ends_at:
                return
            if self._strike is not None:
                await self._strike()
                return
            self.over = True
            if self.run is not None:
                self.run.cancel()
        raise asyncio.CancelledError

    def took_up(self, epoch: int) -> None:
        """Is told the epoch (see `Progress`)."""
        self.epochs.append(epoch)

    def step(self, name: str) -> None:
        """Is told a step."""
        self.steps.append(name)

    def calls(self, calls: Sequence[tuple[str, str, str]]) -> None:
        """Is told which calls are at work."""

    def linger(self) -> float:
        """Keeps no session."""
        return 0.0


Turns = Callable[[int, int], tuple[str, Sequence[str]] | ModelFailure]
"""What the model says: from the number of answers that the log has, and how often it was asked for this one, a text
and the tools that it calls."""


@dataclass
class World:
    """What outlives harnesses. `asked` has, for each question to the model, how many answers the log had by then."""

    log: MemoryLog
    turns: Turns
    asked: list[int] = field(default_factory=list)
    hold_model: asyncio.Event | None = None  # answers wait for it
    hold_tools: asyncio.Event | None = None
    model_asked: asyncio.Event = field(default_factory=asyncio.Event)
    tool_running: asyncio.Event = field(default_factory=asyncio.Event)
    both_running: asyncio.Event = field(default_factory=asyncio.Event)
    ran: list[str] = field(default_factory=list)  # executions, each time
    unannounced: list[str] = field(default_factory=list)  # those of which the log did not know
    cancelled: set[str] = field(default_factory=set)
    executions: dict[str, asyncio.Task[ToolResult]] = field(default_factory=dict)

    def ports(self, life: Life) -> Ports:
        """Returns the ports of a harness. Each look at the clock takes 1,000 s, so that retries come at once."""
        clock = itertools.count(1_000_000_000, 1_000)
        return Ports(
            RehearsedModel(self, life), RehearsedHands(self, life), RehearsedServers(), lambda: next(clock), lambda: 0.0
        )

    async def close(self) -> None:
        """Ends what hands still do."""
        for task in self.executions.values():
            task.cancel()
        if self.executions:
            await asyncio.wait(self.executions.values())


class RehearsedLog:
    """The log as one life sees it (see `SessionLog`)."""

    session_id = SESSION

    def __init__(self, log: MemoryLog, life: Life) -> None:
        self.newest: Sequence[Fact] = ()
        self._log = log
        self._life = life
        self.put_blob = log.put_blob
        self.get_blob = log.get_blob
        self.read = log.read
        self.watched = log.watched
        self.drop, self.flush, self.close = log.drop, log.flush, log.close

    async def follow(self, start_position: int) -> AsyncIterator[Page]:
        async for page in self._log.follow(start_position):
            if self._life.over:
                raise asyncio.CancelledError
            yield page

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        return await self._life.call(lambda: self._log.emit(events, epoch, expected_position))

    def previews(self, epoch: int) -> RehearsedLog:
        return self

    def show(self, preview: Preview) -> None:
        if not self._life.over:
            self._log.show(preview)


@dataclass
class RehearsedModel:
    """A model that answers as the world says (see `Model`)."""

    world: World
    life: Life

    async def newest(self) -> str:
        return "rehearsed"

    async def ask(self, body: bytes, show: Callable[[int, str, str], None], betas: Sequence[str] = ()) -> Answer:
        json.loads(body)
        return await self.life.call(lambda: self._answer(show))

    async def _answer(self, show: Callable[[int, str, str], None]) -> Answer:
        world, told = self.world, len(self.world.log.only("model_replied"))
        world.asked.append(told)
        show(0, "text", "...")
        world.model_asked.set()
        if world.hold_model is not None:
            await world.hold_model.wait()
        times = world.asked.count(told)
        said = world.turns(told, times)
        if isinstance(said, ModelFailure):
            raise said
        text, tools = said
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        for number, name in enumerate(tools):  # asked again, a model gives other ids
            call = {"type": "tool_use", "id": f"call-{told}-{times}-{number}", "name": name, "input": {"command": "x"}}
            content.append(call)
        stop = "tool_use" if tools else "end_turn"
        return Answer(json.dumps(content), stop, TokenUsage(input_tokens=10, output_tokens=1), "msg", "rehearsed")


@dataclass
class RehearsedHands:
    """Sandboxes that run each execution once, if the log knows of it (see `Hands`)."""

    world: World
    life: Life

    async def tools(self, spec: bytes, under: Standing, sandbox_id: str = "") -> Toolbox:
        return await self.life.call(self._tools)

    async def _tools(self) -> Toolbox:
        return Toolbox([ToolSpec("bash", "Runs a command.", '{"type":"object"}')], "default")

    async def provision(self, session_id: str, hand: str, spec: bytes, generation: int, under: Standing) -> Sandbox:
        async def provision() -> Sandbox:
            self._check(under)
            return Sandbox(f"sbx_{hand}_{generation}", "default")

        return await self.life.call(provision)

    async def execute(self, sandbox_id: str, tool: str, input: str, execution_id: str, under: Standing) -> ToolResult:
        async def execute() -> ToolResult:
            self._check(under)
            return await asyncio.shield(self._begun(execution_id))

        return await self.life.call(execute)

    def _begun(self, id: str) -> asyncio.Task[ToolResult]:
        world = self.world
        if id not in world.executions:
            if id not in {it.tool_use_id for it in world.log.only("tool_started")}:
                world.unannounced.append(id)
            world.executions[id] = asyncio.create_task(self._run(id), name=f"execution {id}")
        return world.executions[id]

    async def _run(self, id: str) -> ToolResult:
        if id in self.world.cancelled:
            return ToolResult("", "INTERRUPTED")
        self.world.ran.append(id)
        self.world.tool_running.set()
        if len(self.world.ran) == 2:
            self.world.both_running.set()
        try:
            if self.world.hold_tools is not None:
                await self.world.hold_tools.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return ToolResult("half", "INTERRUPTED")
        return ToolResult("whole")

    async def follow(self, sandbox_id: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        yield "whole", 5

    async def extend(self, sandbox_id: str, path: str, piece: bytes, offset: int, under: Standing) -> None:
        self._check(under)

    async def end_of(self, sandbox_id: str, path: str, most: int) -> tuple[int, bytes]:
        return 0, b""

    async def cancel(self, sandbox_id: str, execution_id: str, under: Standing) -> None:
        async def cancel() -> None:
            self._check(under)
            self.world.cancelled.add(execution_id)
            if execution_id in self.world.executions:
                self.world.executions[execution_id].cancel()

        await self.life.call(cancel)

    def _check(self, under: Standing) -> None:
        if under.epoch < self.world.log.epoch:
            raise Conflict("EPOCH_STALE", "a newer harness has the session")


class RehearsedServers:
    """No MCP server (see `Servers`)."""

    async def tools(self, grant: str) -> tuple[list[ToolSpec], list[tuple[str, str, str, str]]]:
        return [], []

    async def execute(
        self, grant: str, tool: str, input: str, execution_id: str, attach_only: bool, offered: int
    ) -> ToolResult:
        raise Gone("EXECUTION_UNKNOWN", "there is no server")

    async def follow(self, grant: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        yield "", 0

    async def cancel(self, grant: str, execution_id: str) -> None:
        """Has nothing to cancel."""


def moved(config: SessionConfig, event_id: str) -> Event:
    """Makes the event that gives the session another configuration."""
    return Event(event_id=event_id, config_changed=ConfigChanged(config=config))


def stranger() -> Event:
    """Makes the event by which another harness takes the session up."""
    return Event(event_id="stranger", harness_woke=HarnessWoke(harness="stranger", instance="stranger"))

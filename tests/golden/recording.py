"""What a scenario plays in: a log in memory, harnesses that come and go, and what clients say."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import (
    ConfigChanged,
    CustomToolAnswered,
    Event,
    InterruptRequested,
    ToolConfirmed,
)
from services.harness.loops.messages import make
from services.harness.ports import Appended, Pictures
from tests.support.harness_ports import (
    MemoryHands,
    MemoryLog,
    MemoryServers,
    ScriptedModel,
    Step,
    Told,
    message,
    ports,
)

SCHEMA = '{"type":"object"}'
BASH = ("bash", {"command": "ls"})
START = 1_764_000_000.0  # Unix time, seconds


class Recording(MemoryLog):
    """A log whose clock goes on by a second with each append."""

    def __init__(self, config: SessionConfig | None = None, first: str = "hello") -> None:
        self.clock = START
        super().__init__(config, first)
        self.hands = MemoryHands()
        self.servers = MemoryServers()
        self.pictures: Pictures | None = None
        self._names = itertools.count(1)
        self._blows: dict[int, Callable[[], Awaitable[None]]] = {}
        self._appends = itertools.count(1)

    def _append(self, events: Sequence[Event], epoch: int) -> int:
        self.clock = max(self.clock, START) + 1.0
        return super()._append(events, epoch)

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        appended = await super().emit(events, epoch, expected_position)
        if events[0].HasField("retry_scheduled"):
            self.clock += 100.0  # so that a short wait is over at once
        blow = self._blows.pop(next(self._appends), None)
        if blow is not None:
            await blow()
        return appended

    def after(self, append: int, blow: Callable[[], Awaitable[None]]) -> None:
        """Has something happen right after the harnesses' n-th append, before its harness learns that it is there."""
        self._blows[append] = blow

    async def run(self, *steps: Step) -> None:
        """Lets a harness work until it rests."""
        world = replace(ports(ScriptedModel(*steps), self.hands, self.servers), now=lambda: self.clock)
        await make().run(self, replace(world, pictures=self.pictures), "golden", Told())

    async def killed(self, append: int, *steps: Step) -> None:
        """Lets a harness work until it is killed right after its n-th append."""
        working = asyncio.create_task(self.run(*steps))

        async def die() -> None:
            working.cancel()
            await asyncio.Event().wait()

        self.after(append, die)
        await asyncio.wait({working})
        assert working.cancelled(), "the turn did not come so far"

    # --- what clients say ---
    def _name(self) -> str:
        return f"c{next(self._names)}"

    async def say(self, text: str, *steps: Step) -> None:
        """A message, and a harness at work on it when there are steps."""
        await self.add(message(text, self._name()))
        if steps:
            await self.run(*steps)

    async def interrupt(self) -> None:
        """Asks the agent to stop."""
        await self.add(Event(event_id=self._name(), interrupt_requested=InterruptRequested()))

    async def decide(self, call: str, allowed: bool, why: str = "") -> None:
        """A person's decision about a call that was asked about."""
        (asked,) = (it for it in self.only("tool_confirmation_requested") if it.tool_use_id == call)
        verdict = ToolConfirmed(tool_use_id=call, allowed=allowed, message=why, call_hash=asked.call_hash)
        await self.add(Event(event_id=self._name(), tool_confirmed=verdict))

    async def answer(self, call: str, text: str) -> None:
        """A client's answer to a call of its own tool."""
        result = ToolResult(output=text, outcome=ToolOutcome.TOOL_OUTCOME_OK)
        answered = CustomToolAnswered(tool_use_id=call, result=result)
        await self.add(Event(event_id=self._name(), custom_tool_answered=answered))

    async def configure(self, config: SessionConfig) -> None:
        """Another configuration."""
        await self.add(Event(event_id=self._name(), config_changed=ConfigChanged(config=config)))


Scenario = Callable[[], Coroutine[Any, Any, Recording]]

"""The question to the model is prepared while the session is being taken up, and asked once that has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from handmesh.session.v1.event_pb2 import Event, HarnessWoke
from services.harness.loops.messages import make
from services.harness.ports import Appended
from services.kit.errors import Conflict
from tests.support.harness_ports import MemoryLog, ScriptedModel, Told, message, ports, said


class SlowLog(MemoryLog):
    """A log in which the second HarnessWoke is appended only when it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        if events[0].HasField("harness_woke"):
            await self.gate.wait()
        return await super().emit(events, epoch, expected_position)


async def prepared(log: SlowLog, *steps: Any) -> tuple[asyncio.Task[Any], ScriptedModel]:
    """Lets a session have a turn, then begins another one, whose HarnessWoke does not come."""
    await make().run(log, ports(ScriptedModel(said())), "first", Told())
    log.gate.clear()
    await log.add(message("again", "m2"))
    model = ScriptedModel(*steps)
    running = asyncio.create_task(make().run(log, ports(model), "second", Told()))
    for _ in range(100):
        await asyncio.sleep(0)
    return running, model


async def test_the_model_is_asked_once_the_session_is_ours() -> None:
    """Before HarnessWoke is in the log nothing is asked, appended or shown; then the reply comes under its epoch."""
    log = SlowLog()
    running, model = await prepared(log, said("late"))
    assert (log.kinds()[-1], log.shown, model.requests) == ("message_received", [], [])
    log.gate.set()
    await running
    woke = len(log.events) - log.kinds()[::-1].index("harness_woke")
    assert log.kinds()[woke:] == ["model_replied", "turn_ended"]
    assert log.events[woke].event_id.startswith(f"reply-{woke}-")


async def test_a_session_that_another_took_is_not_asked_about() -> None:
    """Another harness was faster: no question, and no word in the log or on a screen."""
    log = SlowLog()
    running, model = await prepared(log, said("early"))
    await log.add(Event(event_id="other", harness_woke=HarnessWoke(harness="messages")))
    log.gate.set()
    with pytest.raises(Conflict):
        await running
    assert log.kinds()[-1] == "harness_woke"
    assert (log.shown, model.requests) == ([], [])

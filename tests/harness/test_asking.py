"""The model is asked while the session is being taken up; what it answers is shown and said once that has happened."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from handmesh.session.v1.event_pb2 import Event, HarnessWoke
from services.harness.loops.messages import make
from services.harness.ports import Appended, ModelFailure
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


async def streaming() -> None:
    """Comes between two pieces of an answer."""
    await asyncio.sleep(0)


async def test_an_answer_is_said_once_the_session_is_ours() -> None:
    """Before HarnessWoke is in the log the model may answer, and nothing is appended or shown; then both, in order."""
    log = SlowLog()
    running, model = await prepared(log, streaming, said("early"))
    assert len(model.requests) == 1
    assert (log.kinds()[-1], log.shown) == ("message_received", [])
    log.gate.set()
    await running
    woke = len(log.events) - log.kinds()[::-1].index("harness_woke")
    assert log.kinds()[woke:] == ["model_replied", "turn_ended"]
    assert log.events[woke].event_id.startswith(f"reply-{woke}-")


async def test_pieces_that_came_early_are_shown_once_the_session_is_ours() -> None:
    """In order, under the id that the reply will have, though the answer goes on."""
    log, end = SlowLog(), asyncio.Event()
    running, _ = await prepared(log, streaming, end.wait, said("whole"))
    assert log.shown == []
    log.gate.set()
    while len(log.shown) < 2:
        await asyncio.sleep(0)
    end.set()
    await running
    reply = next(event for event in reversed(log.events) if event.HasField("model_replied"))
    assert [(it.event_id, it.offset, it.text) for it in log.shown] == [
        (reply.event_id, 0, "par"),
        (reply.event_id, 3, "par"),
    ]


async def test_a_failure_that_came_early_is_said_once_the_session_is_ours() -> None:
    """Under the epoch of the harness that took the session."""
    log = SlowLog()
    running, _ = await prepared(log, ModelFailure("MODEL_OVERLOADED", "too much to do", retryable=True), said())
    assert log.kinds()[-1] == "message_received"
    log.gate.set()
    await running
    woke = len(log.events) - log.kinds()[::-1].index("harness_woke")
    assert log.kinds()[woke:] == ["retry_scheduled", "model_replied", "turn_ended"]
    assert {event.epoch for event in log.events[woke:]} == {woke}


async def test_a_session_that_another_took_is_left_without_a_word() -> None:
    """Another harness was faster: the question is cut off, and nothing is in the log or on a screen."""
    log = SlowLog()
    running, _ = await prepared(log, streaming, asyncio.Event().wait, said("early"))
    await log.add(Event(event_id="other", harness_woke=HarnessWoke(harness="messages")))
    log.gate.set()
    with pytest.raises(Conflict):
        await running
    assert log.kinds()[-1] == "harness_woke"
    assert log.shown == []

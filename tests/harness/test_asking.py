"""The model is asked while the session is being taken up, and nothing of it counts before that has happened."""

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


async def asked_again(log: SlowLog, *steps: Any) -> asyncio.Task[Any]:
    """Lets a session have a turn, then begins another; its model answers at once, and HarnessWoke does not come."""
    await make().run(log, ports(ScriptedModel(said())), "first", Told())
    log.gate.clear()
    await log.add(message("again", "m2"))
    model = ScriptedModel(*steps)
    running = asyncio.create_task(make().run(log, ports(model), "second", Told()))
    while not model.requests:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    return running


@pytest.mark.parametrize("step", [said("early"), ModelFailure("MODEL_OVERLOADED", "busy", retryable=True)])
async def test_an_answer_waits_until_the_session_is_ours(step: Any) -> None:
    """It comes before HarnessWoke is in the log: nothing is appended or shown till then, and all of it afterwards."""
    log = SlowLog()

    async def piece() -> None:
        pass

    running = await asked_again(log, piece, step, said("late"))
    assert (log.kinds()[-1], log.shown) == ("message_received", [])
    log.gate.set()
    await running
    woke = len(log.events) - log.kinds()[::-1].index("harness_woke")
    assert log.kinds()[woke] in ("model_replied", "retry_scheduled")
    assert log.kinds()[-1] == "turn_ended"
    assert all(event.epoch == woke for event in log.events[woke:])
    assert all(event.event_id.startswith(f"reply-{woke}-") for event in log.events if event.position == woke + 1) or (
        log.kinds()[woke] == "retry_scheduled"
    )


async def test_an_answer_of_a_session_that_another_took_is_nothing() -> None:
    """Another harness was faster: the question is stopped, and no word of it is in the log or on a screen."""
    log = SlowLog()
    running = await asked_again(log, said("early"))
    await log.add(Event(event_id="other", harness_woke=HarnessWoke(harness="messages")))
    log.gate.set()
    with pytest.raises(Conflict):
        await running
    assert log.kinds()[-1] == "harness_woke"
    assert log.shown == []

"""The review type: three questions in a fixed order, each answered once, whoever asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from handmesh.session.v1.config_pb2 import SessionConfig
from services.harness.loops.review import STAGES, make
from tests.support.harness_ports import MemoryLog, ScriptedModel, Told, message, ports, said


def log(text: str = "Teh text.") -> MemoryLog:
    """A review session with a text."""
    return MemoryLog(SessionConfig(harness="review", system="Be kind.", max_output_tokens=100), text)


async def run(session: MemoryLog, model: ScriptedModel) -> None:
    await make().run(session, ports(model), "test", Told())


def stages(model: ScriptedModel) -> list[int]:
    """Says which stage each request was for."""
    return [next(at for at, stage in enumerate(STAGES) if stage in request["system"]) for request in model.requests]


def told(request: Mapping[str, Any]) -> str:
    return str(request["messages"][0]["content"])


async def test_each_stage_is_told_what_came_before() -> None:
    """The text goes to all three, and to each the answers of those before it; the turn ends with the third."""
    session, model = log(), ScriptedModel(said("a typo"), said("it is real"), said("Teh -> The"))
    await run(session, model)
    assert session.kinds()[2:] == ["harness_woke", *["model_replied"] * 3, "turn_ended"]
    assert stages(model) == [0, 1, 2]
    assert [told(request).count("Teh text.") for request in model.requests] == [1, 1, 1]
    assert "a typo" not in told(model.requests[0]) and "a typo" in told(model.requests[1])
    assert told(model.requests[2]).index("a typo") < told(model.requests[2]).index("it is real")
    assert {request["max_tokens"] for request in model.requests} == {100}
    assert all(request["system"].startswith("Be kind.") for request in model.requests)


async def test_another_process_goes_on_at_the_stage_that_is_due() -> None:
    """After a death between two answers only what has no answer is asked."""
    session = log()
    never = asyncio.Event()
    first = asyncio.create_task(run(session, ScriptedModel(said("a typo"), never.wait)))
    while "model_replied" not in session.kinds():
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    model = ScriptedModel(said("it is real"), said("Teh -> The"))
    await run(session, model)
    assert stages(model) == [1, 2] and session.kinds().count("model_replied") == 3


async def test_a_message_in_between_begins_the_review_anew() -> None:
    """What was answered before it came is not about it."""
    session = log()

    async def more() -> None:
        await session.add(message("And this.", "m2"))

    model = ScriptedModel(said("a typo"), more, said("late"), *[said(f"answer {number}") for number in range(3)])
    await run(session, model)
    assert stages(model) == [0, 1, 0, 1, 2]
    assert "And this." in told(model.requests[2]) and "a typo" not in told(model.requests[2])


async def test_a_refusal_ends_the_review() -> None:
    """A stage that the model refuses, or that is cut off, is not followed by another one."""
    for reason, end in (("refusal", "REFUSED"), ("max_tokens", "LIMIT")):
        session, model = log(), ScriptedModel(said("a typo"), said("no", stop_reason=reason))
        await run(session, model)
        assert stages(model) == [0, 1]
        assert f"TURN_END_REASON_{end}" in str(session.only("turn_ended")[0])

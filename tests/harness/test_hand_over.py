"""The tool by which a session gives a hand away: once, whatever becomes of the harness; what is wrong is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import SessionConfig
from services.harness.core import Config, ToolResult
from services.harness.mesh.hands import HandOvers, Known
from services.harness.mesh.tool import Asked
from services.harness.ports import Standing
from services.kit.errors import Conflict, Denied, ServiceError, Unavailable
from tests.harness.test_loop import ends, outcomes, run
from tests.support.harness_ports import SESSION, MemoryLog, ScriptedModel, ports, said

OTHER = "sess_" + "9" * 26
BOX = "sbx_" + "b" * 26


class Giving:
    """Both services in memory: one hand, `box`."""

    def __init__(self, parent: str = "") -> None:
        self.hand = Known(BOX, SESSION, "box", "")
        self.parent = parent
        self.given = 0
        self.refusal: ServiceError | None = None

    async def hands_of(self, session_id: str) -> Sequence[Known]:
        return [self.hand] if self.hand.session_id == session_id else []

    async def parent_of(self, session_id: str) -> str:
        return self.parent

    async def give(self, sandbox_id: str, to_session_id: str, to_hand: str, under: Standing) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert sandbox_id == BOX
        self.given += 1
        self.hand = replace(self.hand, session_id=to_session_id, hand=to_hand, previous_session_id=SESSION)


async def asked(giving: Giving, **given: Any) -> ToolResult:
    call = Asked(MemoryLog(), Config(), Standing(3, "grant"), "hand_over", given, "t1")
    return await HandOvers(giving).execute(call)


async def test_a_hand_is_given_once_however_often_it_is_asked() -> None:
    """The next harness asks again with the same call: the hand is there already, and the answer is the same."""
    giving = Giving()
    first = await asked(giving, hand="box", session=OTHER, name="tool")
    assert first == ToolResult(json.dumps({"session": OTHER, "hand": "tool"}))
    assert (await asked(giving, hand="box", session=OTHER, name="tool"), giving.given) == (first, 1)


async def test_the_parent_is_named_by_a_word() -> None:
    """`parent`, when there is one."""
    giving = Giving(OTHER)
    assert (await asked(giving, hand="box", session="parent")).outcome == "OK"
    assert (giving.hand.session_id, giving.hand.hand) == (OTHER, "box")
    assert "by its id" in (await asked(Giving(), hand="box", session="parent")).output


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Denied("HAND_OVER_DENIED", "not to that one"), "The hand box was not handed over: not to that one."),
        (Conflict("GENERATION_CONFLICT", "x"), "The hand box is on its way to somebody else."),
    ],
)
async def test_what_the_mesh_refuses_is_told(refusal: ServiceError, said: str) -> None:
    """In words, as the tool's own error."""
    giving = Giving()
    giving.refusal = refusal
    assert await asked(giving, hand="box", session=OTHER) == ToolResult(said, "TOOL_ERROR")
    assert (await asked(Giving(), hand="bench", session=OTHER)).outcome == "TOOL_ERROR"


@pytest.mark.parametrize("problem", [Conflict("EPOCH_STALE", "x"), Unavailable("SESSION_UNAVAILABLE", "x")])
async def test_what_is_no_answer_is_raised(problem: ServiceError) -> None:
    """Another harness owns the session, or a part is away: nothing is said of the call."""
    giving = Giving()
    giving.refusal = problem
    with pytest.raises(type(problem)):
        await asked(giving, hand="box", session=OTHER)


async def test_only_a_session_that_asks_for_it_has_the_tool() -> None:
    """By `mesh_tools`; then a turn can use it like any other."""
    for names, tools in (((), []), (("hand_over",), ["hand_over"])):
        giving = Giving()
        log = MemoryLog(SessionConfig(no_hands=True, mesh_tools=names))
        call = {"hand": "box", "session": OTHER}
        model = ScriptedModel(said(t1=("hand_over", call)), said())
        await run(log, replace(ports(model), mesh=(HandOvers(giving),)))
        assert [tool["name"] for tool in model.requests[0].get("tools", ())] == tools
        assert (outcomes(log), ends(log), giving.given) == (["OK"] if tools else ["TOOL_ERROR"], ["DONE"], len(tools))

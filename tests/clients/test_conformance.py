"""Clients in every language that is built here do what a client must; and the comparison finds what is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from clients.conformance.checks import CHECKS, Check, refused
from clients.conformance.ground import Ground, ground
from clients.conformance.languages import LANGUAGES, Language
from clients.conformance.log import line_of, misfits, story
from handmesh.session.v1.event_pb2 import CustomToolAnswered, Event, HarnessWoke, ModelReplied

BUILT = [language for language in LANGUAGES if language.is_built and not language.missing]

meshed = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.vault, pytest.mark.bwrap, pytest.mark.clients]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """The mesh that clients are tried on."""
    async with ground(tmp_path_factory.mktemp("mesh")) as running:
        yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", [pytest.param(check, id=check.says, marks=meshed) for check in CHECKS])
async def test_clients(mesh: Ground, check: Check) -> None:
    """Every client that is built passes the check, side by side with the others."""
    wrong = await check.find(mesh, BUILT)
    assert {language.name: problem for language, problem in wrong.items() if problem} == {}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", [pytest.param("false", marks=meshed), pytest.param("yes", marks=meshed)])
async def test_a_program_that_does_nothing_fails(mesh: Ground, case: str) -> None:
    """One that ends at once, and one that says something else, fail the checks."""
    nothing = Language("python", tools=(), test=(), program=(case,), built="converse.py")
    wrong = await refused(mesh, [nothing])
    assert wrong[nothing]


def test_a_line_holds_what_is_essential() -> None:
    """The SDK's events are told in the words of the programs."""
    answered = CustomToolAnswered(tool_use_id="toolu_1")
    answered.result.output, answered.result.outcome = "fine", 1
    assert line_of(Event(position=3, custom_tool_answered=answered)) == {
        "event": "custom_tool_answered",
        "position": 3,
        "tool_use_id": "toolu_1",
        "outcome": "OK",
        "output": "fine",
    }
    assert line_of(Event(position=4, harness_woke=HarnessWoke(harness="messages"))) == {
        "event": "harness_woke",
        "position": 4,
    }


def test_stories_are_alike_but_for_their_ids() -> None:
    """Ids and positions do not count, nor how JSON is spelled; what was said does."""

    def told(call: str, content: str, position: int) -> list[dict[str, object]]:
        return [
            {"event": "harness_woke", "position": 1},
            {"event": "model_replied", "position": position, "content": content.replace("CALL", call)},
            {"event": "tool_started", "position": position + 1, "tool_use_id": call},
        ]

    first = story(told("toolu_a", '[{"id": "CALL", "name": "x"}]', 2))
    assert first == story(told("toolu_b", '[{"name":"x","id":"CALL"}]', 7))
    assert first != story(told("toolu_b", '[{"name":"y","id":"CALL"}]', 7))


def test_pieces_that_do_not_fit_are_found() -> None:
    """A piece has to be where it says in the reply that it was shown of."""
    reply = Event(event_id="r", model_replied=ModelReplied(content_json='[{"type": "text", "text": "one 📦 two"}]'))
    fits = {"event_id": "r", "block": 0, "offset": 4, "piece": "📦 t"}
    wrong = {**fits, "offset": 5}
    foreign = {**fits, "event_id": "other"}
    assert misfits([fits, wrong, foreign], [reply]) == [wrong, foreign]

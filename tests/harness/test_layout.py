"""What is said late stands behind what was said before, and what is cut goes in big steps: the API takes it all, and
reads the rest from its cache."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import ConfigChanged, Event
from services.harness.core import Config, Fact, Message, Offered, Replied, Started, ToolSpec
from services.harness.loops.messages.policy import policy_of
from services.harness.loops.messages.telling import CHANGED, NONE_LEFT
from services.harness.loops.messages.view import view
from services.harness.model_profiles import SMALL
from services.harness.turn.state import fold_all
from services.harness.usage import Usage
from tests.harness.api import talking
from tests.harness.test_prompt_cache import bare, last_mark, marks, script
from tests.harness.test_view import png, text

SYSTEM = "Be good. " * 600
NEW, OLD = "claude-opus-4-8", "claude-opus-4-7"


def config(system: str, model: str = NEW, policy: str = "") -> SessionConfig:
    return SessionConfig(system=system, model=model, context_policy_json=policy)


@pytest.mark.parametrize("model", [NEW, OLD])
async def test_another_system_prompt_is_said_where_it_comes(tmp_path: Path, model: str) -> None:
    """As a system message where the model takes those, else as marked text; what was said before stays as it was.

    When it is taken back that is said too. Nothing of the cache is lost.
    """
    async with talking(tmp_path, script(2), config=config(SYSTEM, model)) as (server, session):
        await session.run()
        for number, system in enumerate(("Be bad.", "Be bad.", "")):
            changed = ConfigChanged(config=config(system, model))
            await session.log.add(Event(event_id=f"c{number}", config_changed=changed))
            await session.say(f"turn {number}")
    requests = [request.body for request in server.requests if request.body is not None]
    assert {request.status for request in server.requests} == {200}
    assert all(body["system"][0]["text"] == SYSTEM for body in requests)
    assert all(marks(body) <= 4 for body in requests)
    for before, after in itertools.pairwise(requests):
        assert bare(after)[: last_mark(before)] == bare(before)
    late = [
        (it["role"], block["text"])
        for it in requests[-1]["messages"]
        for block in it["content"]
        if it["role"] != "assistant" and "instructions of this session" in block.get("text", "")
    ]
    said = [CHANGED + "Be bad.", NONE_LEFT]
    assert late == [("system", text) if model == NEW else ("user", f"[{text}]") for text in said]
    replies = session.log.only("model_replied")
    assert all(after.prefix_hash == before.prompt_hash for before, after in itertools.pairwise(replies))


async def test_a_system_prompt_of_a_turn_that_is_refused_still_holds(tmp_path: Path) -> None:
    """The turn is left out, the change is not."""
    rules: dict[str, Any] = {
        "turns": [
            {"when": {"user": "bad"}, "say": [{"text": "no"}], "stop_reason": "refusal", "times": 1},
            {"say": [{"text": "fine"}]},
        ]
    }
    async with talking(tmp_path, rules, config=config("one")) as (server, session):
        await session.run()
        await session.log.add(Event(event_id="c", config_changed=ConfigChanged(config=config("two"))))
        await session.say("bad")
        await session.say("good")
    body = server.requests[-1].body
    assert body is not None
    assert body["messages"][-1]["role"] == "system"
    assert body["messages"][-1]["content"][0]["text"] == CHANGED + "two"
    assert {request.status for request in server.requests} == {200}


def trimmed(kind: str, above: int, keep: int = 1, at_least: int = 2) -> str:
    return json.dumps({"trim": {kind: {"above": above, "keep": keep, "at_least": at_least}}})


async def _turns(tmp_path: Path, policy: str, turns: int = 12) -> list[dict[str, Any]]:
    long = {"default": {"repeat": True, "steps": [*script(2)["default"]["steps"]]}}
    async with talking(tmp_path, long, config=config("", policy=policy)) as (server, session):
        await session.run()
        for turn in range(turns):
            await session.say(f"turn {turn} " + "x" * 400)
        assert {request.status for request in server.requests} == {200}
        prefixes = [
            after.prefix_hash == before.prompt_hash
            for before, after in itertools.pairwise(session.log.only("model_replied"))
        ]
        assert prefixes.count(False) in range(1, 8)  # in steps, not with each request
    return [request.body for request in server.requests if request.body is not None]


def blocks(body: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [block for it in body["messages"] for block in it["content"] if block["type"] == kind]


async def test_old_results_are_left_out_and_that_is_said_in_their_place(tmp_path: Path) -> None:
    """With their position in the log; the newest stay."""
    body = (await _turns(tmp_path, trimmed("tool_results", 1_200, keep=2, at_least=60)))[-1]
    texts = [block["content"][0]["text"] for block in blocks(body, "tool_result")]
    assert texts[0].startswith("[This result, ") and " is at position " in texts[0]
    assert "bash ran" in texts[-1] and "bash ran" in texts[-2]


async def test_old_thinking_is_left_out_and_that_is_said_behind_it(tmp_path: Path) -> None:
    """In the message that follows, once for each reply."""
    body = (await _turns(tmp_path, trimmed("thinking", 1_200, at_least=60)))[-1]
    notes = [block for block in blocks(body, "text") if block["text"].startswith("[Your thinking before that")]
    assert len(notes) + len(blocks(body, "thinking")) == 13
    assert notes and blocks(body, "thinking")


@pytest.mark.parametrize("fetches", [True, False])
def test_old_images_are_left_out_and_where_they_are_is_said(fetches: bool) -> None:
    """And that a tool can fetch them, when the session has that tool."""
    facts: list[Fact] = [Started(0, Config(mesh_tools=("session_events",)))]
    if fetches:
        facts.append(Offered(0, "mesh", (ToolSpec("session_events", "Reads the log.", '{"type":"object"}'),)))
    for _ in range(3):
        facts.append(Message(0, json.dumps([png(), {"type": "text", "text": "look"}])))
        facts.append(Replied(0, text("I see"), "end_turn", len(facts), usage=Usage(2_000)))
    facts = [replace(fact, position=place) for place, fact in enumerate(facts, 1)]
    state = fold_all(facts)
    messages = view(state, "m", policy=policy_of(trimmed("images", 1_000, keep=2), SMALL)).request["messages"]
    first = [block.get("text") or block["type"] for it in messages for block in it["content"]][0::3]
    where = ": the tool session_events can fetch it" if fetches else ""
    position = next(fact.position for fact in facts if isinstance(fact, Message))
    cut = f"[An image is left out here to save room. It is at position {position} of the session's log{where}.]"
    assert first == [cut, "image", "image"]

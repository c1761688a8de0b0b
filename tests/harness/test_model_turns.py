"""Every way a turn can go, against the scripted model's strict API over HTTP: what it refuses fails here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome
from handmesh.scripted_model import ScriptedModel
from tests.harness.api import Session, talking
from tests.support.harness_ports import ScriptedModel as Answers
from tests.support.harness_ports import said

FINE: dict[str, Any] = {"say": [{"text": "fine"}]}
LS: dict[str, Any] = {"tool_use": {"name": "bash", "input": {"command": "ls"}}}


def script(*steps: dict[str, Any], **conversations: list[dict[str, Any]]) -> dict[str, Any]:
    """One conversation for `hello`, others by a word of the user's; anything else is answered with `fine`."""
    others = [{"when": {"user": word}, "steps": said} for word, said in conversations.items()]
    return {
        "conversations": [*others, {"when": {"user": "hello"}, "steps": list(steps)}],
        "default": {"repeat": True, "steps": [{"say": [{"text": "fine"}]}]},
    }


def statuses(server: ScriptedModel) -> set[int]:
    return {request.status for request in server.requests}


def outcomes(session: Session) -> list[str]:
    names = [ToolOutcome.Name(it.result.outcome) for it in session.log.only("tool_finished")]
    return [name.removeprefix("TOOL_OUTCOME_") for name in names]


ENDS = [
    ("end_turn", [{"text": "done"}], "DONE"),
    ("stop_sequence", [{"text": "done"}], "DONE"),
    ("max_tokens", [{"text": "half a"}], "LIMIT"),
    ("model_context_window_exceeded", [{"text": "half a"}], "LIMIT"),
    ("refusal", [{"text": "I ca"}], "REFUSED"),
    ("refusal", [], "REFUSED"),
    ("end_turn", [], "DONE"),
    ("end_turn", [{"block": {"type": "text", "text": ""}}], "DONE"),
    ("max_tokens", [{"thinking": "hm"}], "LIMIT"),
    ("max_tokens", [{"text": "so"}, {"thinking": "hm"}], "LIMIT"),
]


@pytest.mark.parametrize(("stop_reason", "say", "end"), ENDS)
async def test_a_turn_ends_as_what_it_is_and_the_next_one_is_accepted(
    tmp_path: Path, stop_reason: str, say: list[dict[str, Any]], end: str
) -> None:
    """Each stop reason is said; whatever the reply held, what is sent afterwards passes the strict API."""
    step: dict[str, Any] = {"say": say, "stop_reason": stop_reason}
    if stop_reason == "stop_sequence":
        step["stop_sequence"] = "END"
    async with talking(tmp_path, script(step, next=[FINE])) as (server, session):
        await session.run()
        await session.say("next")
        await session.say("and next")
    assert session.ends() == [end, "DONE", "DONE"]
    assert session.log.only("model_replied")[0].stop_reason == stop_reason
    assert statuses(server) == {200}
    assert session.log.only("model_replied")[0].stop_sequence == ("END" if stop_reason == "stop_sequence" else "")


async def test_a_stop_reason_that_is_not_known_is_an_end() -> None:
    """The reply is kept with the word as it came."""
    session = Session(Answers(said("so", "tired"), said("fine")))
    await session.run()
    await session.say("next")
    assert session.ends() == ["DONE", "DONE"]
    assert session.log.only("turn_ended")[0].stop_reason == "tired"


CUT = [
    {"tool_use": {"name": "bash", "input_json": '{"command": "rm -rf /tm'}},
    {"tool_use": {"name": "bash", "input_json": '["ls"]'}},
    {"tool_use": {"name": "bash", "input_json": '{"command": NaN}'}},
    {"tool_use": {"name": "bash", "input_json": '{"a":' * 80 + "1" + "}" * 80}},
]


@pytest.mark.parametrize("stop_reason", ["max_tokens", "tool_use", "end_turn", "model_context_window_exceeded"])
@pytest.mark.parametrize("call", CUT)
async def test_an_input_that_is_none_is_never_executed(tmp_path: Path, call: dict[str, Any], stop_reason: str) -> None:
    """Cut, no object, no JSON or too deep, whatever the stop reason: the model is told, with what it wrote in sight."""
    step = {"say": [{"text": "now"}, call], "stop_reason": stop_reason}
    async with talking(tmp_path, script(step, {"say": [{"text": "again"}]})) as (server, session):
        await session.run()
        await session.say("next")
    assert session.hands.ran == []
    assert outcomes(session) == ["TOOL_ERROR"]
    assert statuses(server) == {200}
    body = server.requests[1].body
    assert body is not None
    assert body["messages"][1]["content"][1]["input"] == {"INVALID_JSON": call["tool_use"]["input_json"]}


async def test_a_whole_input_of_a_cut_answer_is_not_executed_either(tmp_path: Path) -> None:
    """The answer broke off at its limit: its last call is not trusted, those before it are."""
    step = {"say": [LS, LS], "stop_reason": "max_tokens"}
    async with talking(tmp_path, script(step, {"say": [{"text": "so"}]})) as (server, session):
        await session.run()
    assert outcomes(session) == ["TOOL_ERROR", "OK"]
    assert statuses(server) == {200}


async def test_pause_turn_goes_on_each_time(tmp_path: Path) -> None:
    """Three in a row: the model is asked with what it said so far, and the turn ends once."""
    found = {"block": {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}}
    pauses = [{"say": [{"text": "on"}, found], "stop_reason": "pause_turn"} for _ in range(3)]
    async with talking(tmp_path, script(*pauses, {"say": [{"text": "done"}]})) as (server, session):
        await session.run()
    assert session.ends() == ["DONE"]
    assert len(session.log.only("model_replied")) == 4
    assert statuses(server) == {200}


async def test_a_refused_turn_is_left_out_of_what_follows(tmp_path: Path) -> None:
    """The question, its calls and the refusal stay in the log; the model sees that a turn is missing, and no more."""
    refusal = {"say": [{"text": "I ca"}, LS], "stop_reason": "refusal", "stop_details": {"category": "cyber"}}
    bad = [{"say": [{"text": "let me see"}, LS]}, refusal]
    async with talking(tmp_path, script({"say": [{"text": "hi"}]}, evil=bad)) as (server, session):
        await session.run()
        await session.say("do evil")
        await session.say("something else")
    assert session.ends() == ["DONE", "REFUSED", "DONE"]
    assert outcomes(session) == ["OK", "TOOL_ERROR"]
    assert len(session.hands.ran) == 1
    assert json.loads(session.log.only("model_replied")[2].stop_details_json)["category"] == "cyber"
    body = server.requests[-1].body
    assert body is not None
    texts = [block["text"] for said in body["messages"] for block in said["content"]]
    assert texts == ["hello", "hi", "[A turn is left out here: the model refused to answer it.]", "something else"]
    assert statuses(server) == {200}


async def test_a_long_answer_is_kept_whole_and_goes_back_whole(tmp_path: Path) -> None:
    """2 MB of text: a blob holds it, the next request has it, to the letter."""
    text = "é\u2028" + "x" * 2_000_000
    async with talking(tmp_path, script({"say": [{"text": text}], "chunk": 100_000})) as (server, session):
        await session.run()
        await session.say("next")
    assert len(session.log.only("model_replied")[0].content_json) < 1_000
    body = server.requests[-1].body
    assert body is not None
    assert body["messages"][1]["content"] == [{"type": "text", "text": text}]
    assert session.ends() == ["DONE", "DONE"]


async def test_thinking_goes_back_byte_for_byte(tmp_path: Path) -> None:
    """Odd Unicode in thinking, redacted thinking and blocks nobody knows: the very bytes, in their order."""
    odd = '\u2028\u202e\U0001f600\x7f\u00ad\ufeffé\\ " / \u0301'
    blocks = [
        {"thinking": odd},
        {"block": {"type": "redacted_thinking", "data": "EmwKAhgB+/=="}},
        {"text": odd},
        {"thinking": "then " + odd},
        {"tool_use": {"name": "bash", "input_json": '{"b" : 1e2, "a":2,"c":1.0,"d":"\\u00e9"}'}},
    ]
    async with talking(tmp_path, script({"say": blocks, "chunk": 3}, {"say": [{"text": "so"}]})) as (server, session):
        await session.run()
        await session.say("next")
    assert statuses(server) == {200}
    stored = session.log.only("model_replied")[0].content_json
    for request in list(server.requests)[1:]:
        assert request.body is not None
        assert json.dumps(request.body["messages"][1]["content"]) == json.dumps(json.loads(stored))
    assert '{"b" : 1e2, "a":2,"c":1.0,"d":"\\u00e9"}' in stored


def reply(*ids: str) -> list[dict[str, Any]]:
    blocks = [{"block": {"type": "tool_use", "id": id, "name": "bash", "input": {"command": "ls"}}} for id in ids]
    return [{"say": blocks, "stop_reason": "tool_use"}, {"say": [{"text": "so"}]}]


@pytest.mark.parametrize("ids", [("toolu_1", "toolu_1"), ("toolu_old",), ("no good",), ("x" * 200,)])
async def test_an_id_that_cannot_be_ends_the_turn_in_words(tmp_path: Path, ids: tuple[str, ...]) -> None:
    """Twice in one reply, or of an earlier reply, or no id: nothing runs, the log says why, and the session lives."""
    async with talking(tmp_path, script(*reply("toolu_old"), next=[FINE], again=reply(*ids))) as (server, session):
        await session.run()
        await session.say("again")
        await session.say("next")
    assert session.ends() == ["DONE", "FAILED", "DONE"]
    assert session.errors() == [("MODEL_ANSWER_INVALID", False)]
    assert len(session.hands.ran) == 1
    assert statuses(server) == {200}


async def test_ten_thousand_calls_in_one_reply_end_the_turn(tmp_path: Path) -> None:
    """What does not fit into the log is refused before it is tried."""
    blocks = [{"tool_use": {"name": "bash", "input": {"n": n}}} for n in range(10_000)]
    async with talking(tmp_path, script({"say": blocks})) as (_server, session):
        await session.run()
    assert session.errors() == [("MODEL_ANSWER_INVALID", False)]
    assert session.ends() == ["FAILED"]


async def test_an_unknown_tool_is_told_to_the_model(tmp_path: Path) -> None:
    """A name that nobody offered is a tool error, and the turn goes on."""
    call = {"tool_use": {"name": "no_such_tool", "input": {}}}
    async with talking(tmp_path, script({"say": [call]}, {"say": [{"text": "so"}]})) as (server, session):
        await session.run()
    assert (session.ends(), outcomes(session)) == (["DONE"], ["TOOL_ERROR"])
    assert statuses(server) == {200}


async def test_half_characters_never_reach_the_api(tmp_path: Path) -> None:
    """In a message, in a call's input, in a tool's blocks: a replacement is sent, and the session goes on."""
    call = {"tool_use": {"name": "bash", "input_json": '{"command": "\\ud83d"}'}}
    async with talking(tmp_path, script({"say": [call]}, {"say": [{"text": "so"}]})) as (server, session):
        await session.run()
        await session.say([{"type": "text", "text": "\ud800x"}])
    assert session.ends() == ["DONE", "DONE"]
    assert statuses(server) == {200}


async def test_a_request_that_the_api_refuses_is_said_again_plainly(tmp_path: Path) -> None:
    """An image that only the API finds out is bad: one plain retry, an answer, and the next turn is plain at once."""
    gif = {"type": "base64", "media_type": "image/gif", "data": "R0lGODlhAQABAAAA"}
    refused = {"error": {"status": 400, "message": "messages.0.content.0: Could not process image"}, "times": 1}
    rules = {"turns": [refused, {"say": [{"text": "fine"}]}]}
    async with talking(tmp_path, rules) as (server, session):
        session.log.events[1].message_received.content_json = json.dumps([{"type": "image", "source": gif}])
        await session.run()
        await session.say("next")
    assert session.retries() == ["MODEL_REQUEST_REFUSED"]
    assert session.ends() == ["DONE", "DONE"]
    assert [request.status for request in server.requests] == [400, 200, 200]
    for request in list(server.requests)[1:]:
        assert request.body is not None
        assert request.body["messages"][0]["content"][0]["text"] == "[image left out: not accepted]"


async def test_a_refusal_that_plain_words_do_not_mend_is_terminal_and_changes_nothing(tmp_path: Path) -> None:
    """Nothing to be said plainer: no retry; the error is terminal for this turn, and the next one is tried as it is."""
    rules = {"turns": [{"error": {"status": 400, "message": "no"}, "times": 1}, {"say": [{"text": "fine"}]}]}
    async with talking(tmp_path, rules) as (_server, session):
        await session.run()
        await session.say("next")
    assert session.errors() == [("MODEL_REQUEST_REFUSED", False)]
    assert session.retries() == []
    assert session.ends() == ["FAILED", "DONE"]


async def test_a_prompt_that_is_too_long_is_shortened(tmp_path: Path) -> None:
    """Of long texts head and tail are left; the log has all of them, and the session goes on in short."""
    refused = {"error": {"status": 400, "message": "prompt is too long: 300000 tokens > 200000"}, "times": 1}
    async with talking(tmp_path, {"turns": [refused, {"say": [{"text": "fine"}]}]}, first="x" * 500_000) as (
        server,
        session,
    ):
        await session.run()
        await session.say("next")
    assert session.retries() == ["CONTEXT_FULL"]
    assert session.ends() == ["DONE", "DONE"]
    body = server.requests[-1].body
    assert body is not None
    assert len(body["messages"][0]["content"][0]["text"]) < 2_100

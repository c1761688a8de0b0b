"""The request that a model is sent is a pure view of the log."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import replace
from typing import Any

from services.harness.core import (
    CallFinished,
    Config,
    DoorRefused,
    Fact,
    Message,
    Offered,
    Replied,
    Started,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from services.harness.loops.messages.request import written
from services.harness.loops.messages.view import view
from services.harness.turn import refusals
from services.harness.turn.state import fold_all

SPEC = ToolSpec("bash", "Runs a command.", '{"type":"object"}')


def png(width: int = 8, height: int = 8) -> dict[str, Any]:
    data = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\2\0\0\0crc.\0\0\0\0IEND\xaeB`\x82"
    )
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()},
    }


def text(said: str) -> str:
    return json.dumps([{"type": "text", "text": said}])


def messages(*facts: Fact) -> list[tuple[str, list[str]]]:
    """Returns each message's role and its blocks in short."""
    state = fold_all(replace(fact, position=place) for place, fact in enumerate(facts, 1))
    return [(it["role"], [_short(block) for block in it["content"]]) for it in view(state, "m").request["messages"]]


def _short(block: dict) -> str:
    if block["type"] == "tool_result":
        return f"{block['tool_use_id']}={block['content'][0]['text']}{'!' if block.get('is_error') else ''}"
    return block.get("text") or block["type"]


CALLS = (ToolCall("a", "bash", "{}"), ToolCall("b", "bash", "{}"))
ASKED = json.dumps([{"type": "tool_use", "id": call.id, "name": "bash", "input": {}} for call in CALLS])


def test_results_come_first_and_in_the_order_of_the_calls() -> None:
    """Whatever order they came in, and although a message landed between them."""
    said = messages(
        Started(0, Config()),
        Message(0, text("go")),
        Replied(0, ASKED, "tool_use", 2, CALLS),
        CallFinished(0, "b", ToolResult("two", "TOOL_ERROR")),
        Message(0, text("wait")),
        CallFinished(0, "a", ToolResult("one")),
    )
    assert said == [("user", ["go"]), ("assistant", ["tool_use", "tool_use"]), ("user", ["a=one", "b=two!", "wait"])]


def test_a_message_that_landed_during_an_answer_stands_behind_it() -> None:
    """Three messages while the model streams: the order is the order of cause."""
    said = messages(
        Started(0, Config()),
        Message(0, text("one")),
        Message(0, text("two")),
        Replied(0, text("answer"), "end_turn", 2),
        Message(0, text("three")),
    )
    assert said == [("user", ["one"]), ("assistant", ["answer"]), ("user", ["two", "three"])]


def test_nothing_empty_is_sent() -> None:
    """Empty text blocks, an empty answer, an empty message and a silent tool would all be refused by the API."""
    said = messages(
        Started(0, Config()),
        Message(0, text(" ")),
        Replied(0, json.dumps([{"type": "text", "text": ""}, json.loads(ASKED)[0]]), "tool_use", 2, CALLS[:1]),
        CallFinished(0, "a", ToolResult("")),
        Replied(0, "[]", "end_turn", 4),
        Message(0, text("on")),
    )
    roles = ["user", "assistant", "user", "user"]
    assert said == list(zip(roles, [["(empty message)"], ["tool_use"], ["a=(no output)"], ["on"]], strict=True))


def test_lone_surrogates_become_whole_characters() -> None:
    """A message with half a character is sent with a replacement instead of failing for ever."""
    assert messages(Started(0, Config()), Message(0, '[{"type":"text","text":"\\ud800x"}]')) == [("user", ["\ufffdx"])]


def test_the_same_log_gives_the_same_bytes() -> None:
    """The view is deterministic and leaves the log as it was."""
    state = fold_all([Started(1, Config(model="x")), Offered(2, "main", (SPEC,)), Message(3, text("hi"))])
    assert written(view(state, "m")) == written(view(state, "m"))
    assert view(state, "m").request["model"] == "x"


def test_images_of_a_tool_reach_the_model() -> None:
    """A result's content blocks are sent as they are, with its text before them."""
    image = png()
    facts = [
        Started(1, Config()),
        Message(2, text("look")),
        Replied(3, ASKED, "tool_use", 2, CALLS[:1]),
        CallFinished(4, "a", ToolResult("a picture", content=json.dumps([image]))),
    ]
    told = view(fold_all(facts), "m").request["messages"][-1]["content"][0]
    assert told["content"] == [{"type": "text", "text": "a picture"}, image]


def refused(host: str, message: str = "not on the list") -> DoorRefused:
    return DoorRefused(0, "egress", host, "EGRESS_DENIED", message)


TOLD = "[Refused at the doors of your hands:\n- egress: {}: not on the list (EGRESS_DENIED)]"


def test_what_doors_refused_is_told_once_behind_the_results() -> None:
    """What the log held before a request is in it, before the messages; what came later is in the next one only."""
    begin: tuple[Fact, ...] = (Started(0, Config()), Message(0, text("go")), Replied(0, ASKED, "tool_use", 2, CALLS))
    asked = (*begin, refused("a:443"), *(CallFinished(0, call.id, ToolResult("out")) for call in CALLS))
    later = (*asked, Replied(0, text("hm"), "end_turn", 6), refused("b:443"), Message(0, text("and?")))
    first, second = messages(*asked), messages(*later)
    assert first[-1] == ("user", ["a=out", "b=out", TOLD.format("a:443")])
    assert second == [*first, ("assistant", ["hm"]), ("user", [TOLD.format("b:443"), "and?"])]


def test_a_refusal_that_landed_while_the_model_answered_is_in_the_next_request() -> None:
    """The request that it missed stays as it was sent: the prefix is the same, byte for byte."""
    begin: list[Fact] = [Started(0, Config()), Message(0, text("go"))]
    late = [*begin, refused("a:443"), Replied(0, text("well"), "end_turn", 2), Message(0, text("and?"))]
    before, after = (
        written(view(fold_all(replace(it, position=at) for at, it in enumerate(facts, 1)), "m"))
        for facts in (begin, late)
    )
    assert before.prompt_hash == after.prefix_hash
    assert messages(*late)[1:] == [("assistant", ["well"]), ("user", [TOLD.format("a:443"), "and?"])]


def test_a_refusal_alone_makes_no_message() -> None:
    """It waits for results or a message: what the model was about to go on with stays the request's end."""
    facts: list[Fact] = [Started(0, Config()), Message(0, text("go")), Replied(0, text("so"), "pause_turn", 2)]
    assert messages(*facts, refused("a:443")) == [("user", ["go"]), ("assistant", ["so"])]


def test_many_and_long_refusals_are_cut_and_it_says_so() -> None:
    """At most so many lines of so many characters, whatever the hand has asked for."""
    facts: list[Fact] = [Started(0, Config()), *(refused(f"h{n}\n- x:1" + "y" * 1_000) for n in range(30))]
    [(_, [told, said])] = messages(*facts, Message(0, text("hi")))
    lines = told.split("\n")
    assert (len(lines), lines[-1], said) == (1 + refusals.MOST + 1, "- 10 more are not shown]", "hi")
    assert lines[1].startswith("- egress: h0 - x:1yyy")
    assert "characters cut): not on the list (EGRESS_DENIED)" in lines[1]
    assert len(told) < 10_000

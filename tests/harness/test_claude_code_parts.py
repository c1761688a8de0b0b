"""What the type `claude_code` is made of, without Claude Code: its view of a log, its transcript, its slots."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.harness.core import (
    Attached,
    CallFinished,
    Config,
    DoorRefused,
    Fact,
    Message,
    Replied,
    Started,
    ToolCall,
    ToolResult,
)
from services.harness.loops import claude_code
from services.harness.loops.claude_code.command import arguments, environment
from services.harness.loops.claude_code.conversation import (
    LEFT_OUT,
    REFUSED_TURN,
    can_give,
    conversation,
    only_results_since,
)
from services.harness.loops.claude_code.failures import failure_of
from services.harness.loops.claude_code.slots import Slots
from services.harness.loops.claude_code.transcript import GO_ON, beginning
from services.harness.ports import NotAvailable
from services.harness.turn.state import State, fold_all
from tests.support.harness_ports import SESSION

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def wrote(position: int, *texts: str) -> Message:
    return Message(position, json.dumps([{"type": "text", "text": text} for text in texts]))


def replied(position: int, read: int, *blocks: dict[str, Any], stop: str = "end_turn") -> Replied:
    calls = tuple(ToolCall(it["id"], it["name"], json.dumps(it["input"])) for it in blocks if it["type"] == "tool_use")
    return Replied(position, json.dumps(blocks), "tool_use" if calls else stop, read, calls)


def call(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "bash", "input": {}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def told(*facts: Fact) -> list[tuple[str, list[Any]]]:
    messages = conversation(state(*facts))
    return [
        (it.role, [block.get("text") or block.get("content") or block["id"] for block in it.content]) for it in messages
    ]


def state(*facts: Fact) -> State:
    return fold_all([Started(1, Config(harness="claude_code")), *facts])


TWO_CALLS = (wrote(2, "do"), replied(3, 2, said("both"), call("a"), call("b")))
DONE = (CallFinished(4, "b", ToolResult("B")), CallFinished(5, "a", ToolResult("A")))


def test_results_stand_in_the_order_of_their_calls_before_what_was_said_meanwhile() -> None:
    """As the API wants them, whatever the order in which they came; a refusal of a door is told between them."""
    door = DoorRefused(6, "egress", "evil.example", "EGRESS_DENIED", "not allowed")
    messages = told(*TWO_CALLS, *DONE, door, wrote(7, "hurry"))
    assert [role for role, _ in messages] == ["user", "assistant", "user"]
    assert messages[2][1][:2] == [[said("A")], [said("B")]]
    assert "evil.example" in messages[2][1][2] and messages[2][1][3] == "hurry"


def test_what_became_of_hands_is_told_with_the_next_message() -> None:
    """A hand that another session has given is as new to Claude Code as to the model of `messages`."""
    came = Attached(5, "tool", "sbx", "sess_a", False, "a bench")
    messages = told(wrote(2, "hi"), replied(3, 2, said("yes")), came, wrote(6, "use it"))
    assert "`tool` was handed to this session" in messages[2][1][0] and messages[2][1][1] == "use it"


def test_a_refused_turn_is_left_out() -> None:
    """With it in sight every later answer is refused too."""
    turn = (wrote(2, "fine"), replied(3, 2, said("yes")), wrote(4, "bad"), replied(5, 4, said("n"), stop="refusal"))
    assert told(*turn, wrote(6, "next")) == [
        ("user", ["fine"]),
        ("assistant", ["yes"]),
        ("user", [REFUSED_TURN, "next"]),
    ]


def test_what_the_api_would_not_take_is_not_told() -> None:
    """Blank text, thinking at an end, halves of characters, and images beyond what a request may hold."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    pictures = Message(4, json.dumps([image] * 101))
    thought = {"type": "thinking", "thinking": "x", "signature": "s"}
    messages = conversation(state(wrote(2, " ", "a\ud800"), replied(3, 2, said("b"), said(" "), thought), pictures))
    assert [block["text"] for block in messages[0].content] == ["a\ufffd"]
    assert messages[1].content == [said("b")]
    kinds = [block.get("text", "image") for block in messages[2].content]
    assert kinds == [LEFT_OUT] * 51 + ["image"] * 50


def test_a_process_goes_on_only_with_results_and_nothing_else() -> None:
    """A message that the answer had not read calls for a new process, before the results or behind them."""
    assert only_results_since(state(*TWO_CALLS, *DONE))
    assert not only_results_since(state(*TWO_CALLS, *DONE, wrote(6, "more")))
    early = (wrote(2, "do"), wrote(3, "more"), replied(4, 2, call("a")), CallFinished(5, "a", ToolResult("A")))
    assert not only_results_since(state(*early))
    assert not only_results_since(state(wrote(2, "do")))


@pytest.mark.parametrize(
    ("blocks", "is_error", "fits"),
    [
        ([said("a"), {"type": "image", "source": {"type": "base64"}}], False, True),
        ([{"type": "document", "source": {"type": "base64"}}], False, False),
        ([{"type": "image", "source": {"type": "url"}}], False, False),
        ([said("a")], True, True),
        ([said("a"), said("b")], True, False),
    ],
)
def test_what_cannot_be_given_is_told_in_the_transcript(blocks: list[Any], is_error: bool, fits: bool) -> None:
    """Claude Code keeps of an error its first text only, and knows no documents."""
    assert can_give(blocks, is_error) is fits


def test_a_transcript_is_a_function_of_the_log() -> None:
    """Each entry names the one before; ids are derived; it ends with the results, or before what is then said."""
    facts = (*TWO_CALLS, *DONE)
    made = [beginning(SESSION, conversation(state(*facts)), "/w", "m") for _ in range(2)]
    assert made[0] == made[1] and made[0].prompt == []
    entries = [json.loads(line) for line in made[0].transcript.splitlines()]
    assert [it["parentUuid"] for it in entries] == [None, *(it["uuid"] for it in entries[:-1])]
    assert {it["sessionId"] for it in entries} == {made[0].session}
    assert [it["message"]["role"] for it in entries] == ["user", "assistant", "user"]
    later = beginning(SESSION, conversation(state(*facts, replied(6, 5, said("ok")), wrote(7, "next"))), "/w", "m")
    assert later.transcript.startswith(made[0].transcript)
    assert later.prompt == [said("next")] and later.session == made[0].session
    assert beginning(SESSION, [], "/w", "m").prompt == [said(GO_ON)]


def test_nothing_of_the_harness_is_in_the_call() -> None:
    """The key is in the environment, and in no argument; the address is there only if there is one."""
    home = claude_code.Path("/h")
    assert "sk" not in " ".join(arguments(home / "claude", home, "m", True, "s", False))
    made = environment(home, "sk", None, 0, False)
    assert made["ANTHROPIC_API_KEY"] == "sk"
    assert not {"ANTHROPIC_BASE_URL", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_RESUME_PROMPT"} & made.keys()
    assert not [name for name in made if name.startswith("HANDMESH")]


@pytest.mark.parametrize(
    ("status", "why", "reason", "again"),
    [
        (None, "api_error", "MODEL_UNAVAILABLE", True),
        (529, "api_error", "MODEL_OVERLOADED", True),
        (429, "api_error", "MODEL_RATE_LIMITED", True),
        (500, "api_error", "MODEL_UNAVAILABLE", True),
        (401, "api_error", "MODEL_KEY_REFUSED", False),
        (400, "prompt_too_long", "CONTEXT_FULL", False),
        (400, "api_error", "MODEL_REQUEST_REFUSED", False),
    ],
)
def test_what_a_failure_means(status: int | None, why: str, reason: str, again: bool) -> None:
    """By the API's status, not by a text."""
    failure = failure_of(status, why, "x" * 1_000)
    assert (failure.reason, failure.retryable, len(failure.message) <= 300) == (reason, again, True)


@pytest.mark.parametrize("origin", [None, "/nowhere/claude_agent_sdk/__init__.py"])
def test_without_the_sdk_the_type_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, origin: str | None) -> None:
    """Whether the SDK is missing or brings no program for this machine."""
    spec = None if origin is None else type("Spec", (), {"origin": origin})
    monkeypatch.setattr(claude_code, "find_spec", lambda name: spec)
    with pytest.raises(NotAvailable, match=r"pip install 'handmesh\[claude-code\]'"):
        claude_code.find_binary()


class Holder:
    def __init__(self) -> None:
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


async def test_no_more_than_so_many_in_the_order_of_asking() -> None:
    """The third waits until one leaves; who stops waiting costs nobody a slot."""
    slots, first, second, third, fourth = Slots(1), Holder(), Holder(), Holder(), Holder()
    await slots.take(first)
    asking = [asyncio.create_task(slots.take(each)) for each in (second, third, fourth)]
    await asyncio.sleep(0)
    slots.leave(first)
    slots.leave(first)  # a second time changes nothing
    asking[0].cancel()  # it has the slot, and has not heard of it
    await asyncio.wait(asking[:2])
    assert (asking[0].cancelled(), asking[1].done(), asking[2].done()) == (True, True, False)
    asking[2].cancel()
    await asyncio.wait(asking)
    slots.leave(third)
    await slots.take(fourth)
    assert not any(each.gone for each in (first, second, third, fourth))


async def test_who_waits_for_calls_gives_way() -> None:
    """Whether it waits already when its slot is wanted, or begins to then. Who works is left alone."""
    slots, first, second, third = Slots(2), Holder(), Holder(), Holder()
    await slots.take(first)
    await slots.take(second)
    slots.waits(first)
    slots.works(first)
    asking = asyncio.create_task(slots.take(third))
    await asyncio.sleep(0)
    assert not asking.done() and not first.gone
    slots.waits(second)
    await asking
    assert (first.gone, second.gone) == (False, True)
    slots.waits(first)
    await slots.take(Holder())
    assert first.gone

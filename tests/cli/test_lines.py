"""Every event can be shown in one safe line."""

import json
import unicodedata

import pytest
from google.protobuf.descriptor import FieldDescriptor

from handmesh.cli.lines import blocks_of, call_text, content_of, kind_of, outcome_word, time_of
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2

KINDS = [field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["kind"].fields]
HI = '[{"type":"text","text":"hi"}]'
HOSTILE = "\x1b[31m\u202eevil\r\n"


def fill(message: object, text: str) -> None:
    """Puts the text into every field of text, at any depth, and 7 into every number."""
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if field.is_repeated:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            fill(getattr(message, field.name), text)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, text)
        elif field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64):
            setattr(message, field.name, 7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", HOSTILE, "[" * 10_000, json.dumps([{"type": "text", "text": HOSTILE}])])
def test_every_kind_has_one_safe_line(kind: str, text: str) -> None:
    """Whatever an event of any kind holds, its line is one line, within its width, and safe to print."""
    event = event_pb2.Event()
    getattr(event, kind).SetInParent()
    if text:
        fill(getattr(event, kind), text)
    line = content_of(event, 80)
    assert len(line) <= 80
    assert not any(unicodedata.category(each) in ("Cc", "Cf") for each in line)
    assert kind_of(event) == kind


def test_an_unknown_kind_is_shown_as_such() -> None:
    """An event of a newer version is shown, not a reason to stop."""
    event = event_pb2.Event.FromString(event_pb2.Event(position=3).SerializeToString() + b"\xaa\x06\x00")
    assert kind_of(event) == "unknown"
    assert content_of(event) == "of a newer version"


def test_the_important_kinds_read_well() -> None:
    """A log is read by people: a message, a reply with a call, its result and the end say what matters."""
    blocks = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls -la"}},
    ]
    reply = event_pb2.ModelReplied(content_json=json.dumps(blocks), stop_reason="tool_use")
    used = event_pb2.TokenUsage(input_tokens=1_000, output_tokens=234)
    reached = event_pb2.BudgetReached(budget="max_cost_micros", limit=2_000_000, used=2_500_000)
    result = tool_pb2.ToolResult(output="no such file\n", outcome=tool_pb2.TOOL_OUTCOME_TOOL_ERROR, exit_code=2)
    assert [
        content_of(
            event_pb2.Event(message_received=event_pb2.MessageReceived(content_json='[{"type":"text","text":"hi"}]'))
        ),
        content_of(event_pb2.Event(model_replied=reply)),
        content_of(event_pb2.Event(tool_finished=event_pb2.ToolFinished(tool_use_id="t1", result=result))),
        content_of(event_pb2.Event(turn_ended=event_pb2.TurnEnded(reason=event_pb2.TURN_END_REASON_DONE))),
        content_of(event_pb2.Event(harness_woke=event_pb2.HarnessWoke(harness="messages", instance="a"))),
        content_of(event_pb2.Event(turn_ended=event_pb2.TurnEnded(reason=1, usage=used, cost_micros=12_345))),
        content_of(event_pb2.Event(model_replied=event_pb2.ModelReplied(stop_reason="end_turn", usage=used))),
        content_of(event_pb2.Event(budget_reached=reached)),
        content_of(event_pb2.Event(message_received=event_pb2.MessageReceived(from_session_id="s", content_json=HI))),
        content_of(event_pb2.Event(child_started=event_pb2.ChildStarted(child_session_id="s", tool_use_id="t"))),
        content_of(event_pb2.Event(child_rested=event_pb2.ChildRested(child_session_id="s", kind="turn_ended"))),
        content_of(event_pb2.Event(child_ended=event_pb2.ChildEnded(child_session_id="s", reason="enough"))),
    ] == [
        "hi",
        "I look. → bash: ls -la [tool_use]",
        "t1 (tool error, exit 2): no such file",
        "done",
        "harness=messages, instance=a",
        "done, 1,234 tokens, $0.0123",
        "[end_turn, 1,234 tokens, no known price]",
        "cost: 2.5 of 2 US dollars are used",
        "from s: hi",
        "s, for t",
        "s: turn_ended",
        "s: enough",
    ]


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (tool_pb2.ToolResult(outcome=tool_pb2.TOOL_OUTCOME_OK, exit_code=0), "ok"),
        (tool_pb2.ToolResult(outcome=tool_pb2.TOOL_OUTCOME_TIMEOUT, signal=9), "timeout, signal 9"),
        (tool_pb2.ToolResult(outcome=tool_pb2.TOOL_OUTCOME_OUT_OF_MEMORY), "out of memory"),
        (tool_pb2.ToolResult(outcome=77), "77"),
    ],
)
def test_how_a_call_ended_is_said_in_words(result: tool_pb2.ToolResult, word: str) -> None:
    """The outcome, with exit code or signal where that says more; an outcome of a newer version by its number."""
    assert outcome_word(result) == word


def test_calls_are_written_as_people_write_them() -> None:
    """The command or path of a call matters most; any other input is shown whole."""
    assert call_text("bash", {"command": "ls"}) == "bash: ls"
    assert call_text("read", {"file_path": "/a"}) == "read: /a"
    assert call_text("ping", {}) == "ping"
    assert call_text("add", {"a": 1}) == 'add: {"a": 1}'


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", "null", "[" * 100_000])
def test_content_that_is_no_list_of_blocks_has_none(text: str) -> None:
    """What is no array of objects is not shown as blocks, and breaks nothing."""
    assert blocks_of(text) == []


def test_a_time_is_shown_to_the_millisecond() -> None:
    """Events are milliseconds apart."""
    event = event_pb2.Event()
    event.emit_time.FromMilliseconds(1_700_000_000_123)
    assert time_of(event.emit_time).endswith(":20.123")

"""The order and the fields of a stream, and of the message that is no stream."""

from __future__ import annotations

import json

from handmesh.scripted_model.stream import (
    Answer,
    Text,
    Thinking,
    ToolUse,
    Verbatim,
    error_event,
    events,
    message,
)
from handmesh.scripted_model.usage import Usage

USAGE = Usage(10, 20, 3, 4, 5, 6)
ON_THE_WIRE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 9,
    "cache_read_input_tokens": 3,
    "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 5},
    "output_tokens": 20,
    "service_tier": "standard",
}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
ANSWER = Answer(
    "msg_1",
    "claude-opus-5-5",
    (Thinking("Hm.", "c2ln"), Text("Hello"), ToolUse("toolu_1", "bash", '{"a": 1}'), Verbatim(SEARCH)),
    "tool_use",
    USAGE,
)
DIRECT = {"type": "direct"}
HEAD = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "stop_details": None,
    "usage": {**ON_THE_WIRE, "output_tokens": 1},
}


def delta(index: int, **fields: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def test_events_come_in_the_api_s_order() -> None:
    """message_start, each block's start, deltas and stop with a ping behind the first start, message_delta, stop."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}, "caller": DIRECT}
    assert [event.data for event in events(ANSWER, 4)] == [
        {"type": "message_start", "message": HEAD},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "ping"},
        delta(0, type="thinking_delta", thinking="Hm."),
        delta(0, type="signature_delta", signature="c2ln"),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        delta(1, type="text_delta", text="Hell"),
        delta(1, type="text_delta", text="o"),
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": call},
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"a"'),
        delta(2, type="input_json_delta", partial_json=": 1}"),
        {"type": "content_block_stop", "index": 2},
        {"type": "content_block_start", "index": 3, "content_block": SEARCH},
        {"type": "content_block_stop", "index": 3},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None},
            "usage": {
                "input_tokens": 10,
                "cache_creation_input_tokens": 9,
                "cache_read_input_tokens": 3,
                "output_tokens": 20,
                "output_tokens_details": {"thinking_tokens": 6},
            },
        },
        {"type": "message_stop"},
    ]


def test_every_event_is_named_for_its_type() -> None:
    """On the wire an event has its type twice, as its name and in its data, and text stays UTF-8."""
    assert all(event.name == event.data["type"] for event in events(ANSWER, 4))
    last = [*events(Answer("m", "c", (Text("é"),), "end_turn", USAGE), 9)][3]
    data = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"é"}}'
    assert last.encode() == f"event: content_block_delta\ndata: {data}\n\n".encode()


def test_a_message_holds_what_the_stream_tells() -> None:
    """Without `stream` the same answer comes whole, with the same ids, reasons and usage."""
    assert message(ANSWER) == {
        **HEAD,
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"a": 1}, "caller": DIRECT},
            SEARCH,
        ],
        "stop_reason": "tool_use",
        "usage": ON_THE_WIRE,
    }


def test_a_cut_tool_input_is_an_empty_object_in_a_message() -> None:
    """A message cannot carry half a JSON object, so the input is empty there; a stream carries the half."""
    cut = Answer("m", "c", (ToolUse("toolu_1", "bash", '{"command": "l'),), "max_tokens", USAGE)
    assert message(cut)["content"][0]["input"] == {}
    parts = [event.data["delta"]["partial_json"] for event in events(cut, 99) if event.name == "content_block_delta"]
    assert "".join(parts) == '{"command": "l'


def test_an_empty_answer_has_no_blocks_and_no_ping() -> None:
    """A reply without content is start, delta and stop alone."""
    assert [event.name for event in events(Answer("m", "c", (), "end_turn", USAGE), 9)] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def test_an_error_event_has_the_api_s_shape() -> None:
    """A stream that fails midway ends in an `error` event."""
    assert json.loads(error_event("overloaded_error", "Overloaded").encode().split(b"data: ")[1]) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Overloaded"},
    }

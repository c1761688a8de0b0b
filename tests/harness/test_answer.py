"""A streamed answer is put together as the API sent it, and only a whole one counts."""

from __future__ import annotations

import json

from services.harness.answer import Answering

START = {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 3}}}


def taken(*events: dict) -> tuple[Answering, list[tuple[int, str, str]]]:
    shown: list[tuple[int, str, str]] = []
    answering = Answering(lambda *piece: shown.append(piece))
    for event in (START, *events):
        answering.take(json.dumps(event).encode())
    return answering, shown


def begin(index: int, block: dict) -> dict:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **what: str) -> dict:
    return {"type": "content_block_delta", "index": index, "delta": what}


def test_text_and_thinking_are_kept_and_shown_piece_by_piece() -> None:
    """Odd Unicode, a signature and redacted thinking come back as they were."""
    answering, shown = taken(
        begin(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, type="thinking_delta", thinking="hm \u2028\U0001f600"),
        delta(0, type="signature_delta", signature="c2ln"),
        begin(1, {"type": "redacted_thinking", "data": "xyz=="}),
        begin(2, {"type": "text", "text": ""}),
        delta(2, type="text_delta", text="a"),
        delta(2, type="text_delta", text="b"),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )
    assert json.loads(answering.content()) == [
        {"type": "thinking", "thinking": "hm \u2028\U0001f600", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "xyz=="},
        {"type": "text", "text": "ab"},
    ]
    assert shown == [(0, "thinking", "hm \u2028\U0001f600"), (2, "text", "a"), (2, "text", "b")]
    assert (answering.stop_reason, answering.whole) == ("end_turn", True)
    assert answering.usage["input_tokens"] == 3
    assert answering.usage["output_tokens"] == 7


def test_a_tools_input_stays_the_text_that_the_model_wrote() -> None:
    """Key order and number spelling survive: 1e2 is not turned into 100.0."""
    block = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
    answering, _ = taken(
        begin(0, block),
        delta(0, type="input_json_delta", partial_json='{"b": 1e2,'),
        delta(0, type="input_json_delta", partial_json='"a":2}'),
    )
    assert '"input":{"b": 1e2,"a":2}' in answering.content()


def test_an_input_that_broke_off_is_kept_as_text_and_the_answer_is_not_whole() -> None:
    """Half an input is never taken for an input: it is the value of INVALID_JSON, as it was written."""
    block = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
    answering, _ = taken(begin(0, block), delta(0, type="input_json_delta", partial_json='{"a": "rm'))
    assert json.loads(answering.content())[0]["input"] == {"INVALID_JSON": '{"a": "rm'}
    assert not answering.whole


def test_events_that_are_not_known_change_nothing() -> None:
    """Pings and new kinds of event are skipped."""
    answering, shown = taken({"type": "ping"}, {"type": "something_new", "x": 1})
    assert (answering.content(), shown) == ("[]", [])

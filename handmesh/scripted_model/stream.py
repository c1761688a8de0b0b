"""Turns an answer into what the API sends: the events of a stream in their order, or one message.

message_start, then for each block content_block_start, its deltas and content_block_stop, a ping behind the first
start, then message_delta with the stop reason and the final usage, then message_stop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from handmesh.scripted_model.usage import Usage


@dataclass(frozen=True)
class Text:
    """A text block."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A thinking block; an empty text with a signature is what `display: omitted` gives."""

    text: str
    signature: str


@dataclass(frozen=True)
class ToolUse:
    """A tool_use block; `input_json` may be cut or broken JSON, as a model's can be."""

    id: str
    name: str
    input_json: str


@dataclass(frozen=True)
class Verbatim:
    """Any other block, sent as it is in its content_block_start."""

    block: Mapping[str, Any]


Part = Text | Thinking | ToolUse | Verbatim


@dataclass(frozen=True)
class Answer:
    """One reply of the model."""

    message_id: str
    model: str
    parts: tuple[Part, ...]
    stop_reason: str
    usage: Usage
    stop_sequence: str | None = None
    stop_details: Mapping[str, Any] | None = None
    applied_edits: tuple[Mapping[str, Any], ...] | None = None  # None: the request asked for no edits
    compacted: Mapping[str, int] | None = None  # tokens of the API's own summary, which are not in `usage`


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    name: str
    data: Mapping[str, Any]

    def encode(self) -> bytes:
        """Returns the event as it stands on the wire."""
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        return f"event: {self.name}\ndata: {data}\n\n".encode()


def _event(name: str, **data: Any) -> Event:
    return Event(name, {"type": name, **data})


def events(answer: Answer, chunk: int) -> Iterator[Event]:
    """Yields the events of a stream; `chunk` is the number of characters in a delta."""
    yield _event("message_start", message=_head(answer))
    for index, part in enumerate(answer.parts):
        yield _event("content_block_start", index=index, content_block=_start(part))
        if index == 0:
            yield _event("ping")
        for delta in _deltas(part, chunk):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    delta = {
        "stop_reason": answer.stop_reason,
        "stop_sequence": answer.stop_sequence,
        "stop_details": answer.stop_details,
    }
    yield _event("message_delta", delta=delta, usage=_delta_usage(answer), **_context(answer))
    yield _event("message_stop")


def message(answer: Answer) -> dict[str, Any]:
    """Returns the reply to a request without `stream`."""
    return {
        **_head(answer),
        "content": [_whole(part) for part in answer.parts],
        "stop_reason": answer.stop_reason,
        "stop_sequence": answer.stop_sequence,
        "stop_details": answer.stop_details,
        "usage": {**_usage(answer, answer.usage.output_tokens), **_iterations(answer)},
        **_context(answer),
    }


def error_event(kind: str, text: str) -> Event:
    """Returns the event that ends a stream which failed midway."""
    return Event("error", {"type": "error", "error": {"type": kind, "message": text}})


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.message_id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        # The first event is sent before the model is done, so it counts the first token only.
        "usage": _usage(answer, min(1, answer.usage.output_tokens)),
    }


def _usage(answer: Answer, output_tokens: int) -> dict[str, Any]:
    usage = answer.usage
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_5m_input_tokens,
            "ephemeral_1h_input_tokens": usage.cache_1h_input_tokens,
        },
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _context(answer: Answer) -> dict[str, Any]:
    if answer.applied_edits is None:
        return {}
    return {"context_management": {"applied_edits": [dict(edit) for edit in answer.applied_edits]}}


def _iterations(answer: Answer) -> dict[str, Any]:
    """Tells a summary's tokens and those of the message apart, when there is a summary."""
    if answer.compacted is None:
        return {}
    counts = dict.fromkeys(("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), 0)
    usage = answer.usage
    spoken = {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "output_tokens": usage.output_tokens,
    }
    summary = {"output_tokens": 0, **counts, **answer.compacted}
    return {"iterations": [{"type": "compaction", **summary}, {"type": "message", **spoken}]}


def _delta_usage(answer: Answer) -> dict[str, Any]:
    return {
        **_iterations(answer),
        "input_tokens": answer.usage.input_tokens,
        "cache_creation_input_tokens": answer.usage.cache_creation_input_tokens,
        "cache_read_input_tokens": answer.usage.cache_read_input_tokens,
        "output_tokens": answer.usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": answer.usage.thinking_tokens},
    }


def _start(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": ""}
        case Thinking():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolUse():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}, "caller": {"type": "direct"}}
        case Verbatim(block={"type": "compaction"}):
            return {"type": "compaction", "content": None}
        case Verbatim():
            return dict(part.block)
        case _:
            assert_never(part)


def _deltas(part: Part, chunk: int) -> Iterator[dict[str, Any]]:
    match part:
        case Text():
            for piece in _pieces(part.text, chunk):
                yield {"type": "text_delta", "text": piece}
        case Thinking():
            for piece in _pieces(part.text, chunk):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": part.signature}
        case ToolUse():
            yield {"type": "input_json_delta", "partial_json": ""}
            for piece in _pieces(part.input_json, chunk):
                yield {"type": "input_json_delta", "partial_json": piece}
        case Verbatim(block={"type": "compaction"}):
            yield {**part.block, "type": "compaction_delta"}  # in one piece
        case Verbatim():
            pass
        case _:
            assert_never(part)


def _pieces(text: str, chunk: int) -> Iterator[str]:
    for start in range(0, len(text), chunk):
        yield text[start : start + chunk]


def _whole(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Thinking():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case ToolUse():
            return {**_start(part), "input": _object(part.input_json)}
        case Verbatim():
            return dict(part.block)
        case _:
            assert_never(part)


def _object(text: str) -> dict[str, Any]:
    """Returns the object in a tool's input; where the model was cut off in the middle there is none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

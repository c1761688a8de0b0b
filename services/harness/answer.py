"""Puts a streamed answer together: events of the Messages API's stream in, an answer out. Pure.

Blocks are kept as the model sent them, those of a kind that is not known too. A call's input stays the text that the
model wrote; one that is no JSON object is kept as `{"INVALID_JSON": text}`, which the API takes back and no tool is
asked with. An answer is whole only when its `message_stop` has come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from services.harness.blocks import INVALID_JSON

MAX_DEPTH = 64  # levels of a call's input: whatever is deeper, the API does not take back
Show = Callable[[int, str, str], None]
_PIECES = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
_TOKENS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class Malformed(Exception):
    """The stream holds what the Messages API does not send."""


@dataclass
class _Block:
    """A block that is still coming. `raw` is its first event's text of it, which stands as long as nothing is added."""

    head: dict[str, Any]
    raw: str
    pieces: dict[str, list[str]] = field(default_factory=dict)
    citations: list[Any] = field(default_factory=list)
    signature: str | None = None
    input: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)  # the API's own, which comes in one piece

    def text(self) -> str:
        if not (self.pieces or self.citations or self.input or self.summary or self.signature is not None):
            return self.raw
        block = {**self.head, **self.summary}
        for name, pieces in self.pieces.items():
            block[name] = str(block.get(name, "")) + "".join(pieces)
        if self.signature is not None:
            block["signature"] = self.signature
        if self.citations:
            block["citations"] = [*(block.get("citations") or []), *self.citations]
        if not self.input:
            return _dumped(block)
        block.pop("input", None)
        return _dumped(block)[:-1] + ',"input":' + _input("".join(self.input)) + "}"


@dataclass
class Answering:
    """An answer that is still coming. `failure` is what an error event said: its type and message."""

    show: Show
    message_id: str = ""
    model: str = ""
    stop_reason: str = ""
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    whole: bool = False
    failure: tuple[str, str] | None = None
    stop_sequence: str = ""
    stop_details: str = ""
    edits: str = ""  # JSON text: what the API has cut from the context, as it says
    _blocks: dict[int, _Block] = field(default_factory=dict)

    def take(self, data: bytes) -> None:
        """Takes the data of the stream's next event; kinds that are not known change nothing. Raises Malformed."""
        try:
            text = data.decode()
            event = json.loads(text, parse_constant=_no_constant)
            self._take(event["type"], event, text)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise Malformed from None

    def _take(self, kind: str, event: dict[str, Any], text: str) -> None:
        match kind:
            case "message_start":
                message = event["message"]
                self.message_id, self.model = str(message["id"]), str(message["model"])
                self._count(message.get("usage"))
            case "content_block_start":
                index, block = int(event["index"]), event["content_block"]
                if index != len(self._blocks):
                    raise ValueError("blocks come in order, each once")
                _check(block)
                self._blocks[index] = _Block(block, _raw(text, block))
            case "content_block_delta":
                self._grow(event["index"], event["delta"])
            case "message_delta":
                self._end(event["delta"])
                self._count(event.get("usage"))
                if applied := (event.get("context_management") or {}).get("applied_edits"):
                    self.edits = _dumped(applied)
            case "message_stop":
                self.whole = True
            case "error":
                self.failure = str(event["error"]["type"]), str(event["error"].get("message", ""))

    def _end(self, delta: dict[str, Any]) -> None:
        self.stop_reason = _string(delta.get("stop_reason") or self.stop_reason)
        self.stop_sequence = _string(delta.get("stop_sequence") or self.stop_sequence)
        if delta.get("stop_details"):
            self.stop_details = _dumped(delta["stop_details"])

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Takes the newest counts. What a compaction of the API's took is paid for too, and stands beside them."""
        for name in _TOKENS:
            if usage and usage.get(name) is not None:
                beside = [it for it in usage.get("iterations") or () if it.get("type") == "compaction"]
                self.usage[name] = int(usage[name]) + sum(int(it.get(name) or 0) for it in beside)

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        kind = delta["type"]
        if kind in _PIECES:
            name, shown = _PIECES[kind]
            block.pieces.setdefault(name, []).append(_string(delta[name]))
            self.show(index, shown, delta[name])
        elif kind == "input_json_delta":
            if _string(delta["partial_json"]):
                block.input.append(delta["partial_json"])
                self.show(index, "tool_input", delta["partial_json"])
        elif kind == "compaction_delta":
            block.summary = {key: delta[key] for key in ("content", "encrypted_content") if key in delta}
        elif kind == "signature_delta":
            block.signature = _string(delta["signature"])
        elif kind == "citations_delta":
            block.citations.append(delta["citation"])

    def content(self) -> str:
        """Returns the content blocks as JSON text, each call's input as the model wrote it."""
        return "[" + ",".join(block.text() for block in self._blocks.values()) + "]"


def _check(block: dict[str, Any]) -> None:
    _string(block["type"])
    if block["type"] == "tool_use" and not (_string(block["id"]) and isinstance(block["input"], dict)):
        raise ValueError("a call has an id and an input")
    if block["type"] == "tool_use":
        _string(block["name"])


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a piece is text")
    return value


def _raw(text: str, block: dict[str, Any]) -> str:
    """Finds a block's own spelling in its event; written anew when it cannot be found."""
    start = text.find('"content_block":')
    if start >= 0:
        begun = start + len('"content_block":')
        begun += len(text[begun:]) - len(text[begun:].lstrip())
        found, end = json.JSONDecoder().raw_decode(text, begun)
        if found == block:
            return text[begun:end]
    return _dumped(block)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _input(written: str) -> str:
    return written.strip() if _is_object(written) else _dumped({INVALID_JSON: written})


def _is_object(text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _depth(value) <= MAX_DEPTH


def _depth(value: Any) -> int:
    """Counts levels of nesting, at most one more than are allowed."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        below = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level, depth = [item for items in below for item in items], depth + 1
    return depth


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's

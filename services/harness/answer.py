"""Puts a streamed answer together: events of the Messages API's stream in, an answer out. Pure.

A tool call's input stays the text that the model wrote. An answer is whole only when its `message_stop` has come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Show = Callable[[int, str, str], None]
_PIECES = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
_TOKENS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass
class Answering:
    """An answer that is still coming."""

    show: Show
    message_id: str = ""
    model: str = ""
    stop_reason: str = ""
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    whole: bool = False
    _blocks: list[dict[str, Any]] = field(default_factory=list)
    _inputs: dict[int, str] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """Takes the next event of the stream. Events of a kind that is not known change nothing."""
        match event["type"]:
            case "message_start":
                message = event["message"]
                self.message_id, self.model = message["id"], message["model"]
                self._count(message.get("usage"))
            case "content_block_start":
                self._blocks.append(dict(event["content_block"]))
            case "content_block_delta":
                self._grow(event["index"], event["delta"])
            case "message_delta":
                self.stop_reason = event["delta"].get("stop_reason") or self.stop_reason
                self._count(event.get("usage"))
            case "message_stop":
                self.whole = True

    def _count(self, usage: dict[str, Any] | None) -> None:
        for name in _TOKENS:
            if usage and usage.get(name) is not None:
                self.usage[name] = usage[name]

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        kind = delta["type"]
        if kind in _PIECES:
            name, shown = _PIECES[kind]
            block[name] = block.get(name, "") + delta[name]
            self.show(index, shown, delta[name])
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            if delta["partial_json"]:
                self.show(index, "tool_input", delta["partial_json"])
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def content(self) -> str:
        """Returns the content blocks as JSON text, each call's input as the model wrote it.

        An input that is no JSON object, because the answer broke off in it, becomes `{}`.
        """
        return "[" + ",".join(self._text(index) for index in range(len(self._blocks))) + "]"

    def _text(self, index: int) -> str:
        block = dict(self._blocks[index])
        if index not in self._inputs:
            return _dumped(block)
        written = self._inputs[index].strip()
        block.pop("input", None)
        return _dumped(block)[:-1] + ',"input":' + (written if _is_object(written) else "{}") + "}"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False

"""What a script can see of a request: the latest user text, how many replies came since, the last tool result.

Everything is read from the request itself. That makes the server stateless: a client that was killed and sends its
conversation again gets the same answer, whichever process answers it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handmesh.scripted_model.content import blocks, texts_of
from handmesh.scripted_model.tools import tool_names

REMINDER = "<system-reminder>"  # text that Claude Code adds to users' messages; nobody typed it


@dataclass(frozen=True)
class ToolResult:
    """One result as text, with the name of the tool that was called."""

    tool: str
    text: str
    is_error: bool


@dataclass(frozen=True)
class RequestView:
    """A request as scripts see it.

    `step` is the number of assistant messages after the latest user text, so 0 for a fresh question. `fingerprint` is
    a SHA-256 over all that makes the request what it is; requests that differ in cache markers only share it.
    """

    model: str
    user_text: str
    step: int
    results: tuple[ToolResult, ...]
    system: str
    tools: tuple[str, ...]
    messages: int
    stop_sequences: tuple[str, ...]
    max_tokens: int
    shows_thinking: bool
    edits_context: bool
    fingerprint: bytes

    @property
    def last_result(self) -> ToolResult | None:
        """Returns the last tool result of the message that the request ends with, or None."""
        return self.results[-1] if self.results else None


def view(request: Mapping[str, Any]) -> RequestView:
    """Reads a request that has passed validation."""
    messages = request["messages"]
    start = _latest_user_text(messages)
    return RequestView(
        model=request["model"],
        user_text="\n".join(_texts_of_turn(messages, start)),
        step=sum(message["role"] == "assistant" for message in messages[start:]),
        results=_results(messages),
        system="\n".join(texts_of(request.get("system"))),
        tools=tuple(tool_names(dict(request))),
        messages=len(messages),
        stop_sequences=tuple(request.get("stop_sequences") or ()),
        max_tokens=request.get("max_tokens", 0),
        shows_thinking=(request.get("thinking") or {}).get("display") != "omitted",
        edits_context=bool((request.get("context_management") or {}).get("edits")),
        fingerprint=_fingerprint(request),
    )


def _texts(message: Mapping[str, Any]) -> list[str]:
    """Returns what the user typed in a message: its text blocks, but for reminders."""
    if message["role"] != "user":
        return []
    return [text for text in texts_of(message["content"]) if not text.lstrip().startswith(REMINDER)]


def _latest_user_text(messages: list[dict[str, Any]]) -> int:
    """Returns the index of the last message with user text in it (0 if there is none)."""
    return max((index for index, message in enumerate(messages) if _texts(message)), default=0)


def _texts_of_turn(messages: list[dict[str, Any]], start: int) -> list[str]:
    """Returns the user texts of a turn: consecutive messages of one role are one turn to the API."""
    first = start
    while first > 0 and messages[first - 1]["role"] != "assistant":
        first -= 1
    return [text for message in messages[first : start + 1] for text in _texts(message)]


def _results(messages: list[dict[str, Any]]) -> tuple[ToolResult, ...]:
    """Returns the tool results since the last assistant message."""
    names: dict[str, str] = {}
    results: list[ToolResult] = []
    for message in messages:
        if message["role"] == "assistant":
            results = []
        for block in blocks(message["content"]):
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                text = "\n".join(texts_of(block.get("content")))
                results.append(ToolResult(names[block["tool_use_id"]], text, bool(block.get("is_error"))))
    return tuple(results)


def _fingerprint(request: Mapping[str, Any]) -> bytes:
    counted = {name: value for name, value in request.items() if name not in ("stream", "cache_control")}
    text = json.dumps(_unmarked(counted), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def _unmarked(value: Any) -> Any:
    """Returns a value without its cache markers, which move from request to request."""
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    return value

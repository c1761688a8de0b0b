"""A session's log as the Python SDK reads it, in the words that `converse` prints in every language."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from handmesh.session.v1.event_pb2 import Event

ESSENCE: Mapping[str, Mapping[str, str]] = {
    "message_received": {"content": "content_json"},
    "model_replied": {"content": "content_json", "stop_reason": "stop_reason"},
    "tool_started": {"tool_use_id": "tool_use_id", "name": "name", "hand": "hand"},
    "tool_finished": {"tool_use_id": "tool_use_id", "outcome": "result.outcome", "output": "result.output"},
    "tool_confirmation_requested": {"tool_use_id": "tool_use_id", "name": "name", "call_hash": "call_hash"},
    "tool_confirmed": {"tool_use_id": "tool_use_id", "allowed": "allowed"},
    "custom_tool_requested": {"tool_use_id": "tool_use_id", "name": "name", "input": "input_json"},
    "custom_tool_answered": {"tool_use_id": "tool_use_id", "outcome": "result.outcome", "output": "result.output"},
    "turn_ended": {"reason": "reason"},
}
"""What is printed of each kind: {name in the line: path in the message}. Of other kinds, only that they came."""

_PREFIXES = ("TOOL_OUTCOME_", "TURN_END_REASON_")


def line_of(event: Event) -> dict[str, Any]:
    """Returns what a client has to print of an event."""
    kind = event.WhichOneof("kind") or "unknown"
    said = MessageToDict(event, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    essence = {name: _at(said[kind], path) for name, path in ESSENCE.get(kind, {}).items()}
    return {"event": kind, "position": event.position, **essence}


def _at(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = message[name]
    if isinstance(message, str):
        for prefix in _PREFIXES:
            message = message.removeprefix(prefix)
    return message


def events_of(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the lines of events, in the order in which they were printed."""
    return [line for line in lines if "event" in line]


def previews_of(lines: Iterable[Mapping[str, Any]], delta: str = "text") -> list[Mapping[str, Any]]:
    """Returns the lines of previews of one sort, in the order in which they were printed."""
    return [line for line in lines if line.get("preview") == delta]


def story(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns what was said and done, without what no two sessions have alike.

    Ids are numbered as they come, JSON is read. Positions are left out, and so are kinds that say how the mesh did it:
    a harness that is slow to answer is relieved by another one, which takes an event more.
    """
    told = [
        {**event, "content": json.loads(event.get("content", "null"))} for event in events if event["event"] in ESSENCE
    ]
    numbers: dict[str, str] = {}
    for event in told:
        del event["position"]
        for name in ("tool_use_id", "call_hash"):
            if name in event:
                numbers.setdefault(event[name], f"{name} {len(numbers)}")
    text = json.dumps(told)
    for found, number in numbers.items():
        text = text.replace(found, number)
    numbered: list[Mapping[str, Any]] = json.loads(text)
    return numbered


def misfits(previews: Sequence[Mapping[str, Any]], replies: Iterable[Event]) -> list[Mapping[str, Any]]:
    """Returns the pieces of text that are not part of the reply that they were shown of, where they say."""
    blocks = {it.event_id: json.loads(it.model_replied.content_json) for it in replies}

    def fits(it: Mapping[str, Any]) -> bool:
        if it["event_id"] not in blocks:
            return False
        text: str = blocks[it["event_id"]][it["block"]]["text"]
        return text[it["offset"] :].startswith(it["piece"])

    return [it for it in previews if not fits(it)]

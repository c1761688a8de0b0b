"""How an event of the log is told to the model: a line of what it is, and what was said in it. Pure.

Content is told as text; what lies in a blob is named. Nothing is told of the machines that the mesh runs on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1.event_pb2 import Event
from services.harness.blocks import REFERENCE

KINDS = tuple(field.name for field in Event.DESCRIPTOR.oneofs_by_name["kind"].fields)
LOOK = "[events of this session's log]"  # how an answer about the log begins: it is not told again as a part of the log


@dataclass(frozen=True)
class Said:
    """One event: its first line, and what was said."""

    position: int
    head: str
    text: str


def said(event: Event) -> Said:
    """Tells an event."""
    kind = event.WhichOneof("kind") or "unknown"
    about, text = _TELL.get(kind, _other)(getattr(event, kind)) if kind != "unknown" else ("", "")
    when = event.emit_time.ToJsonString().partition(".")[0].removesuffix("Z")
    who = f" by {event.emitter}" if event.emitter not in ("", "harness") else ""
    return Said(event.position, f"#{event.position} {when}Z {kind}{who}{about}", text)


def blocks_text(content_json: str) -> str:
    """Tells content blocks."""
    try:
        blocks = json.loads(content_json or "[]")
    except ValueError:
        return content_json
    return "\n".join(_block(block) for block in blocks if isinstance(block, dict))


def _block(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "thinking":
            return f"[thinking, {len(str(block.get('thinking', '')))} characters]"
        case "redacted_thinking":
            return "[thinking, redacted]"
        case "tool_use":
            given = json.dumps(block.get("input"), ensure_ascii=False)
            return f"[calls {block.get('name')}, id {block.get('id')}] {given}"
        case "handmesh_blob":
            return _blob(str(block.get("blob_id")), str(block.get("media_type")), int(block.get("size", 0)))
        case "image" | "document" as kind:
            source = block.get("source")
            source = source if isinstance(source, dict) else {}
            size = len(str(source.get("data", ""))) * 3 // 4
            return f"[{kind}, {source.get('media_type') or source.get('type')}, {size} bytes]"
    return json.dumps(block, ensure_ascii=False)


def _blob(blob_id: str, media_type: str, size: int) -> str:
    return f"[blob {blob_id}: {media_type}, {size} bytes]"


def _result(result: ToolResult) -> tuple[str, str]:
    outcome = ToolOutcome.Name(result.outcome).removeprefix("TOOL_OUTCOME_")
    if result.output.startswith(LOOK):
        return f" {outcome}", "(an answer about this log)"
    more = blocks_text(result.content_json) if result.content_json else ""
    return f" {outcome}", "\n".join(part for part in (result.output, more if more != result.output else "") if part)


def _finished(it: Any) -> tuple[str, str]:
    outcome, text = _result(it.result)
    blobs = [_blob(blob.blob_id, blob.media_type, blob.size) for blob in it.blobs]
    return f"{outcome}, id {it.tool_use_id}", "\n".join([text, *blobs])


def _message(it: Any) -> tuple[str, str]:
    return f", from session {it.from_session_id}" if it.from_session_id else "", blocks_text(it.content_json)


def _offered(it: Any) -> tuple[str, str]:
    return f", {it.hand}", ", ".join(str(tool.get("name")) for tool in json.loads(it.tools_json))


def _other(it: Any) -> tuple[str, str]:
    fields = MessageToDict(it, preserving_proto_field_name=True)
    return "", json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if fields else ""


_TELL: dict[str, Callable[[Any], tuple[str, str]]] = {
    "message_received": _message,
    "model_replied": lambda it: (f", {it.stop_reason}", blocks_text(it.content_json)),
    "tool_started": lambda it: (f", {it.name} on {it.hand}, id {it.tool_use_id}", ""),
    "tool_finished": _finished,
    "custom_tool_answered": _finished,
    "tools_offered": _offered,
    "harness_woke": lambda it: ("", ""),
    "sandbox_provisioned": lambda it: (f", {it.hand}", f"environment {it.environment}"),
}
assert REFERENCE == "handmesh_blob"  # `match` takes no name

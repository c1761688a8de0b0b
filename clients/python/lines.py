"""What `converse` prints: one JSON object for each event and each preview, the same in every language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mesh_client import MeshError

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1.event_pb2 import Event, TurnEndReason
from handmesh.session.v1.session_pb2 import Preview


def of_event(event: Event) -> dict[str, Any]:
    """Returns position, kind and what is essential of the kind. Raises MeshError at one that must not be skipped."""
    kind = event.WhichOneof("kind")
    if kind is None:
        if not event.ignorable:
            where = {"position": str(event.position)}
            raise MeshError("UNIMPLEMENTED", "EVENT_UNKNOWN", "an event of a newer contract", where)
        kind = "unknown"
    essence = _ESSENCE.get(kind, lambda _: {})
    return {"event": kind, "position": event.position, **essence(getattr(event, kind, None))}


def of_preview(preview: Preview) -> dict[str, Any]:
    """Returns the piece, and where it belongs."""
    delta = preview.WhichOneof("delta") or "unknown"
    piece = getattr(preview, delta, "")
    return {
        "preview": delta,
        "event_id": preview.event_id,
        "block": preview.block_index,
        "offset": preview.offset,
        "piece": piece if isinstance(piece, str) else "",
    }


def of_error(error: MeshError) -> dict[str, Any]:
    """Returns why a call was refused."""
    return {"code": error.code, "reason": error.reason, "metadata": error.metadata}


def _result(result: ToolResult) -> dict[str, Any]:
    outcome = ToolOutcome.Name(result.outcome).removeprefix("TOOL_OUTCOME_")
    return {"outcome": outcome, "output": result.output}


_ESSENCE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "message_received": lambda it: {"content": it.content_json},
    "model_replied": lambda it: {"content": it.content_json, "stop_reason": it.stop_reason},
    "tool_started": lambda it: {"tool_use_id": it.tool_use_id, "name": it.name, "hand": it.hand},
    "tool_finished": lambda it: {"tool_use_id": it.tool_use_id, **_result(it.result)},
    "tool_confirmation_requested": lambda it: {
        "tool_use_id": it.tool_use_id,
        "name": it.name,
        "call_hash": it.call_hash,
    },
    "tool_confirmed": lambda it: {"tool_use_id": it.tool_use_id, "allowed": it.allowed},
    "custom_tool_requested": lambda it: {"tool_use_id": it.tool_use_id, "name": it.name, "input": it.input_json},
    "custom_tool_answered": lambda it: {"tool_use_id": it.tool_use_id, **_result(it.result)},
    "turn_ended": lambda it: {"reason": TurnEndReason.Name(it.reason).removeprefix("TURN_END_REASON_")},
}

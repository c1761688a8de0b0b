"""One line for one event: what people read in `handmesh events`, in `handmesh run` and in the demo. Pure.

All text is escaped here, so that what is returned can be printed as it is.
"""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.cli.escape import one_line
from handmesh.cli.spending import name_of, reached, spent
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2

CONTENT_WIDTH = 160
"""Characters of an event's content in a line, unless the caller knows better."""


def kind_of(event: event_pb2.Event) -> str:
    """Returns the event's kind as the contract names it; `unknown` for one that this version does not know."""
    return event.WhichOneof("kind") or "unknown"


def time_of(moment: Timestamp) -> str:
    """Returns the local time of day, to the millisecond."""
    local = moment.ToDatetime(tzinfo=UTC).astimezone()
    return local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03d}"


def content_of(event: event_pb2.Event, width: int = CONTENT_WIDTH) -> str:
    """Returns what the event says, in at most `width` characters."""
    return one_line(_content(event), width)


def enum_word(enum: Any, value: int, prefix: str) -> str:
    """Returns an enum's value as one lower-case word, or its number when this version does not know it."""
    name = enum.Name(value) if value in enum.values() else str(value)
    return str(name).removeprefix(prefix).lower().replace("_", " ")


def outcome_word(result: tool_pb2.ToolResult) -> str:
    """Returns how a tool call ended, with its exit code or signal where that says more."""
    word = enum_word(tool_pb2.ToolOutcome, result.outcome, "TOOL_OUTCOME_")
    if result.HasField("exit_code") and result.exit_code != 0:
        return f"{word}, exit {result.exit_code}"
    return f"{word}, signal {result.signal}" if result.HasField("signal") else word


def turn_text(ended: event_pb2.TurnEnded) -> str:
    """Returns why a turn ended, what it used and what that cost."""
    word = enum_word(event_pb2.TurnEndReason, ended.reason, "TURN_END_REASON_")
    return ", ".join(filter(None, [word, spent(ended.usage, ended.cost_micros)]))


def blocks_of(content_json: str) -> list[dict[str, Any]]:
    """Returns the content blocks of a JSON text; none when it is no array of objects."""
    try:
        blocks = json.loads(content_json)
    except (ValueError, RecursionError):
        return []
    return [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []


def call_text(name: str, tool_input: Any) -> str:
    """Returns a tool call as people write it: the one argument that matters, or all as JSON."""
    if isinstance(tool_input, dict):
        if isinstance(command := tool_input.get("command"), str):
            return f"{name}: {command}"
        if isinstance(path := tool_input.get("path") or tool_input.get("file_path"), str):
            return f"{name}: {path}"
        if not tool_input:
            return name
    return f"{name}: {json.dumps(tool_input, ensure_ascii=False)}"


def _blocks_text(content_json: str) -> str:
    parts = []
    for block in blocks_of(content_json):
        match block.get("type"):
            case "text":
                parts.append(str(block.get("text", "")))
            case "tool_use" | "server_tool_use":
                parts.append(f"→ {call_text(str(block.get('name')), block.get('input'))}")
            case "thinking":
                parts.append("(thinking)")
            case other:
                parts.append(f"({other})")
    return "  ".join(parts)


def _content(event: event_pb2.Event) -> str:
    match kind_of(event):
        case "session_started":
            return _config_text(event.session_started.config)
        case "config_changed":
            return _config_text(event.config_changed.config)
        case "message_received":
            message = event.message_received
            sender = f"from {message.from_session_id}: " if message.from_session_id else ""
            return sender + _blocks_text(message.content_json)
        case "child_started":
            return f"{event.child_started.child_session_id}, for {event.child_started.tool_use_id}"
        case "child_rested":
            return f"{event.child_rested.child_session_id}: {event.child_rested.kind}"
        case "child_ended":
            return f"{event.child_ended.child_session_id}: {event.child_ended.reason}"
        case "model_replied":
            reply = event.model_replied
            said = [reply.stop_reason, spent(reply.usage, reply.cost_micros)]
            return f"{_blocks_text(reply.content_json)}  [{', '.join(filter(None, said))}]"
        case "context_compacted":
            it = event.context_compacted
            said = [f"positions {it.from_position} to {it.to_position - 1}", spent(it.usage, it.cost_micros)]
            return f"{it.policy}  [{', '.join(filter(None, said))}]"
        case "tools_offered":
            names = [str(tool.get("name")) for tool in blocks_of(event.tools_offered.tools_json)]
            return f"{event.tools_offered.hand}: {', '.join(names)}"
        case "tool_finished":
            return _result_text(event.tool_finished.tool_use_id, event.tool_finished.result)
        case "custom_tool_answered":
            return _result_text(event.custom_tool_answered.tool_use_id, event.custom_tool_answered.result)
        case "turn_ended":
            return turn_text(event.turn_ended)
        case "budget_reached":
            return f"{name_of(event.budget_reached.budget)}: {reached(event.budget_reached)}"
        case "error_raised":
            error = event.error_raised
            return f"{error.part}: {error.message} [{error.reason}]"
        case "unknown":
            return "of a newer version"
        case kind:
            return _fields_text(getattr(event, kind))


def _config_text(config: Any) -> str:
    parts = [config.harness or "messages", config.model or "default model"]
    parts += [f"hand {name}={spec.environment or spec.standing_hand or 'default'}" for name, spec in _sorted(config)]
    parts += [f"mcp {server.name}={server.url}" for server in config.mcp_servers]
    return ", ".join([*parts, f"“{config.title}”"] if config.title else parts)


def _sorted(config: Any) -> list[tuple[str, Any]]:
    return sorted(config.hands.items())


def _result_text(tool_use_id: str, result: tool_pb2.ToolResult) -> str:
    return f"{tool_use_id} ({outcome_word(result)}): {result.output}"


def _fields_text(message: Any) -> str:
    """Returns the set fields of a small message, `name=value`."""
    return ", ".join(f"{field.name}={_value_text(value)}" for field, value in message.ListFields())


def _value_text(value: Any) -> str:
    if isinstance(value, Timestamp):
        return time_of(value)
    return value if isinstance(value, str) else " ".join(str(value).split())

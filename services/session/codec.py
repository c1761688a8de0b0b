"""Between protobuf and the core's values: what the rules need of an event, and how events are stored."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event, TokenUsage, TurnEndReason
from handmesh.session.v1.session_pb2 import GetEventsResponse, Session, SessionStatus
from services.kit import ids, tracing
from services.kit.errors import Invalid, Refused
from services.session import core
from services.session.core import Fact, Usage, WriteState
from services.session.emitters import SESSION, UNKNOWN
from services.session.log import StoredBatch

DEFAULT_HARNESS = "messages"
KINDS = frozenset(field.name for field in Event.DESCRIPTOR.oneofs_by_name["kind"].fields)
_PAID = ("model_replied", "context_compacted")  # what a model wrote
_FIRST_KIND = 10  # fields below are every event's own

# Fields that hold JSON, and what it must be. A client's nonsense in a log would stop every harness for ever.
_JSON: dict[str, tuple[tuple[str, type[list[Any]] | type[dict[str, Any]]], ...]] = {
    "message_received": (("content_json", list),),
    "model_replied": (("content_json", list),),
    "content_rendered": (("content_json", list),),
    "context_compacted": (("content_json", list),),
    "tools_offered": (("tools_json", list),),
    "custom_tool_requested": (("input_json", dict),),
}


def fact_of(event: Event, emitter: str) -> Fact:
    """Makes the fact of an event that somebody emits. Mints an `event_id` if there is none.

    Raises Invalid (`EVENT_INVALID`, `ID_INVALID`) for an event that says nothing, or nonsense.
    """
    kind = event.WhichOneof("kind") or _unknown_kind(event)
    if event.event_id:
        ids.check("event_id", event.event_id)
    else:
        event.event_id = ids.mint("evt")
    if not event.traceparent:
        event.traceparent = tracing.current()  # whoever emits it may be no tracer
    elif len(event.traceparent) > 128:
        raise Invalid("EVENT_INVALID", "traceparent has at most 128 characters", field="traceparent")
    body: Any = getattr(event, kind) if kind else None
    if kind == "message_received" and emitter != SESSION:
        body.from_session_id = ""  # only a session's own grant says so
    blocks = _check_json(kind, body)
    _check_ids(kind, body)
    return stored_fact(event, emitter, blocks)


def stored_fact(event: Event, emitter: str = "", blocks: list[Any] | None = None) -> Fact:
    """Makes the fact of an event that is in a log. `blocks` is a reply's content, if it was parsed already."""
    kind = event.WhichOneof("kind") or UNKNOWN
    body: Any = getattr(event, kind) if kind else None
    config = body.config if kind in ("session_started", "config_changed") else None
    return Fact(
        kind=kind,
        event_id=event.event_id,
        emitter=emitter or event.emitter,
        size=event.ByteSize(),
        ignorable=event.ignorable,
        tool_use_id=getattr(body, "tool_use_id", "") if kind.startswith(("tool_", "custom_tool_")) else "",
        calls=_calls(json.loads(body.content_json) if blocks is None else blocks) if kind == "model_replied" else (),
        read_position=getattr(body, "read_position", 0),
        usage=_usage(body.usage) if kind in _PAID else core.NO_USAGE,
        cost_micros=body.cost_micros if kind in _PAID else 0,
        call_hash=body.call_hash if kind in ("tool_confirmation_requested", "tool_confirmed") else "",
        allowed=kind == "tool_confirmed" and body.allowed,
        budget=body.budget if kind == "budget_reached" else "",
        reason=body.reason if kind == "turn_ended" else 0,
        tenant=config.tenant if config is not None else "",
        harness=(config.harness or DEFAULT_HARNESS) if config is not None else "",
        parent=config.parent_session_id if config is not None else "",
        max_depth=_at_least_one(config, "max_depth") if config is not None else 0,
        max_children=_at_least_one(config, "max_children") if config is not None else 0,
        child=body.child_session_id if kind.startswith("child_") else "",
    )


def _at_least_one(config: SessionConfig, limit: str) -> int:
    return max(1, getattr(config.child_limits, limit)) if config.HasField("child_limits") else 0


def _unknown_kind(event: Event) -> str:
    if not any(field.field_number >= _FIRST_KIND for field in iter(UnknownFieldSet(event))):
        raise Invalid("EVENT_INVALID", "the event has no kind", field="kind")
    if not event.ignorable:
        raise Invalid(
            "EVENT_INVALID", "this server does not know the event's kind, and it may not be skipped", field="kind"
        )
    return UNKNOWN


def parse_json(
    text: str, kind: type[list[Any]] | type[dict[str, Any]], field: str, reason: str = "EVENT_INVALID"
) -> Any:
    """Parses strict JSON of one type, or raises Invalid with the reason."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        shown = "an array" if kind is list else "an object"
        raise Invalid(reason, f"{field} must be {shown} in JSON", field=field)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are Python's, not JSON's


def _check_json(kind: str, body: Any) -> list[Any] | None:
    blocks: list[Any] | None = None
    for field, shape in _JSON.get(kind, ()):
        value = parse_json(getattr(body, field), shape, field)
        if field == "content_json":
            blocks = value
    if kind in ("tool_finished", "custom_tool_answered"):
        if not body.HasField("result"):
            raise Invalid("EVENT_INVALID", f"{kind} needs a result", field="result")
        if body.result.content_json:
            parse_json(body.result.content_json, list, "result.content_json")
    if blocks is not None:
        if kind != "model_replied" and not blocks:
            raise Invalid("EVENT_INVALID", "content_json has no block", field="content_json")
        if not all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks):
            raise Invalid("EVENT_INVALID", "content_json must be blocks with a type", field="content_json")
    return blocks if kind == "model_replied" else None


def _check_ids(kind: str, body: Any) -> None:
    if kind.startswith(("tool_", "custom_tool_")):
        ids.check("tool_use_id", body.tool_use_id)


def _calls(blocks: Iterable[Any]) -> tuple[str, ...]:
    calls = tuple(block.get("id") for block in blocks if block["type"] == "tool_use")
    for call in calls:
        if not isinstance(call, str) or not ids.CHOSEN.fullmatch(call):
            raise Invalid("EVENT_INVALID", "a tool call of the reply has no proper id", field="content_json")
    return calls


def _usage(usage: TokenUsage) -> Usage:
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )


def timestamp(nanoseconds: int) -> Timestamp:
    """Makes a timestamp from nanoseconds since 1970."""
    return Timestamp(seconds=nanoseconds // 1_000_000_000, nanos=nanoseconds % 1_000_000_000)


def nanoseconds(moment: Timestamp) -> int:
    """Reads a timestamp as nanoseconds since 1970."""
    return moment.seconds * 1_000_000_000 + moment.nanos


def seal(events: Sequence[Event], emitters: Sequence[str], first_position: int, time: int, epoch: int) -> bytes:
    """Sets what the log sets and returns the events as they are stored, and served, for ever."""
    seconds, nanos = divmod(time, 1_000_000_000)
    for position, (event, emitter) in enumerate(zip(events, emitters, strict=True), first_position):
        event.position = position
        event.emit_time.seconds, event.emit_time.nanos = seconds, nanos
        event.emitter = emitter
        event.epoch = position if event.HasField("harness_woke") else epoch
    return GetEventsResponse(events=events).SerializeToString()


def unseal(data: bytes) -> Sequence[Event]:
    """Returns the events of one or more stored batches. Raises Refused (`SESSION_DAMAGED`) for what is none."""
    try:
        return GetEventsResponse.FromString(data).events
    except DecodeError:
        raise Refused("SESSION_DAMAGED", "a stored batch of the session's log cannot be read") from None


def unsealed(data: bytes) -> Sequence[Event]:
    """Returns the events of a stored batch; none at all for what is no batch."""
    try:
        return unseal(data)
    except Refused:
        return ()


def split(data: bytes) -> list[bytes]:
    """Cuts stored batches into their events, each still an entry of the list: joined they are the same bytes."""
    found: list[bytes] = []
    start, end = 0, len(data)
    while start < end:
        size, shift, at = 0, 0, start + 1
        while True:
            byte = data[at]
            size |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                break
            shift += 7
        found.append(data[start : at + size])
        start = at + size
    return found


_NOTE = struct.Struct(">QH64s")


def note(batch: StoredBatch) -> bytes:
    """Packs a batch for the wire."""
    return _NOTE.pack(batch.first_position, batch.count, batch.prev_digest.encode()) + batch.data


def noted(data: bytes) -> StoredBatch:
    """Unpacks a batch from the wire."""
    first, count, digest = _NOTE.unpack_from(data)
    return StoredBatch(first, count, digest.rstrip(b"\0").decode(), data[_NOTE.size :])


def session(session_id: str, state: WriteState, config: SessionConfig) -> Session:
    """Says what the log says of a session as a whole."""
    return Session(
        session_id=session_id,
        config=config,
        status=SessionStatus.ValueType(core.status(state)),
        create_time=timestamp(state.create_time),
        update_time=timestamp(state.update_time),
        last_position=state.head,
        epoch=state.epoch,
        usage=TokenUsage(
            input_tokens=state.usage.input,
            output_tokens=state.usage.output,
            cache_creation_input_tokens=state.usage.cache_creation,
            cache_read_input_tokens=state.usage.cache_read,
        ),
        cost_micros=state.cost_micros,
        turns=state.turns,
        waiting_tool_use_ids=core.waiting(state),
        last_turn_end=TurnEndReason.ValueType(state.last_turn_end),
        archived=state.archived,
        paused_budget=state.paused,
    )

"""Events to facts, and what a harness decides to events.

A little longer than a module should be: a short function for each kind of event, one way and back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.session.v1 import event_pb2
from handmesh.session.v1.event_pb2 import Event
from services.harness import core
from services.harness.adapters.configs import config_of
from services.harness.adapters.results import result_message, result_of
from services.harness.blocks import INVALID_JSON
from services.harness.usage import NO_USAGE, Reached, Usage

if TYPE_CHECKING:
    from services.harness.ports import Answer


def fact_of(event: Event) -> core.Fact:
    """Returns what deciding needs of an event."""
    kind = event.WhichOneof("kind")
    if kind is None:
        if event.ignorable:
            return core.Other(event.position, time=_when(event))
        return core.Unknown(event.position, "unknown", time=_when(event))
    make = _FACTS.get(kind)
    return make(event, getattr(event, kind)) if make else core.Other(event.position, time=_when(event))


def _when(event: Event) -> float:
    return _time(event.emit_time)


def _time(moment: Timestamp) -> float:
    return moment.seconds + moment.nanos / 1e9


def _offered(event: Event, it: event_pb2.ToolsOffered) -> core.Fact:
    specs = tuple(
        core.ToolSpec(
            tool["name"],
            tool.get("description", ""),
            _spelled(tool["input_schema"]) if "input_schema" in tool else "",
            tool.get("idempotent", False),
            tool.get("read_only", False),
            type=tool.get("type", ""),
        )
        for tool in json.loads(it.tools_json)
    )
    return core.Offered(event.position, it.hand, specs, failed=not it.digest, time=_when(event))


def _spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _replied(event: Event, it: event_pb2.ModelReplied) -> core.Fact:
    calls = calls_of(it.content_json, it.stop_reason)
    usage = usage_of(it.usage, it.cost_micros)
    return core.Replied(
        event.position,
        it.content_json,
        it.stop_reason,
        it.read_position,
        calls,
        usage,
        priced=it.HasField("cost_micros"),
        time=_when(event),
    )


def _compacted(event: Event, it: event_pb2.ContextCompacted) -> core.Fact:
    usage = usage_of(it.usage, it.cost_micros)
    return core.Compacted(
        event.position, it.to_position, it.content_json, usage, it.HasField("cost_micros"), time=_when(event)
    )


def usage_of(usage: event_pb2.TokenUsage, cost_micros: int = 0) -> Usage:
    """Returns tokens and their cost as a value."""
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
        cost_micros,
    )


def calls_of(content: str, stop_reason: str) -> tuple[core.ToolCall, ...]:
    """Finds the tool calls in an answer. Those that do not run are cut.

    The last one when the answer broke off at its length limit, one whose input is no JSON object, and all of an answer
    that was refused.
    """
    if "tool_use" not in content and "\\u" not in content:
        return ()
    blocks: list[dict[str, Any]] = json.loads(content)
    broken = stop_reason in ("max_tokens", "model_context_window_exceeded")
    return tuple(
        core.ToolCall(
            block["id"],
            block["name"],
            json.dumps(block["input"], ensure_ascii=False),
            cut=(broken and place == len(blocks) - 1)
            or stop_reason == "refusal"
            or block["input"].keys() == {INVALID_JSON},
        )
        for place, block in enumerate(blocks)
        if block.get("type") == "tool_use"
    )


_FACTS: dict[str, Any] = {
    "session_started": lambda event, it: core.Started(event.position, config_of(it.config), time=_when(event)),
    "config_changed": lambda event, it: core.Configured(event.position, config_of(it.config), time=_when(event)),
    "message_received": lambda event, it: core.Message(
        event.position, it.content_json, event.traceparent, time=_when(event)
    ),
    "interrupt_requested": lambda event, _: core.Interrupt(event.position, time=_when(event)),
    "harness_woke": lambda event, _: core.Woke(event.position, time=_when(event)),
    "tools_offered": _offered,
    "model_replied": _replied,
    "context_compacted": _compacted,
    "tool_started": lambda event, it: core.CallStarted(
        event.position, it.tool_use_id, event.epoch, it.hand, it.sandbox_id, time=_when(event)
    ),
    "tool_finished": lambda event, it: core.CallFinished(
        event.position, it.tool_use_id, result_of(it.result), time=_when(event)
    ),
    "tool_confirmation_requested": lambda event, it: core.ConfirmationAsked(
        event.position, it.tool_use_id, it.call_hash, time=_when(event)
    ),
    "tool_confirmed": lambda event, it: core.Confirmed(
        event.position, it.tool_use_id, it.allowed, it.message, it.call_hash, time=_when(event)
    ),
    "custom_tool_requested": lambda event, it: core.CustomAsked(
        event.position, it.tool_use_id, _time(it.due_time) if it.HasField("due_time") else None, time=_when(event)
    ),
    "custom_tool_answered": lambda event, it: core.CustomAnswered(
        event.position, it.tool_use_id, result_of(it.result), time=_when(event)
    ),
    "sandbox_provisioned": lambda event, it: core.Provisioned(
        event.position, it.hand, it.sandbox_id, it.generation, time=_when(event)
    ),
    "hand_attached": lambda event, it: core.Attached(
        event.position,
        it.hand,
        it.sandbox_id,
        it.from_session_id,
        it.read_only,
        it.description,
        time=_when(event),
    ),
    "hand_transferred": lambda event, it: core.Transferred(
        event.position, it.hand, it.sandbox_id, it.to_session_id, time=_when(event)
    ),
    "hand_detached": lambda event, it: core.Detached(
        event.position,
        it.hand,
        it.sandbox_id,
        it.reason if event.emitter == "sandbox" else "",
        time=_when(event),
    ),
    "door_refused": lambda event, it: core.DoorRefused(
        event.position, it.door, it.target, it.reason, it.message, time=_when(event)
    ),
    "retry_scheduled": lambda event, it: core.Retry(
        event.position, it.attempt, _time(it.retry_time), it.reason, time=_when(event)
    ),
    "content_rendered": lambda event, it: core.Rendered(
        event.position, it.source_sha256, it.content_json, time=_when(event)
    ),
    "turn_ended": lambda event, it: core.Ended(
        event.position,
        cast("core.EndReason", event_pb2.TurnEndReason.Name(it.reason).removeprefix("TURN_END_REASON_")),
        it.read_position,
        time=_when(event),
    ),
    "budget_reached": lambda event, it: core.Paused(event.position, it.budget, time=_when(event)),
    "session_ended": lambda event, _: core.SessionOver(event.position, time=_when(event)),
}


# --- what a harness emits ---
def woke(event_id: str, harness: str, instance: str) -> Event:
    """A harness takes the session up."""
    return Event(event_id=event_id, harness_woke=event_pb2.HarnessWoke(harness=harness, instance=instance))


def offered(epoch: int, head: int, hand: str, specs: Sequence[core.ToolSpec], failed: bool = False) -> Event:
    """A hand's tools were looked up, or could not be (`failed`: an offer without a digest)."""
    tools: list[dict[str, Any]] = []
    for spec in specs:
        marks = {"idempotent": spec.idempotent, "read_only": spec.read_only}
        tools.append({**spec.definition(), **{mark: True for mark, holds in marks.items() if holds}})
    text = _spelled(tools)
    digest = "" if failed else hashlib.sha256(text.encode()).hexdigest()
    it = event_pb2.ToolsOffered(hand=hand, tools_json=text, digest=digest)
    return Event(event_id=f"offered-{epoch}-{head}-{hand}", tools_offered=it)


def provisioned(
    hand: str, sandbox_id: str, environment: str, generation: int, unenforced_limits: Sequence[str]
) -> Event:
    """A sandbox was made for a hand."""
    it = event_pb2.SandboxProvisioned(
        hand=hand,
        sandbox_id=sandbox_id,
        environment=environment,
        generation=generation,
        unenforced_limits=unenforced_limits,
    )
    return Event(event_id=f"provisioned-{hand}-{generation}", sandbox_provisioned=it)


def detached(hand: str, sandbox_id: str, reason: str) -> Event:
    """A hand's sandbox is gone."""
    it = event_pb2.HandDetached(hand=hand, sandbox_id=sandbox_id, reason=reason)
    return Event(event_id=f"detached-{sandbox_id}", hand_detached=it)


def call_started(call: core.ToolCall, hand: str, sandbox_id: str) -> Event:
    """A call is about to be sent to a hand."""
    it = event_pb2.ToolStarted(tool_use_id=call.id, name=call.name, hand=hand, sandbox_id=sandbox_id)
    return Event(event_id=f"started-{call.id}", tool_started=it)


def call_finished(call_id: str, result: core.ToolResult, blobs: Sequence[core.BlobRef] = ()) -> Event:
    """A call was settled. The blobs hold what was too big for the event."""
    refs = [_blob(each) for each in blobs]
    it = event_pb2.ToolFinished(tool_use_id=call_id, result=result_message(result), blobs=refs)
    return Event(event_id=finished_id(call_id), tool_finished=it)


def finished_id(call_id: str) -> str:
    """Names the event that settles a call."""
    return f"finished-{call_id}"


def _blob(ref: core.BlobRef) -> event_pb2.BlobRef:
    return event_pb2.BlobRef(blob_id=ref.blob_id, size=ref.size, sha256=ref.sha256, media_type=ref.media_type)


def confirmation_asked(session_id: str, position: int, call: core.ToolCall) -> Event:
    """A person is to decide about a call of the reply at `position`."""
    stored = json.dumps([call.name, call.input, session_id, position], ensure_ascii=False)
    it = event_pb2.ToolConfirmationRequested(
        tool_use_id=call.id, name=call.name, call_hash=hashlib.sha256(stored.encode()).hexdigest()
    )
    return Event(event_id=f"confirm-{call.id}", tool_confirmation_requested=it)


def custom_asked(call: core.ToolCall, due: float | None) -> Event:
    """A client is to run a call, before `due` (Unix time, seconds) if there is such a time."""
    it = event_pb2.CustomToolRequested(tool_use_id=call.id, name=call.name, input_json=call.input)
    if due is not None:
        it.due_time.FromNanoseconds(int(due * 1e9))
    return Event(event_id=f"custom-{call.id}", custom_tool_requested=it)


def turn_ended(
    epoch: int, head: int, reason: core.EndReason, read: int, stop_reason: str, used: Usage = NO_USAGE
) -> Event:
    """The turn ended, having used so much."""
    it = event_pb2.TurnEnded(
        reason=event_pb2.TurnEndReason.Value(f"TURN_END_REASON_{reason}"),
        read_position=read,
        stop_reason=stop_reason,
        usage=event_pb2.TokenUsage(
            input_tokens=used.input,
            output_tokens=used.output,
            cache_creation_input_tokens=used.cache_creation,
            cache_read_input_tokens=used.cache_read,
        ),
        cost_micros=used.cost_micros,
    )
    return Event(event_id=f"ended-{epoch}-{head}", turn_ended=it)


def budget_reached(epoch: int, head: int, reached: Reached) -> Event:
    """A budget is used up: the session pauses."""
    it = event_pb2.BudgetReached(budget=reached.budget, limit=reached.limit, used=reached.used)
    return Event(event_id=f"budget-{epoch}-{head}", budget_reached=it)


def error_raised(
    epoch: int,
    head: int,
    part: str,
    reason: str,
    message: str,
    retryable: bool,
    about: str = "",
    *,
    http_status: int | None = None,
    silent_service: str = "",
    since: float | None = None,
) -> Event:
    """Something failed that the session survived. `about` tells events of one moment and part apart."""
    it = event_pb2.ErrorRaised(
        reason=reason,
        message=message,
        part=part,
        retryable=retryable,
        http_status=http_status,
        silent_service=silent_service,
    )
    if since is not None:
        it.since_time.FromNanoseconds(int(since * 1e9))
    return Event(event_id=f"error-{epoch}-{head}-{part}-{about}", error_raised=it, ignorable=True)


def rendered(source_sha256: str, content: str, why: str, blobs: Sequence[core.BlobRef]) -> Event:
    """Content that the API does not take was made fit. A reader that skips it only sends the content as it was."""
    it = event_pb2.ContentRendered(
        source_sha256=source_sha256, content_json=content, why=why, blobs=[_blob(each) for each in blobs]
    )
    return Event(event_id=f"rendered-{source_sha256}", content_rendered=it, ignorable=True)


def compacted(
    epoch: int, head: int, end: int, content: str, policy: str, answer: Answer, request_hash: str, cost: int | None
) -> Event:
    """The conversation before a position was summarised."""
    it = event_pb2.ContextCompacted(
        from_position=1,
        to_position=end,
        content_json=content,
        usage=answer.usage,
        policy=policy,
        model=answer.model,
        message_id=answer.message_id,
        request_hash=request_hash,
        cost_micros=cost,
    )
    return Event(event_id=f"compacted-{epoch}-{head}", context_compacted=it)


def retry_scheduled(
    epoch: int, head: int, reason: str, attempt: int, at: float, http_status: int | None = None
) -> Event:
    """A failed call of the model will be made again."""
    when = Timestamp()
    when.FromNanoseconds(int(at * 1e9))
    it = event_pb2.RetryScheduled(reason=reason, attempt=attempt, retry_time=when, http_status=http_status)
    return Event(event_id=f"retry-{epoch}-{head}", retry_scheduled=it)

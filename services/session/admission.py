"""Which events may be appended to a log: the rules, as pure as `core`."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace

from services.kit.errors import Conflict, Denied, Full, Gone, Invalid, Refused, ServiceError
from services.session.core import Call, Fact, WriteState, fold, known, name_of
from services.session.emitters import HARNESS, may_emit

MAX_EVENTS = 100_000  # in one session
RESERVED_EVENTS = 64  # on top, so that a full session can still be ended and archived
MAX_SESSION_BYTES = 1024 * 1024 * 1024
MAX_EVENT_BYTES = 1024 * 1024
MAX_BATCH_EVENTS = 16
MAX_BATCH_BYTES = 1024 * 1024

_PUT_AWAY = frozenset({"session_archived", "session_restored"})
_ENDINGS = _PUT_AWAY | {"session_ended"}


def admit(
    state: WriteState,
    facts: Sequence[Fact],
    *,
    epoch: int = 0,
    expected_position: int | None = None,
    max_bytes: int = MAX_SESSION_BYTES,
) -> int:
    """Returns the position that the first of these events gets, all of which may be appended in one step.

    Raises what `EmitEvent` promises, and leaves the state as it is. That the first event's id may be in the log
    already is the caller's to ask before (`known`).
    """
    check_emitters(facts)
    check_sizes(facts)
    if state.damaged:
        raise Refused("SESSION_DAMAGED", "the session's log is damaged: it can be read, and never written again")
    if state.archived and facts[0].kind not in ("session_restored", "session_forked"):
        raise Refused("SESSION_ARCHIVED", "the session is archived; restore it to write to it")
    if state.ended and facts[0].kind not in _PUT_AWAY:
        raise Refused("SESSION_ENDED", "the session has ended")
    if facts[0].emitter == HARNESS and facts[0].kind != "harness_woke" and (epoch != state.epoch or not epoch):
        raise Conflict("EPOCH_STALE", f"the session's epoch is {state.epoch}, not {epoch}", epoch=state.epoch)
    if expected_position is not None and expected_position != state.head:
        raise Conflict(
            "POSITION_CONFLICT",
            f"the log's last position is {state.head}, not {expected_position}",
            last_position=state.head,
        )
    check_room(state, facts, max_bytes)
    draft = state if len(facts) == 1 else _draft_of(state)
    for fact in facts:
        _admit_one(draft, fact, facts, expected_position)
        if draft is not state:
            fold(draft, fact, 0)
    return state.head + 1


def check_room(state: WriteState, facts: Sequence[Fact], max_bytes: int) -> None:
    """Raises Full (`SESSION_FULL`) when the session has as many events or bytes as it may have."""
    most = MAX_EVENTS + RESERVED_EVENTS if facts[0].kind in _ENDINGS else MAX_EVENTS
    if state.head + len(facts) > most:
        raise Full("SESSION_FULL", f"a session has at most {most} events", limit=most)
    if state.size >= max_bytes and facts[0].kind not in _ENDINGS:
        raise Full("SESSION_FULL", f"a session has at most {max_bytes} bytes", limit=max_bytes)


def _draft_of(state: WriteState) -> WriteState:
    return replace(
        state,
        calls=dict(state.calls),
        hashes=dict(state.hashes),
        children=dict(state.children),
        names=ChainMap({}, state.names),
    )


def check_emitters(facts: Sequence[Fact]) -> None:
    """Raises Denied for the first event that its emitter may not emit."""
    for fact in facts:
        if not may_emit(fact.emitter, fact.kind, ignorable=fact.ignorable):
            shown = fact.kind or "unknown"
            raise Denied("EMITTER_DENIED", f"a {fact.emitter} may not emit {shown}", kind=shown)


def check_sizes(facts: Sequence[Fact]) -> None:
    """Raises Invalid for an event over its limit, or a batch over the batch's."""
    for fact in facts:
        if fact.size > MAX_EVENT_BYTES:
            raise Invalid(
                "EVENT_TOO_LARGE", f"an event has at most {MAX_EVENT_BYTES} bytes", limit_bytes=MAX_EVENT_BYTES
            )
    if len(facts) > MAX_BATCH_EVENTS:
        raise Invalid("ARGUMENT_INVALID", f"a batch has at most {MAX_BATCH_EVENTS} events", field="events")
    if sum(fact.size for fact in facts) > MAX_BATCH_BYTES:
        raise Invalid("EVENT_TOO_LARGE", f"a batch has at most {MAX_BATCH_BYTES} bytes", limit_bytes=MAX_BATCH_BYTES)


def _admit_one(state: WriteState, fact: Fact, facts: Sequence[Fact], expected_position: int | None) -> None:
    if known(state, fact.event_id):
        raise Invalid("EVENT_INVALID", f"event_id {fact.event_id} names an event already", field="event_id")
    if (fact.kind == "session_started") != (state.head == 0):
        raise Invalid("EVENT_INVALID", "session_started is a log's first event, and only that", field="kind")
    match fact.kind:
        case "harness_woke":
            if expected_position is None:
                raise Invalid("ARGUMENT_INVALID", "harness_woke needs expected_position", field="expected_position")
            if len(facts) > 1:
                raise Invalid("EVENT_INVALID", "harness_woke is emitted alone", field="kind")
        case "model_replied":
            if len(set(fact.calls)) < len(fact.calls):
                raise Invalid("EVENT_INVALID", "two tool calls of the reply have the same id", field="content_json")
            for call in fact.calls:
                if name_of("call", call) in state.names:
                    raise _settled(call)
        case "tool_started" | "tool_finished" | "tool_confirmation_requested" | "custom_tool_requested":
            if fact.tool_use_id not in state.calls:
                raise _not_open(state, fact.tool_use_id)
        case "tool_confirmed":
            _admit_answer(state, fact.tool_use_id, Call.ASKED)
            _admit_decision(state, fact)
        case "custom_tool_answered":
            _admit_answer(state, fact.tool_use_id, Call.REQUESTED)
        case "child_started":
            check_children(state)
        case "child_ended" if fact.child not in state.children:
            raise Invalid("EVENT_INVALID", "no such child is at work", field="child_session_id")


def check_children(state: WriteState) -> None:
    """Raises Refused (`CHILD_LIMIT`) for a session that has started as many others as it may."""
    if state.children_started >= state.max_children:
        message = f"the session may start {state.max_children} sessions in all"
        raise Refused("CHILD_LIMIT", message, limit="max_children")


def _admit_answer(state: WriteState, call: str, needed: Call) -> None:
    step = state.calls.get(call)
    if step is needed:
        return
    if step in (None, Call.OPEN):
        raise _not_open(state, call)
    raise _settled(call)


def _admit_decision(state: WriteState, fact: Fact) -> None:
    """Raises Refused for a decision about another call than the stored one. To decline one no hash is needed."""
    if fact.call_hash != state.hashes.get(fact.tool_use_id) and (fact.call_hash or fact.allowed):
        raise Refused(
            "CALL_HASH_MISMATCH",
            "call_hash is not the one that the confirmation was requested with",
            tool_use_id=fact.tool_use_id,
        )


def _not_open(state: WriteState, call: str) -> ServiceError:
    if call not in state.calls and name_of("call", call) in state.names:
        return _settled(call)
    return Refused("TOOL_CALL_UNKNOWN", f"no such tool call is open: {call}", tool_use_id=call)


def _settled(call: str) -> ServiceError:
    return Refused("TOOL_CALL_SETTLED", f"the tool call has its result already: {call}", tool_use_id=call)


def check_owner(session_id: str, state: WriteState, tenant: str | None) -> None:
    """Raises Gone for a session that is not there, or not the tenant's: a stranger cannot tell which."""
    if not (state.head or state.damaged) or tenant not in (None, state.tenant):
        raise Gone("SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id)

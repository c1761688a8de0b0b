"""What the session service counts. Whatever a log takes is counted where it was taken, once, whoever emitted it."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable, Mapping

from handmesh.session.v1.event_pb2 import Event, TurnEndReason
from handmesh.session.v1.session_pb2 import SessionStatus
from services.kit import metrics
from services.kit.errors import ServiceError
from services.kit.metrics import COUNTS, SLOW, Counter, Gauge, Histogram, Label
from services.session.bounded import Bounded
from services.session.core import Fact, WriteState

MOST_TYPES = 32  # harness types that are told apart: an operator names them, and a mistake must not cost memory

HARNESS = Label("harness", ("messages", "claude_code"))
_KINDS = [field.name for field in Event.DESCRIPTOR.oneofs_by_name["kind"].fields]
_REASONS = {int(value): name.removeprefix("TURN_END_REASON_").lower() for name, value in TurnEndReason.items()}
_STATUSES = {int(value): name.removeprefix("SESSION_STATUS_").lower() for name, value in SessionStatus.items()}
_REFUSED = ("POSITION_CONFLICT", "EPOCH_STALE", "SESSION_ENDED", "SESSION_DAMAGED", "SESSION_FULL", "LOG_UNAVAILABLE")

APPENDS = Counter(
    "handmesh_appends_total",
    "Appends to logs, by what came of them: appended, duplicate, or why one was refused.",
    Label("outcome", ("appended", "duplicate", *_REFUSED)),
)
APPEND_SECONDS = Histogram("handmesh_append_seconds", "How long an append took until it was durable.")
APPEND_EVENTS = Histogram("handmesh_append_events", "How many events an append had.", buckets=COUNTS)
EVENTS = Counter("handmesh_events_total", "Events that logs took, by kind.", Label("kind", _KINDS))
TURNS = Counter(
    "handmesh_turns_total",
    "Turns that ended, by why, and by harness type.",
    Label("reason", _REASONS.values()),
    HARNESS,
)
TURN_SECONDS = Histogram(
    "handmesh_turn_seconds", "From a turn's newest message to the end of the turn.", HARNESS, buckets=SLOW
)
CLAIM_SECONDS = Histogram(
    "handmesh_wake_claim_seconds", "From a message to the claim of a harness that is to answer it."
)
WAKE_SECONDS = Histogram("handmesh_wake_seconds", "From a message to the harness's first event, `HarnessWoke`.")
FIRST_BYTE_SECONDS = Histogram(
    "handmesh_wake_first_byte_seconds",
    "From a message to the first piece of the model's answer, or to all of it where it came at once.",
    buckets=SLOW,
)
SESSIONS = Gauge(
    "handmesh_sessions",
    "Sessions of the whole mesh by what they do, at most some seconds old. Every replica says the same.",
    Label("status", _STATUSES.values()),
)
QUEUE = Gauge(
    "handmesh_work_queue_sessions",
    "Sessions of the whole mesh that wait for a harness, by type, at most some seconds old. Every replica says the "
    "same.",
    HARNESS,
)
CLAIMS = Gauge("handmesh_claims", "Sessions that harnesses have through this replica.")
HARNESSES = Gauge("handmesh_harness_streams", "Harnesses that take sessions through this replica.")
WATCHERS = Gauge("handmesh_watchers", "Open WatchEvents streams of this replica.")

_first: Bounded[int] = Bounded()  # position of the newest message whose first word was counted, by session


def allow_types(harnesses: Iterable[str]) -> None:
    """Tells harness types apart that some harness has said it serves."""
    if len(HARNESS.values) < MOST_TYPES:
        HARNESS.allow(harnesses)


def stored(session_id: str, facts: Iterable[Fact], state: WriteState, at: int) -> None:
    """Counts what a log has just taken. `state` is from before it; `at` is in nanoseconds."""
    if not metrics.is_on():
        return
    count = 0
    for fact in facts:
        count += 1
        EVENTS.add(fact.kind)
        if fact.kind == "turn_ended":
            TURNS.add(_REASONS.get(fact.reason, ""), state.harness)
            TURN_SECONDS.observe(max(0, at - state.message_time) / 1e9, state.harness)
        elif fact.kind == "harness_woke" and is_unseen(state):
            WAKE_SECONDS.observe(max(0, at - state.message_time) / 1e9)
        elif fact.kind == "model_replied":
            first_byte(session_id, state, at)
    APPEND_EVENTS.observe(count)


def appended(began: float, *, duplicate: bool) -> None:
    """Counts an append that began at a time of `time.perf_counter`."""
    APPENDS.add("duplicate" if duplicate else "appended")
    APPEND_SECONDS.observe(time.perf_counter() - began)


def refused(problem: ServiceError) -> None:
    """Counts an append that came to nothing."""
    APPENDS.add(problem.reason)


def claimed(state: WriteState, now: int) -> None:
    """Counts that a harness got a session that has something to answer."""
    if is_unseen(state):
        CLAIM_SECONDS.observe(max(0, now - state.message_time) / 1e9)


def first_byte(session_id: str, state: WriteState, at: int) -> None:
    """Counts how long the message that opened a turn waited for the model's first word, once."""
    if state.answered or state.message <= state.settled or _first.get(session_id) == state.message:
        return
    _first[session_id] = state.message
    FIRST_BYTE_SECONDS.observe(max(0, at - state.message_time) / 1e9)


def is_unseen(state: WriteState) -> bool:
    """Says whether the session's newest message is one that no harness has begun to answer."""
    return state.message > max(state.settled, state.last_step)


def sessions(statuses: Iterable[int]) -> None:
    """Tells what all sessions do."""
    found = Tally(statuses)
    for value, name in _STATUSES.items():
        SESSIONS.set(found[value], name)


def waiting(found: Mapping[str, int]) -> None:
    """Tells how many sessions wait for a harness, by type. Those of types that nobody serves are `other`."""
    counts = Tally[str]()
    for harness, count in found.items():
        counts[HARNESS.of(harness)] += count
    for harness in HARNESS.values:
        QUEUE.set(counts[harness], harness)

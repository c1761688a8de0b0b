"""A log as turns, spans and marks: what took how long, and what happened when. Pure. Times are Unix time, in seconds.

All times are the session service's, at which events were taken. Of how long a model took only the length is the
harness's: it is laid so that it ends when its answer was taken, so clocks that differ change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.diagnosis.names import MESH, Names, id_of, instance_of, reason_of
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2
from handmesh.session.v1.event_pb2 import Event

MODEL, TOOL, MCP, MESH_TOOL, CLIENT = "model", "tool", "mcp", "mesh tool", "client"
APPROVAL, QUEUE, RETRY, PAUSE, COMPACTION, CHILD = "approval", "queue", "retry", "pause", "compaction", "child"
FAULTY_OUTCOMES = frozenset({"GONE", "OUT_OF_MEMORY", "TIMEOUT", "UNKNOWN"})
_STOPS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal"})


@dataclass(frozen=True)
class Span:
    """Something that took time. `first` is when the model's first piece came; `end` is None while it goes on."""

    kind: str
    label: str
    position: int
    begin: float
    end: float | None = None
    first: float | None = None
    outcome: str = ""
    fault: bool = False


@dataclass(frozen=True)
class Mark:
    """Something that happened at one moment."""

    kind: str
    label: str
    position: int
    time: float
    fault: bool = False


@dataclass(frozen=True)
class Turn:
    """What happened up to a turn's end. `ended` is the reason of the end in lower case, empty for an open turn."""

    number: int
    events: Sequence[Event] = field(repr=False)
    spans: Sequence[Span] = ()
    marks: Sequence[Mark] = ()
    ended: str = ""

    @property
    def first(self) -> int:
        """Position of its first event."""
        return self.events[0].position

    @property
    def last(self) -> int:
        """Position of its last event."""
        return self.events[-1].position

    @property
    def begin(self) -> float:
        """When it began: with the message, if one opens it."""
        found = (it for it in self.events if it.HasField("message_received"))
        return at(next(found, self.events[0]).emit_time)

    def end(self, now: float) -> float:
        """When it ended; now for one that has not."""
        return at(self.events[-1].emit_time) if self.ended else max(now, at(self.events[-1].emit_time))


def at(moment: Timestamp) -> float:
    """Returns Unix time, in seconds."""
    return moment.seconds + moment.nanos / 1e9


def lasting(duration: Duration) -> float:
    """Returns seconds."""
    return duration.seconds + duration.nanos / 1e9


def named(enum: Any, value: int, prefix: str) -> str:
    """Returns an enum's value as a word, `UNKNOWN` for one of a newer version."""
    return str(enum.Name(value)).removeprefix(prefix) if value in enum.values() else "UNKNOWN"


def turns_of(events: Sequence[Event], names: Names) -> list[Turn]:
    """Cuts a log into its turns. What comes after the last one's end and begins none belongs to it still."""
    cut: list[list[Event]] = [[]]
    for event in events:
        cut[-1].append(event)
        if event.HasField("turn_ended"):
            cut.append([])
    if not cut[-1] or (len(cut) > 1 and not any(map(_begins, cut[-1]))):
        rest = cut.pop()
        if cut:
            cut[-1].extend(rest)
    return [_turn(number, part, names) for number, part in enumerate(cut, 1)]


def _begins(event: Event) -> bool:
    return event.WhichOneof("kind") in ("message_received", "harness_woke")


def _turn(number: int, events: Sequence[Event], names: Names) -> Turn:
    ended = next((it.turn_ended for it in events if it.HasField("turn_ended")), None)
    word = ""
    if ended is not None:
        word = named(event_pb2.TurnEndReason, ended.reason, "TURN_END_REASON_").lower()
    drawing = _Drawing(names)
    for event in events:
        drawing.take(event)
    spans = sorted(drawing.spans(), key=lambda it: (it.begin, it.position))
    return Turn(number, events, spans, drawing.marks, word)


class _Drawing:
    """Takes a turn's events in order, and keeps what is open by a key."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._done: list[Span] = []
        self._open: dict[str, Span] = {}
        self._times: dict[int, float] = {}
        self._last = 0.0
        self._again: float | None = None  # when the model is asked again
        self.marks: list[Mark] = []

    def spans(self) -> list[Span]:
        return [*self._done, *self._open.values()]

    def take(self, event: Event) -> None:
        time, kind = at(event.emit_time), event.WhichOneof("kind") or ""
        self._times[event.position] = time
        if event.HasField("delay"):
            reason = reason_of(event.delay.reason) or "unknown"
            text = f"this event waited {lasting(event.delay.duration):.1f} s for the log: {reason}"
            self._mark("delay", text, event, fault=True)
        method = getattr(self, f"_{kind}", None)
        if method is not None:
            method(event, getattr(event, kind), time)
        self._last = time

    def _mark(self, kind: str, label: str, event: Event, fault: bool = False) -> None:
        self.marks.append(Mark(kind, label, event.position, at(event.emit_time), fault))

    def _start(self, key: str, span: Span) -> None:
        self._open[key] = span

    def _end(self, key: str, time: float, outcome: str = "", fault: bool = False) -> None:
        span = self._open.pop(key, None)
        if span is not None:
            self._done.append(replace(span, end=time, outcome=outcome, fault=fault))

    # --- one method for each kind that is drawn ---

    def _message_received(self, event: Event, it: event_pb2.MessageReceived, time: float) -> None:
        self._mark("message", "a message came" if not it.from_session_id else "a session wrote", event)
        if QUEUE not in self._open and not self._done:
            self._start(QUEUE, Span(QUEUE, "waits for a harness", event.position, time))

    def _harness_woke(self, event: Event, it: event_pb2.HarnessWoke, time: float) -> None:
        self._end(QUEUE, time)
        self._mark("woke", f"{instance_of(it.instance)} took it up, epoch {event.position}", event)

    def _model_replied(self, event: Event, it: event_pb2.ModelReplied, time: float) -> None:
        begin, first = self._asked(it.read_position, time), None
        if it.HasField("times"):
            begin = time - lasting(it.times.whole)
            first = begin + lasting(it.times.first_piece) if it.times.HasField("first_piece") else None
        stop = it.stop_reason if it.stop_reason in _STOPS else ""
        self._done.append(Span(MODEL, "model", event.position, begin, time, first, stop))

    def _asked(self, read_position: int, time: float) -> float:
        """Since when the model was asked, as far as a log without times tells: since what it had read was taken, or the
        time for another try had come."""
        read = self._times.get(read_position, self._last)
        again, self._again = self._again, None
        begin = read if again is None else max(self._last, min(again, time))
        self._end(RETRY, begin)
        return begin

    def _retry_scheduled(self, event: Event, it: event_pb2.RetryScheduled, time: float) -> None:
        reason, begin = reason_of(it.reason) or "failed", self._asked(0, time)
        self._done.append(Span(MODEL, "model", event.position, begin, time, None, reason, fault=True))
        self._again = at(it.retry_time)
        label = f"waits to ask again, try {it.attempt + 1}"
        self._start(RETRY, Span(RETRY, label, event.position, time))

    def _context_compacted(self, event: Event, it: event_pb2.ContextCompacted, time: float) -> None:
        begin = self._asked(0, time)
        label = f"compaction of {it.from_position} to {it.to_position - 1}"
        self._done.append(Span(COMPACTION, label, event.position, begin, time))

    def _tool_started(self, event: Event, it: event_pb2.ToolStarted, time: float) -> None:
        kind = TOOL if it.sandbox_id else MESH_TOOL if it.hand == MESH else MCP
        where = "" if it.hand == MESH else f" in {self._names.hand(it.hand)}"
        self._start(it.tool_use_id, Span(kind, f"{self._names.tool(it.name)}{where}", event.position, time))

    def _tool_finished(self, event: Event, it: event_pb2.ToolFinished, time: float) -> None:
        outcome = named(tool_pb2.ToolOutcome, it.result.outcome, "TOOL_OUTCOME_")
        self._end(it.tool_use_id, time, outcome.lower().replace("_", " "), outcome in FAULTY_OUTCOMES)

    def _tool_confirmation_requested(self, event: Event, it: event_pb2.ToolConfirmationRequested, time: float) -> None:
        label = f"waits for a person about {self._names.tool(it.name)}"
        self._start(it.tool_use_id, Span(APPROVAL, label, event.position, time))

    def _tool_confirmed(self, event: Event, it: event_pb2.ToolConfirmed, time: float) -> None:
        self._end(it.tool_use_id, time, "allowed" if it.allowed else "declined")

    def _custom_tool_requested(self, event: Event, it: event_pb2.CustomToolRequested, time: float) -> None:
        label = f"waits for the client's {self._names.tool(it.name)}"
        self._start(it.tool_use_id, Span(CLIENT, label, event.position, time))

    def _custom_tool_answered(self, event: Event, it: event_pb2.CustomToolAnswered, time: float) -> None:
        self._end(it.tool_use_id, time, "answered")

    def _sandbox_provisioned(self, event: Event, it: event_pb2.SandboxProvisioned, time: float) -> None:
        said = f"{self._names.hand(it.hand)} has a sandbox, generation {it.generation}: {id_of(it.sandbox_id)}"
        self._mark("provisioned", said, event)

    def _hand_detached(self, event: Event, it: event_pb2.HandDetached, time: float) -> None:
        self._mark("detached", f"{self._names.hand(it.hand)} lost its sandbox {id_of(it.sandbox_id)}", event)

    def _error_raised(self, event: Event, it: event_pb2.ErrorRaised, time: float) -> None:
        part = it.part.replace("vault_proxy", "proxy")
        known = part if part in ("session", "harness", "hand", "proxy", "model", "network") else "a part"
        self._mark("error", f"{known}: {reason_of(it.reason) or 'unknown reason'}", event, fault=True)

    def _credential_used(self, event: Event, it: event_pb2.CredentialUsed, time: float) -> None:
        good = it.result in ("ok", "refreshed")
        said = it.result if good else reason_of(it.result) or "unknown"
        self._mark("credential", f"a credential was used: {said}", event, fault=not good)

    def _door_refused(self, event: Event, it: event_pb2.DoorRefused, time: float) -> None:
        self._mark("door", f"a door refused: {reason_of(it.reason) or 'unknown reason'}", event)

    def _budget_reached(self, event: Event, it: event_pb2.BudgetReached, time: float) -> None:
        self._start(PAUSE, Span(PAUSE, "paused at a budget", event.position, time))

    def _config_changed(self, event: Event, it: event_pb2.ConfigChanged, time: float) -> None:
        self._end(PAUSE, time)
        self._mark("config", "its configuration changed", event)

    def _interrupt_requested(self, event: Event, it: event_pb2.InterruptRequested, time: float) -> None:
        self._mark("interrupt", "somebody asked it to stop", event)

    def _child_started(self, event: Event, it: event_pb2.ChildStarted, time: float) -> None:
        label = f"session {id_of(it.child_session_id)}"
        self._start(it.child_session_id, Span(CHILD, label, event.position, time))

    def _child_rested(self, event: Event, it: event_pb2.ChildRested, time: float) -> None:
        self._end(it.child_session_id, time, "at rest")

    def _child_ended(self, event: Event, it: event_pb2.ChildEnded, time: float) -> None:
        self._end(it.child_session_id, time, "ended")

    def _turn_ended(self, event: Event, it: event_pb2.TurnEnded, time: float) -> None:
        for key in (QUEUE, RETRY, PAUSE):
            self._end(key, time)

    def _session_ended(self, event: Event, it: event_pb2.SessionEnded, time: float) -> None:
        self._mark("ended", "the session ended", event)

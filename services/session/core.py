"""What a session's log says. Takes values and returns values; knows no clock, no store and no protobuf.

    fold(state, fact, time)   what the log says once this event is in it
    status(state)             what the session does
    needs_harness(state)      whether anybody must be woken for it
    may_be_timed(state)       whether a timer may wake anybody for it
    admission.admit(...)      whether events may be appended (in its own module)

`fold` changes the state that it is given and returns it: a state knows the names of up to 100,000 events, and a copy
for each of them would make a long log quadratic. Everything in it follows from the log, so it can be made again.

A turn is open from a message on until a `turn_ended` that has read it. What a harness is needed for is read off the
turn: nobody is woken for a session that only waits for a person. A line longer than a module should be: a case for each
kind of event.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from services.session.emitters import EMITTERS, HARNESS
from services.session.names import Names

_INPUTS = frozenset(
    {"message_received", "interrupt_requested", "tool_confirmed", "custom_tool_answered", "config_changed"}
    | {"child_rested", "child_ended"}
)
_STEPS = frozenset(kind for kind, who in EMITTERS.items() if who == {HARNESS})


class Status(enum.IntEnum):
    """What a session does. The numbers are those of `SessionStatus`; a test compares them."""

    IDLE = 1
    RUNNING = 2
    WAITING = 3
    RETRYING = 4
    PAUSED = 5
    ENDED = 6
    DAMAGED = 7


class Call(enum.Enum):
    """How far an open tool call has come."""

    OPEN = "the model asked for it"
    STARTED = "it was sent to a hand"
    ASKED = "a person is to decide"
    CONFIRMED = "a person has decided"
    REQUESTED = "a client is to run it"
    ANSWERED = "a client has run it"


_WAITS = (Call.ASKED, Call.REQUESTED)


@dataclass(frozen=True)
class Usage:
    """Tokens, in the four classes that are priced."""

    input: int = 0
    output: int = 0
    cache_creation: int = 0
    cache_read: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_creation + other.cache_creation,
            self.cache_read + other.cache_read,
        )


NO_USAGE = Usage()


@dataclass(frozen=True)
class Fact:
    """What the rules need of an event: its kind, its name, and of the rest what the kind has."""

    kind: str
    event_id: str
    emitter: str
    size: int = 0  # bytes, as the emitter sent it
    ignorable: bool = False
    tool_use_id: str = ""
    calls: tuple[str, ...] = ()  # the tool calls that a reply asks for
    read_position: int = 0
    usage: Usage = NO_USAGE
    cost_micros: int = 0
    call_hash: str = ""  # of a confirmation, asked or given
    allowed: bool = False  # likewise
    budget: str = ""  # the one that was reached
    reason: int = 0  # a `TurnEndReason`
    tenant: str = ""
    harness: str = ""
    parent: str = ""  # of a configuration, like the next two
    max_depth: int = 0  # levels of sessions that may be below this one
    max_children: int = 0  # sessions that it may start in all
    child: str = ""  # the session that was started, or has ended


@dataclass
class WriteState:
    """What a log says: `fold` over it. All that is needed to append to it, and to say what the session does."""

    head: int = 0  # position of the last event
    digest: str = ""  # of the last stored batch, for the chain
    damaged: bool = False
    ended: bool = False
    end: int = 0  # position of the event that ended it
    archived: bool = False
    forked: int = 0  # position of the event since which it is a session of its own
    size: int = 0  # bytes of the stored batches
    epoch: int = 0
    create_time: int = 0  # nanoseconds since 1970
    update_time: int = 0
    tenant: str = ""
    harness: str = ""  # the type whose turn it is, or will be
    next_harness: str = ""  # the type from the open turn's end on
    answered: bool = False  # whether the open turn has an answer: then it ends as it began
    config_position: int = 0  # the event that holds the configuration
    message: int = 0  # position of the last message
    settled: int = 0  # what turns have read that have ended
    interrupt: int = 0  # an interrupt that no turn has obeyed yet
    paused: str = ""  # the budget that was reached
    retrying: bool = False
    calls: dict[str, Call] = field(default_factory=dict)  # those that are open, in the model's order
    hashes: dict[str, str] = field(default_factory=dict)  # open call that a person is to decide about -> its hash
    usage: Usage = NO_USAGE
    cost_micros: int = 0  # as far as prices are known
    turns: int = 0
    last_turn_end: int = 0
    last_input: int = 0  # position of the last event that a harness should look at
    last_step: int = 0  # position of the last event of a harness
    last_deed: int = 0  # the same, without `harness_woke`
    message_time: int = 0  # of the last message
    interrupt_time: int = 0  # of the last interrupt, obeyed or not
    parent: str = ""  # the session that started this one
    max_depth: int = 0
    max_children: int = 0
    tool_calls: int = 0  # that were sent to somebody
    children_started: int = 0
    children: dict[str, int] = field(default_factory=dict)  # those that have not ended -> position of their start
    names: MutableMapping[int, int] = field(default_factory=Names)  # event ids and tool calls, hashed -> position


@functools.lru_cache(maxsize=1_024)  # an append asks three times
def name_of(sort: str, text: str) -> int:
    """Hashes an event's or a call's id to 64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(f"{sort}\0{text}".encode(), digest_size=8).digest(), "big")


def known(state: WriteState, event_id: str) -> int:
    """Returns the position of the event with this id, or 0."""
    return state.names.get(name_of("event", event_id), 0)


def fold(state: WriteState, fact: Fact, time: int) -> WriteState:
    """Takes the next event into the state, in O(1). `time` is its emit time in nanoseconds."""
    state.head += 1
    state.create_time = state.create_time or time
    state.update_time = time
    state.names[name_of("event", fact.event_id)] = state.head  # a new one: `admit` has seen to that
    if fact.kind in _INPUTS:
        state.last_input = state.head
    elif fact.kind in _STEPS:
        state.last_step = state.head
        if fact.kind != "harness_woke":
            state.last_deed = state.head
    if fact.usage is not NO_USAGE:
        state.usage += fact.usage
    state.cost_micros += fact.cost_micros
    _change(state, fact)
    return state


def _change(state: WriteState, fact: Fact) -> None:
    match fact.kind:
        case "session_started" | "config_changed":
            state.tenant, state.config_position, state.paused = fact.tenant, state.head, ""
            state.harness, state.next_harness = _harnesses(state, fact.harness)
            state.parent, state.max_depth, state.max_children = fact.parent, fact.max_depth, fact.max_children
        case "message_received":
            state.message, state.message_time = state.head, state.update_time
        case "interrupt_requested":
            state.interrupt, state.interrupt_time = state.head if _turn_open(state) else 0, state.update_time
        case "harness_woke":
            state.epoch = state.head
        case "model_replied":
            _drop_answered(state)
            state.retrying, state.answered = False, True
            for call in fact.calls:
                state.calls[call] = Call.OPEN
                state.names[name_of("call", call)] = state.head
        case "context_compacted":
            state.retrying = False
        case "tool_finished":
            state.calls.pop(fact.tool_use_id, None)
            state.hashes.pop(fact.tool_use_id, None)
        case "budget_reached":
            state.paused = fact.budget or "?"
        case "retry_scheduled":
            state.retrying = True
        case "turn_ended":
            _end_turn(state, fact)
        case "session_ended":
            state.ended, state.end = True, state.head
        case "session_archived":
            state.archived = True
        case "session_restored":
            state.archived = False
        case "session_forked":
            state.archived, state.epoch = False, 0  # no harness has this log yet
            state.forked = state.head
            state.children.clear()  # the original's
        case "child_started":
            state.children_started += 1
            state.children[fact.child] = state.head
            state.names[name_of("child", fact.child)] = state.head
        case "child_ended":
            state.children.pop(fact.child, None)
        case kind if kind in _CALL_STEPS:
            state.tool_calls += kind in ("tool_started", "custom_tool_requested")
            state.calls[fact.tool_use_id] = _CALL_STEPS[kind]
            state.hashes.pop(fact.tool_use_id, None)
            if kind == "tool_confirmation_requested":
                state.hashes[fact.tool_use_id] = fact.call_hash


_CALL_STEPS = {
    "tool_started": Call.STARTED,
    "tool_confirmation_requested": Call.ASKED,
    "tool_confirmed": Call.CONFIRMED,
    "custom_tool_requested": Call.REQUESTED,
    "custom_tool_answered": Call.ANSWERED,
}


def _harnesses(state: WriteState, wanted: str) -> tuple[str, str]:
    """Returns the harness type, and the next one: an open turn that has an answer is ended by the type that gave it."""
    if _turn_open(state) and state.answered:
        return state.harness, wanted if wanted != state.harness else ""
    return wanted, ""


def _end_turn(state: WriteState, fact: Fact) -> None:
    state.settled = max(state.settled, fact.read_position)
    state.turns += 1
    state.last_turn_end = fact.reason
    state.retrying, state.answered, state.paused = False, False, ""
    state.harness, state.next_harness = state.next_harness or state.harness, ""
    if state.settled >= state.interrupt or not _turn_open(state):
        state.interrupt = 0
    _drop_answered(state)


def _drop_answered(state: WriteState) -> None:
    """Forgets calls that a client has answered: the model has their result, whether or not a `tool_finished` came."""
    for call in [call for call, step in state.calls.items() if step is Call.ANSWERED]:
        del state.calls[call]


def _turn_open(state: WriteState) -> bool:
    return state.message > state.settled


def waiting(state: WriteState) -> list[str]:
    """Lists the tool calls that wait for a person or a client."""
    return [call for call, step in state.calls.items() if step in _WAITS]


def status(state: WriteState) -> Status:
    """Says what the session does."""
    if state.damaged:
        return Status.DAMAGED
    if state.ended:
        return Status.ENDED
    if state.paused and not state.interrupt:
        return Status.PAUSED
    if not _turn_open(state):
        return Status.IDLE
    if state.interrupt:
        return Status.RUNNING
    if state.calls and all(step in _WAITS for step in state.calls.values()):
        return Status.WAITING
    return Status.RETRYING if state.retrying else Status.RUNNING


def needs_harness(state: WriteState) -> bool:
    """Says whether a harness has something to do: now, or at a retry's time."""
    return not state.archived and status(state) in (Status.RUNNING, Status.RETRYING)


def may_be_timed(state: WriteState) -> bool:
    """Says whether a time that has come can mean anything to a harness: only while a turn is open."""
    return not state.archived and status(state) in (Status.RUNNING, Status.RETRYING, Status.WAITING)

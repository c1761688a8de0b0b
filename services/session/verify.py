"""Says what is wrong with a log: the invariants that a log alone can show. Pure, and on purpose not the rules that let
events in (`admission`): a second opinion, for `VerifySession` and for every test that kills something.

    I1  what was acknowledged is there, where it was said to be
    I2  positions are 1 to n, the batches are a chain, and the log is no shorter than its high-water mark
    I3  no event is there twice
    I4  epochs never go back, and a harness speaks in its own
    I5  each tool call has one result, after the call, and none is left open when its turn has ended
    I6  a call starts once: whoever takes it up later asks for what was started
    I7  a call that a person is asked about does not start before the answer
    I8  a session starts once, first; nothing follows its end; who says what may say it; answers follow questions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from services.session.core import Fact
from services.session.emitters import HARNESS, may_emit


@dataclass(frozen=True)
class Seen:
    """An event as it is in a log. `time` is its emit time in nanoseconds."""

    position: int
    fact: Fact
    epoch: int
    time: int


@dataclass(frozen=True)
class Link:
    """A stored batch: where it begins, what it says of the batch before, and what it is itself."""

    first_position: int
    count: int
    prev_digest: str
    digest: str


@dataclass(frozen=True)
class Violation:
    """Something that is wrong, and where."""

    invariant: str
    position: int
    message: str


def check(events: Iterable[Seen]) -> list[Violation]:
    """Checks a whole log, from its first event. Nothing found means that nothing is wrong."""
    reading = _Reading()
    for event in events:
        reading.take(event)
    return reading.found


def check_chain(links: Iterable[Link], mark_position: int = 0, mark_digest: str = "") -> list[Violation]:
    """Checks the batches of a whole log, in order, and that the marked one is among them (I2)."""
    found: list[Violation] = []
    head, digest, met = 0, "", not mark_position
    for link in links:
        if link.first_position != head + 1:
            found.append(Violation("I2", head + 1, f"a batch at {link.first_position} follows position {head}"))
        elif link.prev_digest != digest:
            found.append(Violation("I2", link.first_position, "the batch does not name the one before it"))
        head, digest = link.first_position + link.count - 1, link.digest
        met = met or (head, digest) == (mark_position, mark_digest)
    if head < mark_position:
        found.append(Violation("I2", head + 1, f"the log ends at {head}, and had come to {mark_position}"))
    elif not met:
        found.append(Violation("I2", mark_position, "the batch that ends here is not the one that was marked"))
    return found


def check_acknowledged(events: Sequence[Seen], acknowledged: Mapping[str, int]) -> list[Violation]:
    """Checks that each acknowledged event id is in the log, at its position (I1)."""
    there = {event.fact.event_id: event.position for event in events}
    return [
        Violation("I1", position, f"acknowledged event {event_id} is {_place(there.get(event_id))}")
        for event_id, position in acknowledged.items()
        if there.get(event_id) != position
    ]


def _place(position: int | None) -> str:
    return "lost" if position is None else f"at {position}"


_NEEDS = {"tool_confirmed": "tool_confirmation_requested", "custom_tool_answered": "custom_tool_requested"}
_NEVER = {
    ("tool_started", "tool_started"): ("I6", "a tool call starts that was started before"),
    ("tool_started", "tool_confirmation_requested"): ("I7", "a tool call starts while a person is asked about it"),
    ("tool_started", "custom_tool_requested"): ("I7", "a tool call starts that is the client's to run"),
}
_AFTER_THE_END = frozenset({"session_archived", "session_restored", "session_deleted"})
_OF_CALLS = frozenset(
    {"tool_started", "tool_finished", "tool_confirmation_requested", "custom_tool_requested", *_NEEDS}
)


@dataclass
class _Reading:
    """How far a log was read, and what was wrong until there."""

    found: list[Violation] = field(default_factory=list)
    position: int = 0
    time: int = 0
    epoch: int = 0
    ended: int = 0
    ids: dict[str, int] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # all tool calls so far
    open: dict[str, str] = field(default_factory=dict)  # tool calls without a result -> the last kind about them

    def take(self, event: Seen) -> None:
        self._check_order(event)
        self._check_epoch(event)
        self._check_kind(event)
        self._check_calls(event)

    def _say(self, invariant: str, message: str) -> None:
        self.found.append(Violation(invariant, self.position, message))

    def _check_order(self, event: Seen) -> None:
        expected, self.position = self.position + 1, event.position
        if event.position != expected:
            self._say("I2", f"position {event.position} follows {expected - 1}")
        if event.time < self.time:
            self._say("I2", "the event was emitted before the one before it")
        self.time = event.time
        first = self.ids.setdefault(event.fact.event_id, event.position)
        if first != event.position:
            self._say("I3", f"event {event.fact.event_id} is at {first} already")

    def _check_epoch(self, event: Seen) -> None:
        if event.fact.kind == "harness_woke":
            if event.epoch != event.position:
                self._say("I4", f"a new epoch is {event.epoch}, not its own position")
            self.epoch = event.position
        elif event.fact.kind == "session_forked":
            self.epoch = 0  # no harness has this log yet
        elif event.fact.emitter == HARNESS and event.epoch != self.epoch:
            self._say("I4", f"a harness of epoch {event.epoch} speaks in epoch {self.epoch}")
        elif event.fact.emitter != HARNESS and event.epoch:
            self._say("I4", f"a {event.fact.emitter} has no epoch, and here is {event.epoch}")

    def _check_kind(self, event: Seen) -> None:
        fact = event.fact
        if self.ended and fact.kind not in _AFTER_THE_END:
            self._say("I8", f"{fact.kind or 'an event'} follows the session's end at {self.ended}")
        if (fact.kind == "session_started") != (event.position == 1):
            self._say("I8", "a log begins with session_started, and has one")
        if fact.kind == "session_ended":
            self.ended = event.position
        if not may_emit(fact.emitter, fact.kind, ignorable=fact.ignorable):
            self._say("I8", f"a {fact.emitter or 'nobody'} may not emit {fact.kind or 'an unknown kind'}")

    def _check_calls(self, event: Seen) -> None:
        fact = event.fact
        if fact.kind == "model_replied":
            self._drop_answered()
            for call in fact.calls:
                if call in self.asked:
                    self._say("I5", f"tool call {call} was made before")
                self.asked.add(call)
                self.open[call] = fact.kind
        elif fact.kind in _OF_CALLS:
            self._step(fact)
        elif fact.kind == "turn_ended":
            self._drop_answered()
            for call in self.open:
                self._say("I5", f"the turn ends without a result of tool call {call}")
            self.open.clear()

    def _step(self, fact: Fact) -> None:
        call = fact.tool_use_id
        last = self.open.get(call)
        if last is None:
            self._say(
                "I5", f"{fact.kind} for tool call {call}, which {'is settled' if call in self.asked else 'is unknown'}"
            )
        elif fact.kind == "tool_finished":
            del self.open[call]
        else:
            if last != _NEEDS.get(fact.kind, last):
                self._say("I8", f"{fact.kind} for tool call {call} follows {last}")
            if (fact.kind, last) in _NEVER:
                self._say(*_NEVER[fact.kind, last])
            self.open[call] = fact.kind

    def _drop_answered(self) -> None:
        """What a client has answered needs no result of its own: the answer is one."""
        for call in [call for call, last in self.open.items() if last == "custom_tool_answered"]:
            del self.open[call]

"""A session's log in memory that admits what the session service admits, and the choices that a simulation makes.

Every event is kept twice: as the fact that the session service's rules need, and as the one that a harness decides by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.harness import core as facts
from services.session.admission import admit
from services.session.core import Fact, Usage, WriteState, fold, known
from services.session.verify import Seen

STEP_SECONDS = 0.5


class Choices:
    """What happens next, from a list of numbers; when they are used up, what is calm: 0."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._next = 0

    @property
    def calm(self) -> bool:
        """Whether nothing surprising happens any more."""
        return self._next >= len(self._numbers)

    def pick(self, options: int) -> int:
        """Chooses one of so many options; the first one is the calm one."""
        if self.calm or options < 2:
            return 0
        self._next += 1
        return self._numbers[self._next - 1] % options


@dataclass(frozen=True)
class Draft:
    """An event that is to be appended: its id, and both sides' facts."""

    event_id: str
    kind: str
    fact: facts.Fact
    more: dict[str, object] = field(default_factory=dict)

    def told(self, emitter: str) -> Fact:
        """Makes the session service's fact."""
        return Fact(kind=self.kind, event_id=self.event_id, emitter=emitter, **self.more)  # type: ignore[arg-type]


def draft(event_id: str, fact: facts.Fact) -> Draft:
    """Makes a draft of a harness's fact: its kind, and what the session service needs of it."""
    match fact:
        case facts.Started() | facts.Configured():
            kind = "session_started" if isinstance(fact, facts.Started) else "config_changed"
            return Draft(event_id, kind, fact, {"tenant": "default", "harness": fact.config.harness})
        case facts.Replied():
            calls = tuple(call.id for call in fact.calls)
            used = Usage(fact.usage.input, fact.usage.output, fact.usage.cache_creation, fact.usage.cache_read)
            return Draft(event_id, "model_replied", fact, {"calls": calls, "read_position": fact.read, "usage": used})
        case facts.Compacted():
            used = Usage(fact.usage.input, fact.usage.output, fact.usage.cache_creation, fact.usage.cache_read)
            return Draft(event_id, "context_compacted", fact, {"usage": used})
        case facts.Ended():
            return Draft(event_id, "turn_ended", fact, {"read_position": fact.read, "reason": 1})
        case facts.Paused():
            return Draft(event_id, "budget_reached", fact, {"budget": fact.budget})
        case facts.ConfirmationAsked():
            more: dict[str, object] = {"tool_use_id": fact.id, "call_hash": fact.call_hash}
            return Draft(event_id, "tool_confirmation_requested", fact, more)
        case facts.Confirmed():
            more = {"tool_use_id": fact.id, "call_hash": fact.call_hash, "allowed": fact.allowed}
            return Draft(event_id, "tool_confirmed", fact, more)
        case facts.CallStarted() | facts.CallFinished() | facts.CustomAsked() | facts.CustomAnswered():
            return Draft(event_id, _KINDS[type(fact)], fact, {"tool_use_id": fact.id})
        case _:
            return Draft(event_id, _KINDS[type(fact)], fact)


_KINDS: dict[type[object], str] = {
    facts.Message: "message_received",
    facts.Interrupt: "interrupt_requested",
    facts.Woke: "harness_woke",
    facts.Offered: "tools_offered",
    facts.CallStarted: "tool_started",
    facts.CallFinished: "tool_finished",
    facts.CustomAsked: "custom_tool_requested",
    facts.CustomAnswered: "custom_tool_answered",
    facts.Provisioned: "sandbox_provisioned",
    facts.Detached: "hand_detached",
    facts.Retry: "retry_scheduled",
    facts.SessionOver: "session_ended",
    facts.Other: "error_raised",
}


class SimulatedLog:
    """One session's log. `now` is everybody's clock (Unix time, seconds)."""

    def __init__(self, config: facts.Config) -> None:
        self.now = 1_000_000.0
        self.state = WriteState()
        self.facts: list[facts.Fact] = []
        self.seen: list[Seen] = []
        self.acknowledged: dict[str, int] = {}
        self.append([draft("session_started", facts.Started(0, config))], "session")

    def append(self, drafts: Sequence[Draft], emitter: str, epoch: int = 0, expected: int | None = None) -> int:
        """Appends as `EmitEvents` does: idempotent, fenced, in one step. Raises what the session service's rules do."""
        first = known(self.state, drafts[0].event_id)
        if first:
            return first
        told = [one.told(emitter) for one in drafts]
        first = admit(self.state, told, epoch=epoch, expected_position=expected)
        self.now += STEP_SECONDS
        for position, (one, fact) in enumerate(zip(drafts, told, strict=True), first):
            fold(self.state, fact, int(self.now * 1e9))
            kept = position if one.kind == "harness_woke" else epoch
            self.seen.append(Seen(position, fact, kept, int(self.now * 1e9)))
            self.facts.append(replace(one.fact, position=position, time=self.now))
        return first

"""What a log says as a whole: `fold(state, fact) -> state`, at the same cost however long the log is.

A turn is open from a message on until a `TurnEnded` that has read it, as for the session service (its `core.py`).
Longer than a module should be: a case for each kind of fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, assert_never, get_args

from services.harness.core import (
    Attached,
    CallFinished,
    CallStarted,
    Compacted,
    Config,
    Configured,
    ConfirmationAsked,
    Confirmed,
    CustomAnswered,
    CustomAsked,
    Detached,
    DoorRefused,
    Ended,
    Fact,
    Interrupt,
    Message,
    OfCall,
    Offered,
    Other,
    Paused,
    Provisioned,
    Rendered,
    Replied,
    Retry,
    Said,
    SessionOver,
    Started,
    Step,
    ToolCall,
    ToolResult,
    Transferred,
    Unknown,
    Woke,
)
from services.harness.model_profiles import DEAREST
from services.harness.usage import NO_USAGE, Usage

Value = TypeVar("Value")


def _with(value: Value, **changes: Any) -> Value:
    """Returns a copy with some fields changed, as `dataclasses.replace` does in ten times the time.

    A log of 1,000 events is read while somebody waits. So what is copied here has no slots.
    """
    made = object.__new__(type(value))
    made.__dict__.update(value.__dict__, **changes)
    return made


@dataclass(frozen=True)
class Call:
    """A call of the last reply, and how far it is."""

    call: ToolCall
    started: CallStarted | None = None
    result: ToolResult | None = None
    finished_at: int = 0
    asked: ConfirmationAsked | None = None
    verdict: Confirmed | None = None
    handed_out: CustomAsked | None = None
    answer: ToolResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One fact of the conversation and those before it: grows by one without copying."""

    fact: Said
    before: Link | None


@dataclass(frozen=True)
class Plainness:
    """How the conversation is shown after the API refused a request: up to a position plainly, or in short.

    `plain` and `short` have been answered; `try_plain` and `try_short` hold for the turn at hand, until it is.
    """

    plain: int = 0
    short: int = 0
    try_plain: int = 0
    try_short: int = 0

    @property
    def upto(self) -> int:
        """Returns the position up to which everything is shown plainly."""
        return max(self.plain, self.try_plain, self.upto_short)

    @property
    def upto_short(self) -> int:
        """Returns the position up to which everything is shown in short too."""
        return max(self.short, self.try_short)


@dataclass(frozen=True)
class Used:
    """What counts against the session's budgets. `worked` is in seconds, without the time since `busy_since`.

    Costs of answers without a known price are in it, at the dearest one. `in_turn` is what the log says of the open
    turn: what is not priced costs nothing there.
    """

    turns: int = 0
    tool_calls: int = 0
    model_calls: int = 0  # in the open turn
    in_all: Usage = NO_USAGE
    in_turn: Usage = NO_USAGE
    worked: float = 0.0
    busy_since: float = 0.0  # the last event of the harness that has the session; 0 before any


@dataclass(frozen=True)
class State:
    """Everything that deciding needs of a log. `head` is the position of its last event."""

    head: int = 0
    epoch: int = 0
    config: Config = field(default_factory=Config)
    next_config: Config | None = None
    message: int = 0  # position of the last one
    settled: int = 0  # what turns have read that have ended
    interrupt: int = 0  # one that no turn has obeyed yet
    reply: Replied | None = None
    compacted: Compacted | None = None  # the newest one
    calls: Mapping[str, Call] = field(default_factory=dict)  # of the last reply
    offers: Mapping[str, Offered] = field(default_factory=dict)
    sandboxes: Mapping[str, Provisioned] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    attached: Mapping[str, Attached] = field(default_factory=dict)  # hands that came though the configuration has none
    away: Mapping[str, str] = field(default_factory=dict)  # where hands went that the session had: in words
    used: Used = field(default_factory=Used)
    paused: str = ""  # the budget
    retry: Retry | None = None
    plainness: Plainness = field(default_factory=lambda: Plainness())
    renditions: Mapping[str, str] = field(default_factory=dict)
    systems: tuple[tuple[int, str], ...] = ()  # system prompts, each with the position since which it holds
    over: bool = False
    unknown: str = ""
    conversation: Link | None = None

    @property
    def turn_open(self) -> bool:
        """Whether a message is not dealt with."""
        return self.message > self.settled

    @property
    def joined(self) -> tuple[str, ...]:
        """The hands that the session has though its configuration does not name them, in the order of their coming."""
        return tuple(hand for hand in self.attached if hand not in self.config.hands)

    @property
    def offering(self) -> tuple[str, ...]:
        """Who offers tools, one by one. Servers are asked together."""
        return (*self.config.offering, *self.joined)


def fold(state: State, fact: Fact) -> State:
    """Adds one fact to what is known. Costs the same however long the log is."""
    now: dict[str, Any] = {"head": fact.position}  # what changes with every fact
    if fact.time:
        now["used"] = _timed(state.used, fact, isinstance(fact, Message) and not state.turn_open)
    match fact:  # the most frequent ones first
        case CallStarted() | CallFinished() | ConfirmationAsked() | Confirmed() | CustomAsked() | CustomAnswered():
            return _called(_with(state, **now), fact)
        case Replied():
            return _replied(_with(state, **now), fact)
        case Compacted():
            return _compacted(_with(state, **now), fact)
        case Started(config=config):
            return _with(state, **now, config=config, systems=((fact.position, config.system),))
        case Configured(config=config):
            return _configured(_with(state, **now, paused=""), config)
        case Message(position=position):
            return _with(state, **now, message=position, conversation=Link(fact, state.conversation))
        case DoorRefused():
            return _with(state, **now, conversation=Link(fact, state.conversation))
        case Interrupt(position=position):
            return _with(state, **now, interrupt=position if state.turn_open else 0)
        case Woke(position=position):
            return _with(state, **now, epoch=position)
        case Offered(hand=hand):
            return _with(state, **now, offers={**state.offers, hand: fact})
        case Provisioned(hand=hand, generation=generation):
            made = {**state.generations, hand: generation}
            return _with(state, **now, sandboxes={**state.sandboxes, hand: fact}, generations=made)
        case Attached():
            return _came(_with(state, **now), fact)
        case Transferred(to_session_id=to):
            return _went(_with(state, **now), fact, f"It went to session {to}.")
        case Detached(taken=taken):
            return _went(_with(state, **now), fact, taken)
        case Retry():
            return retried(_with(state, **now), fact)
        case Rendered(source_sha256=source, content=content):
            return _with(state, **now, renditions={**state.renditions, source: content})
        case Ended(read=read):
            return _turned(_with(state, **now), read)
        case Paused(budget=budget):
            return _with(state, **now, paused=budget or "?")
        case SessionOver():
            return _with(state, **now, over=True)
        case Unknown(kind=kind):
            return _with(state, **now, unknown=kind or "?")
        case Other():
            return _with(state, **now)
        case _:
            assert_never(fact)


def retried(state: State, fact: Retry) -> State:
    """Takes a retry: after a request that the API refused, the next one is plainer."""
    shown = state.plainness
    if fact.reason == "MODEL_REQUEST_REFUSED":
        shown = _with(shown, try_plain=fact.position)
    elif fact.reason == "CONTEXT_FULL":
        shown = _with(shown, try_short=fact.position)
    return _with(state, retry=fact, plainness=shown)


def fold_all(facts: Iterable[Fact], state: State | None = None) -> State:
    """Folds a whole log, or its rest onto what the part before it says."""
    state = state or State()
    for fact in facts:
        state = fold(state, fact)
    return state


_WORK = (*get_args(Step), Paused)


def _timed(used: Used, fact: Fact, begins: bool) -> Used:
    """Counts the time between two events of one harness.

    What lies before a harness wakes was nobody's work, nor was what lies before the message that begins a turn.
    """
    if isinstance(fact, Woke) or begins:
        return _with(used, busy_since=fact.time)
    if not used.busy_since or not isinstance(fact, _WORK):
        return used
    return _with(used, worked=used.worked + max(0.0, fact.time - used.busy_since), busy_since=fact.time)


def _configured(state: State, config: Config) -> State:
    """Takes a new configuration at once when no turn is open, else at its end; budgets at once.

    A turn that has no answer yet goes on as another harness type's: else a type that nobody runs would keep it.
    """
    if state.turn_open and (state.used.model_calls or config.harness == state.config.harness):
        return _with(state, config=replace(state.config, budgets=config.budgets), next_config=config)
    return _under(config, state)


def _under(config: Config, state: State) -> State:
    """Puts a configuration in force. A hand that is another one now gets another sandbox by its next call, and what one
    type would try again another does at once."""
    before, now = (dict(zip(each.hands, each.hand_specs, strict=False)) for each in (state.config, config))
    kept = {hand: made for hand, made in state.sandboxes.items() if now.get(hand) == before.get(hand)}
    changed = config.system != state.config.system
    systems = (*state.systems, (state.head, config.system)) if changed else state.systems
    retry = state.retry if config.harness == state.config.harness else None
    return _with(state, config=config, next_config=None, offers={}, sandboxes=kept, retry=retry, systems=systems)


def _paid(used: Used, fact: Replied | Compacted, calls: int) -> Used:
    said = fact.usage
    counted = said if fact.priced else replace(said, cost_micros=DEAREST.of(said))
    return _with(used, model_calls=used.model_calls + calls, in_all=used.in_all + counted, in_turn=used.in_turn + said)


def _compacted(state: State, fact: Compacted) -> State:
    """Takes a summary: what was to be shown plainly is in it. A retry that called for it stands until a reply."""
    used, shown = _paid(state.used, fact, 0), _with(state.plainness, try_plain=0, try_short=0)
    conversation = Link(fact, state.conversation)
    return _with(state, used=used, compacted=fact, plainness=shown, conversation=conversation)


def _came(state: State, fact: Attached) -> State:
    """Takes a hand in. One that the configuration names is as if it had been made; of another the model is told."""
    hand = fact.hand
    made = Provisioned(fact.position, hand, fact.sandbox_id, state.generations.get(hand, 0), time=fact.time)
    state = _with(state, sandboxes={**state.sandboxes, hand: made}, away=_without(state.away, {hand}))
    if hand in state.config.hands:
        return state
    offers, conversation = _without(state.offers, {hand}), Link(fact, state.conversation)
    return _with(state, attached={**state.attached, hand: fact}, offers=offers, conversation=conversation)


def _went(state: State, fact: Transferred | Detached, told: str) -> State:
    """Takes leave of a hand's sandbox. One of the configuration gets another by its next call."""
    hands = {hand for hand, made in state.sandboxes.items() if made.sandbox_id == fact.sandbox_id}
    joined = {hand for hand in hands if hand in state.attached}
    if told or joined:
        state = _with(state, conversation=Link(fact, state.conversation))
    if joined:
        away = {**state.away, **dict.fromkeys(joined, told or "It is gone.")}
        left = _without(state.attached, joined)
        state = _with(state, away=away, attached=left, offers=_without(state.offers, joined))
    return _with(state, sandboxes=_without(state.sandboxes, hands))


def _without(known: Mapping[str, Value], names: set[str]) -> Mapping[str, Value]:
    return {name: value for name, value in known.items() if name not in names}


def _replied(state: State, reply: Replied) -> State:
    used = _paid(state.used, reply, 1)
    calls = {call.id: Call(call) for call in reply.calls}
    conversation, shown = Link(reply, state.conversation), state.plainness
    if shown.try_plain or shown.try_short:
        shown = Plainness(max(shown.plain, shown.try_plain), max(shown.short, shown.try_short))
    return _with(state, reply=reply, calls=calls, used=used, retry=None, conversation=conversation, plainness=shown)


def _turned(state: State, read: int) -> State:
    used = _with(state.used, turns=state.used.turns + 1, model_calls=0, in_turn=NO_USAGE)
    settled, shown = max(state.settled, read), Plainness(state.plainness.plain, state.plainness.short)
    over = settled >= state.interrupt or state.message <= settled
    interrupt = 0 if over else state.interrupt
    ended = _with(state, settled=settled, used=used, retry=None, paused="", interrupt=interrupt, plainness=shown)
    return ended if ended.next_config is None else _under(ended.next_config, ended)


def _called(state: State, fact: OfCall) -> State:
    call = state.calls.get(fact.id)
    if call is None or call.result is not None:
        return state
    match fact:
        case CallStarted():
            state = state if call.started else _sent(state)
            call = _with(call, started=fact)
        case CallFinished(position=position, result=result):
            call = _with(call, result=result, finished_at=position)
            state = _with(state, conversation=Link(fact, state.conversation))
        case ConfirmationAsked():
            call = _with(call, asked=fact)
        case Confirmed():
            call = _with(call, verdict=call.verdict or fact)
        case CustomAsked():
            state = state if call.handed_out else _sent(state)
            call = _with(call, handed_out=fact)
        case CustomAnswered(result=result):
            call = _with(call, answer=call.answer or result)
        case _:
            assert_never(fact)
    return _with(state, calls={**state.calls, fact.id: call})


def _sent(state: State) -> State:
    return _with(state, used=_with(state.used, tool_calls=state.used.tool_calls + 1))

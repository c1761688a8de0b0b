"""What a log says as a whole: `fold(state, fact) -> state`, at the same cost however long the log is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from services.harness.core import (
    CallFinished,
    CallStarted,
    Config,
    Configured,
    ConfirmationAsked,
    Confirmed,
    CustomAnswered,
    CustomAsked,
    Detached,
    Ended,
    Fact,
    Interrupt,
    Message,
    Offered,
    Other,
    Provisioned,
    Rendered,
    Replied,
    Retry,
    SessionOver,
    Started,
    ToolCall,
    ToolResult,
    Unknown,
    Woke,
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the last reply, and how far it is."""

    call: ToolCall
    started: CallStarted | None = None
    result: ToolResult | None = None
    finished_at: int = 0
    asked: bool = False
    verdict: Confirmed | None = None
    handed_out: bool = False
    answer: ToolResult | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """One fact of the conversation and those before it: grows by one without copying."""

    fact: Message | Replied | CallFinished
    before: Link | None


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class State:
    """Everything that deciding needs of a log. `head` is the position of its last event."""

    head: int = 0
    epoch: int = 0
    config: Config = field(default_factory=Config)
    next_config: Config | None = None
    settled: int = 0
    unread: tuple[int, ...] = ()
    interrupt: int = 0
    reply: Replied | None = None
    calls: Mapping[str, Call] = field(default_factory=dict)
    offers: Mapping[str, Offered] = field(default_factory=dict)
    sandboxes: Mapping[str, Provisioned] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    model_calls: int = 0
    retry: Retry | None = None
    plainness: Plainness = field(default_factory=lambda: Plainness())
    renditions: Mapping[str, str] = field(default_factory=dict)
    over: bool = False
    unknown: str = ""
    conversation: Link | None = None


def fold(state: State, fact: Fact) -> State:
    """Adds one fact to what is known. Costs the same however long the log is."""
    state = replace(state, head=fact.position)
    match fact:
        case Started(config=config):
            return replace(state, config=config)
        case Configured(config=config):
            return _configured(state, config)
        case Message(position=position):
            return replace(state, unread=(*state.unread, position), conversation=Link(fact, state.conversation))
        case Interrupt(position=position):
            return replace(state, interrupt=position)
        case Woke(position=position):
            return replace(state, epoch=position)
        case Offered(hand=hand):
            return replace(state, offers={**state.offers, hand: fact})
        case Replied():
            calls = {call.id: Call(call) for call in fact.calls}
            grown, shown = Link(fact, state.conversation), state.plainness
            if shown.try_plain or shown.try_short:
                shown = Plainness(max(shown.plain, shown.try_plain), max(shown.short, shown.try_short))
            return replace(
                state,
                reply=fact,
                calls=calls,
                model_calls=state.model_calls + 1,
                retry=None,
                conversation=grown,
                plainness=shown,
            )
        case Provisioned(hand=hand, generation=generation):
            made = {**state.generations, hand: generation}
            return replace(state, sandboxes={**state.sandboxes, hand: fact}, generations=made)
        case Detached(sandbox_id=sandbox_id):
            left = {hand: made for hand, made in state.sandboxes.items() if made.sandbox_id != sandbox_id}
            return replace(state, sandboxes=left)
        case Retry():
            return retried(state, fact)
        case Rendered(source_sha256=source, content=content):
            return replace(state, renditions={**state.renditions, source: content})
        case Ended(read=read):
            return _turned(state, read)
        case SessionOver():
            return replace(state, over=True)
        case Unknown(kind=kind):
            return replace(state, unknown=kind or "?")
        case Other():
            return state
        case CallStarted() | CallFinished() | ConfirmationAsked() | Confirmed() | CustomAsked() | CustomAnswered():
            return _called(state, fact)
        case _:
            assert_never(fact)


def retried(state: State, fact: Retry) -> State:
    """Takes a retry: after a request that the API refused, the next one is plainer."""
    shown = state.plainness
    if fact.reason == "MODEL_REQUEST_REFUSED":
        shown = replace(shown, try_plain=fact.position)
    elif fact.reason == "CONTEXT_FULL":
        shown = replace(shown, try_short=fact.position)
    return replace(state, retry=fact, plainness=shown)


def fold_all(facts: Iterable[Fact]) -> State:
    """Folds a whole log."""
    state = State()
    for fact in facts:
        state = fold(state, fact)
    return state


def _configured(state: State, config: Config) -> State:
    """Takes a new configuration at once when no turn is open, else at its end."""
    if state.unread or (state.calls and any(call.result is None for call in state.calls.values())):
        return replace(state, next_config=config)
    return _under(config, state)


def _under(config: Config, state: State) -> State:
    """Puts a configuration in force. A hand that is another one now gets another sandbox by its next call."""
    before, now = (dict(zip(each.hands, each.hand_specs, strict=False)) for each in (state.config, config))
    kept = {hand: made for hand, made in state.sandboxes.items() if now.get(hand) == before.get(hand)}
    return replace(state, config=config, next_config=None, offers={}, sandboxes=kept)


def _turned(state: State, read: int) -> State:
    shown = Plainness(state.plainness.plain, state.plainness.short)
    unread = tuple(at for at in state.unread if at > read)
    ended = replace(state, settled=read, unread=unread, model_calls=0, retry=None, plainness=shown)
    return ended if ended.next_config is None else _under(ended.next_config, ended)


def _called(
    state: State, fact: CallStarted | CallFinished | ConfirmationAsked | Confirmed | CustomAsked | CustomAnswered
) -> State:
    call = state.calls.get(fact.id)
    if call is None:
        return state
    match fact:
        case CallStarted():
            call = replace(call, started=fact)
        case CallFinished(position=position, result=result):
            if call.result is not None:
                return state
            call = replace(call, result=result, finished_at=position)
            state = replace(state, conversation=Link(fact, state.conversation))
        case ConfirmationAsked():
            call = replace(call, asked=True)
        case Confirmed():
            call = replace(call, verdict=call.verdict or fact)
        case CustomAsked():
            call = replace(call, handed_out=True)
        case CustomAnswered(result=result):
            call = replace(call, answer=call.answer or result)
        case _:
            assert_never(fact)
    return replace(state, calls={**state.calls, fact.id: call})

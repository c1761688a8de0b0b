"""What requests of a session begin with, as long as nothing but the conversation changes. Pure.

A request is a view of the whole log, and is the same whether or not anything is remembered: what was written for the
request before is only written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.harness.core import Compacted, Config, DoorRefused, HandNews, Offered, Replied, Said
from services.harness.loops.messages.policy import DEFAULT, Policy
from services.harness.loops.messages.trimming import Tally
from services.harness.turn.state import Link, Plainness, State

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spelled:
    """A message as it is written. `parts` are its own where it may be the last one that a request before had."""

    text: str
    parts: Block | None = None


@dataclass(frozen=True, slots=True)
class System:
    """A system prompt that holds since a position, behind what was said before."""

    position: int
    text: str


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the messages: as parts, as the prompt's hash begins, and as the body begins.

    `start` is the position of the log from which on the messages are.
    """

    config: Config
    offers: Mapping[str, Offered]
    start: int
    parts: dict[str, Any]
    prompt: str = ""
    body: str = ""

    def is_of(self, state: State, newest_model: str, start: int) -> bool:
        """Tells whether it still holds."""
        same = self.config is state.config and self.offers is state.offers and self.start == start
        return same and self.parts["model"] == (state.config.model or newest_model)


@dataclass(frozen=True, slots=True)
class Told:
    """What the model was told up to a reply and with it.

    `start`, `policy` and `fetchable` are what it was made with (see `view`). `before` is the conversation as far as the
    reply had read. `prior` counts the messages behind which the reply
    stands, `prompt` is the hash of the prompt up to there. The other fields are what a view goes on with.
    """

    reply: Replied
    start: int
    policy: Policy
    fetchable: bool
    tally: Tally
    before: Link | None
    plainness: Plainness
    prior: int
    border: int
    asked: tuple[str, ...]
    texts: tuple[Block, ...]
    refusals: tuple[DoorRefused | HandNews, ...]
    notes: tuple[Block, ...]
    late: tuple[int, str] | None
    count: int  # of the messages up to there
    messages: tuple[Spelled, ...] = ()
    head: Head | None = None
    prompt: Any = None

    @property
    def size(self) -> int:
        """Returns about how many bytes it takes."""
        return sum(len(message.text) for message in self.messages)


def cause(fact: Said | System) -> tuple[int, int]:
    """Orders what was said by what it was said in sight of."""
    return (fact.read, 1) if isinstance(fact, Replied) else (fact.position, 0)


def start_of(state: State, policy: Policy) -> int:
    """Returns the position from which on the model is told the log itself; a summary stands for what is before."""
    return state.compacted.end if state.compacted and not policy.ignore else 0


def conversation(state: State, before: Link | None = None, start: int = 0) -> list[Said]:
    """Lists what was said, newest first: all of it, or what lies behind a part, or is not summarised."""
    facts: list[Said] = []
    link = state.conversation
    while link is not None and link is not before and link.fact.position >= start:
        if not isinstance(link.fact, Compacted) and cause(link.fact) >= (start, 0):
            facts.append(link.fact)
        link = link.before
    return facts


def since(state: State, told: Told | None, policy: Policy = DEFAULT, fetchable: bool = False) -> list[Said] | None:
    """Lists what was said since, newest first; None when a view has to begin anew."""
    if told is None or told.plainness != state.plainness or told.fetchable != fetchable:
        return None
    start = start_of(state, policy)
    if told.start != start or told.policy != policy:
        return None
    facts = conversation(state, told.before, start)
    fresh = [fact for fact in facts if fact is not told.reply]
    if len(fresh) == len(facts) or any(cause(fact) <= cause(told.reply) for fact in fresh):
        return None
    return fresh


def systems(state: State, start: int, reply: Replied | None = None) -> tuple[str, list[System]]:
    """Returns the system prompt that the messages begin with, and those that have come since, or since a reply."""
    first = max((place for place, (position, _) in enumerate(state.systems) if position < start), default=0)
    _, text = state.systems[first] if state.systems else (0, state.config.system)
    read = reply.read if reply else 0
    return text, [System(position, said) for position, said in state.systems[first + 1 :] if position > read]


def read_by(state: State, reply: Replied) -> Link | None:
    """Returns the conversation as far as a reply had read."""
    link = state.conversation
    while link is not None and link.fact.position > reply.read:
        link = link.before
    return link

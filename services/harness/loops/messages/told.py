"""What requests of a session begin with, as long as nothing but the conversation changes. Pure.

A request is a view of the whole log, and is the same whether or not anything is remembered: what was written for the
request before is only written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.harness.core import Config, DoorRefused, HandNews, Offered, Replied, Said
from services.harness.turn.state import Link, Plainness, State

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spelled:
    """A message as it is written. `parts` are its own where it may be the last one that a request before had."""

    text: str
    parts: Block | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the messages: as parts, as the prompt's hash begins, and as the body begins."""

    config: Config
    offers: Mapping[str, Offered]
    parts: dict[str, Any]
    prompt: str = ""
    body: str = ""

    def is_of(self, state: State, newest_model: str) -> bool:
        """Tells whether it still holds."""
        model = state.config.model or newest_model
        return self.config is state.config and self.offers is state.offers and self.parts["model"] == model


@dataclass(frozen=True, slots=True)
class Told:
    """What the model was told up to a reply and with it.

    `before` is the conversation as far as the reply had read. `prior` counts the messages behind which the reply
    stands, `prompt` is the hash of the prompt up to there. The other fields are what a view goes on with.
    """

    reply: Replied
    before: Link | None
    plainness: Plainness
    prior: int
    border: int
    asked: tuple[str, ...]
    texts: tuple[Block, ...]
    refusals: tuple[DoorRefused | HandNews, ...]
    count: int  # of the messages up to there
    messages: tuple[Spelled, ...] = ()
    head: Head | None = None
    prompt: Any = None

    @property
    def size(self) -> int:
        """Returns about how many bytes it takes."""
        return sum(len(message.text) for message in self.messages)


def cause(fact: Said) -> tuple[int, int]:
    """Orders what was said by what it was said in sight of."""
    return (fact.read, 1) if isinstance(fact, Replied) else (fact.position, 0)


def conversation(state: State, before: Link | None = None) -> list[Said]:
    """Lists what was said, newest first: all of it, or what lies behind a part."""
    facts = []
    link = state.conversation
    while link is not None and link is not before:
        facts.append(link.fact)
        link = link.before
    return facts


def since(state: State, told: Told | None) -> list[Said] | None:
    """Lists what was said since, newest first; None when a view has to begin anew."""
    if told is None or told.plainness != state.plainness:
        return None
    facts = conversation(state, told.before)
    fresh = [fact for fact in facts if fact is not told.reply]
    if len(fresh) == len(facts) or any(cause(fact) <= cause(told.reply) for fact in fresh):
        return None
    return fresh


def read_by(state: State, reply: Replied) -> Link | None:
    """Returns the conversation as far as a reply had read."""
    link = state.conversation
    while link is not None and link.fact.position > reply.read:
        link = link.before
    return link

"""States of sessions that were worked on lately: their next turn reads only what is new.

Nothing depends on them: each can be folded again from its log, and is, when the log does not hold the fact that it was
folded to last.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from services.harness.core import CallFinished, DoorRefused, Fact
from services.harness.turn.state import Link, State

MAX_SESSIONS = 256
MAX_BYTES = 2 * 1024 * 1024  # of what is remembered, as far as it grows with the conversation
FACT_BYTES = 600  # that a fact takes beside its text


class Told(Protocol):
    """What a type remembers of what it made of a log. Whoever has lost it makes the same of the log again."""

    @property
    def size(self) -> int:
        """Returns about how many bytes it takes."""


@dataclass(frozen=True)
class Known:
    """What a log says up to `last`, the fact that was folded last, and what the model was told of it."""

    state: State
    last: Fact
    said: int  # bytes of the conversation
    told: Told | None = None

    @property
    def size(self) -> int:
        """Returns about how many bytes it takes, as far as that grows with the conversation."""
        return self.said + (self.told.size if self.told else 0)


class Lately:
    """The newest ones, as many as fit."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._size = 0

    def take(self, session_id: str) -> Known | None:
        """Returns what is known of a session, and forgets it."""
        known = self._known.pop(session_id, None)
        self._size -= known.size if known else 0
        return known

    def keep(self, session_id: str, state: State, last: Fact, told: Told | None, before: Known | None) -> None:
        """Remembers a state. `before` is what it was folded from, if anything was known."""
        self.take(session_id)
        known = self._known[session_id] = Known(state, last, _grown(state.conversation, before), told)
        self._size += known.size
        while self._size > self._max_bytes or len(self._known) > MAX_SESSIONS:
            self.take(next(iter(self._known)))


def _grown(link: Link | None, before: Known | None) -> int:
    """Adds up what a conversation takes, beginning where it was added up before."""
    end, size = (before.state.conversation, before.said) if before else (None, FACT_BYTES)
    while link is not None and link is not end:
        size += FACT_BYTES + _text(link.fact)
        link = link.before
    return size


def _text(fact: object) -> int:
    if isinstance(fact, CallFinished):
        return len(fact.result.output) + len(fact.result.content)
    if isinstance(fact, DoorRefused):
        return len(fact.target) + len(fact.message)
    return len(getattr(fact, "content", ""))

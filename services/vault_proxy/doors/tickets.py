"""Tickets: what shows at the door listener whose connection it is. Each works once, and soon.

Only a ticket's SHA-256 is kept. Tickets are in this process's memory: they lead to this replica's listener alone.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from services.kit.errors import Full
from services.vault_proxy.doors.visit import Visit

BYTES = 32
CHARACTERS = 43  # that so many bytes take in base64
LIFE_SECONDS = 10.0
MOST_TICKETS = 4_096  # of all sessions together


@dataclass(frozen=True)
class Ticket:
    """What was asked for: a door by its name, and whose connection comes."""

    door: str
    visit: Visit
    until: float


class Tickets:
    """Issues tickets and takes them back. `now` is a clock in seconds that only goes forward."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._issued: dict[bytes, Ticket] = {}

    def issue(self, door: str, visit: Visit) -> str:
        """Makes a ticket. Raises Full (`FULL`)."""
        self._tidy()
        if len(self._issued) >= MOST_TICKETS:
            raise Full("FULL", f"{MOST_TICKETS} tickets wait to be used", retry_after=1.0, limit=MOST_TICKETS)
        text = secrets.token_urlsafe(BYTES)
        self._issued[_key(text)] = Ticket(door, visit, self._now() + LIFE_SECONDS)
        return text

    def redeem(self, text: str) -> Ticket | None:
        """Returns what the ticket is for, once; None for one that was used, is too old, or never was."""
        ticket = self._issued.pop(_key(text), None)
        return ticket if ticket is not None and self._now() < ticket.until else None

    def forget(self, session_id: str) -> None:
        """Voids a session's tickets."""
        self._issued = {
            key: ticket for key, ticket in self._issued.items() if ticket.visit.access.session_id != session_id
        }

    def waiting(self, session_id: str) -> int:
        """Returns how many of a session's tickets can still be used."""
        self._tidy()
        return sum(ticket.visit.access.session_id == session_id for ticket in self._issued.values())

    def _tidy(self) -> None:
        now = self._now()
        self._issued = {key: ticket for key, ticket in self._issued.items() if now < ticket.until}


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()

"""The doors' reception: what a sandbox is told of its doors, and the tickets with which its connections come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from services.kit.errors import Full, Invalid
from services.vault_proxy.core.git_rules import Rule
from services.vault_proxy.doors.listener import Listener
from services.vault_proxy.doors.tickets import Tickets
from services.vault_proxy.doors.visit import Door, Visit
from services.vault_proxy.grants import Access

MOST_AT_ONCE = 64  # connections of one session, those included whose ticket waits to be used
RETRY_SECONDS = 1.0


class Substitutes(Protocol):
    """What stands for credentials in a sandbox."""

    async def placeholders(self, access: Access) -> list[tuple[str, str]]:
        """Returns (variable, value) for each credential that is replaced at the egress door. Raises Unavailable."""
        ...

    @property
    def ca_certificate(self) -> str:
        """The certificate, PEM, of the authority that signs for hosts where one is replaced. Empty when none is."""
        ...


@dataclass(frozen=True)
class Prepared:
    """What a sandbox is told. `placeholders` are (variable, value)."""

    placeholders: tuple[tuple[str, str], ...] = ()
    ca_certificate: str = ""
    repositories: tuple[Rule, ...] = ()


class Reception:
    """Prepares sandboxes, and lets their connections in. `address` is where others find the listener.

    `doors` are by name, as the listener has them.
    """

    def __init__(
        self,
        doors: Mapping[str, Door],
        tickets: Tickets,
        listener: Listener,
        substitutes: Substitutes | None = None,
        address: str | None = None,
    ) -> None:
        self._doors = doors
        self._tickets = tickets
        self._listener = listener
        self._substitutes = substitutes
        self._address = address

    async def prepare(self, access: Access) -> Prepared:
        """Says what a session's sandbox must be told. Raises Unavailable (`VAULT_UNAVAILABLE`)."""
        if self._substitutes is None:
            return Prepared(repositories=access.repositories)
        placeholders = await self._substitutes.placeholders(access)
        return Prepared(tuple(placeholders), self._substitutes.ca_certificate, access.repositories)

    def open(self, door: str, visit: Visit) -> tuple[str, str]:
        """Returns a ticket for one connection, and where to bring it.

        Raises Invalid (`ARGUMENT_INVALID`) for a door that is not there, and Full (`FULL`).
        """
        if door not in self._doors:
            raise Invalid("ARGUMENT_INVALID", f"kind: there is no such door as {door or 'none'}", field="kind")
        session_id = visit.access.session_id
        if self._listener.open(session_id) + self._tickets.waiting(session_id) >= MOST_AT_ONCE:
            message = f"a session has at most {MOST_AT_ONCE} connections through its doors at once"
            raise Full("FULL", message, retry_after=RETRY_SECONDS, limit=MOST_AT_ONCE)
        return self._tickets.issue(door, visit), self._address or self._listener.address

    def end_session(self, session_id: str) -> None:
        """Cuts a session's connections, and voids its tickets."""
        self._tickets.forget(session_id)
        self._listener.end_session(session_id)

"""The audit stream: what credentials were used for, and what the doors of hands refused, by tenant and session.

An entry is stored before the session's log is asked to take its event, so whatever was acknowledged to the vault proxy
is here; and also what a log refuses, because its session has ended, is full or was deleted meanwhile. It lies in a
stream of its own, which nobody purges and in which nothing can be replaced: one subject for each event, by the event's
id, so an event that is told again is here once. NATS drops what is older than the operator wants it (`migrate`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import AuditEntry
from services.kit import ids
from services.kit.errors import Invalid, Unavailable
from services.session import codec
from services.session.emitters import VAULT_PROXY
from services.session.index import prefix_of
from services.session.log import DeletedError, Registry
from services.session.tombstones import Tombstones
from services.session.writer import Writer

BUCKET = "audit"
AUDITED = frozenset({"credential_used", "door_refused"})
PAGE = 100
MAX_PAGE = 1_000
PAGE_BYTES = 3 * 1024 * 1024  # of a page; one entry always fits
NAME_CHARACTERS = 40  # of SHA-256, in hex


class Audit:
    """Keeps entries, and reads them. `now` is in nanoseconds since 1970."""

    def __init__(self, registry: Registry, stones: Tombstones, writer: Writer, now: Callable[[], int]) -> None:
        self._registry = registry
        self._stones = stones
        self._writer = writer
        self._now = now

    async def keep(self, session_id: str, events: Sequence[Event]) -> None:
        """Stores those of a vault proxy's events that are audited, unless they are there. Durable on return.

        Raises Gone (`SESSION_NOT_FOUND`) for a session that never was, and Unavailable.
        """
        audited = [event for event in events if event.WhichOneof("kind") in AUDITED]
        if not audited:
            return
        prefix = f"{prefix_of(await self._tenant(session_id))}{session_id}."
        for event in audited:
            event_id = event.event_id or ids.mint("event")
            name = hashlib.sha256(event_id.encode()).hexdigest()[:NAME_CHARACTERS]
            kept = Event()
            kept.CopyFrom(event)
            kept.event_id, kept.emitter = event_id, VAULT_PROXY
            kept.emit_time.CopyFrom(codec.timestamp(self._now()))
            await self._registry.swap(BUCKET, prefix + name, kept.SerializeToString(), 0)

    async def page(self, tenant: str, session_id: str, page_size: int, page_token: str) -> tuple[list[AuditEntry], str]:
        """Returns a page of a tenant's entries, or of one session's, oldest first, and the next one's token."""
        if not 0 <= page_size <= MAX_PAGE:
            raise Invalid("ARGUMENT_INVALID", f"page_size is from 0 to {MAX_PAGE}", field="page_size")
        if page_token and not (page_token.isascii() and page_token.isdecimal() and len(page_token) < 20):
            raise Invalid("ARGUMENT_INVALID", "page_token is none that was given out", field="page_token")
        prefix = prefix_of(tenant) + (f"{session_id}." if session_id else "")
        found, whole = await self._registry.changes(BUCKET, int(page_token or 0), prefix, page_size or PAGE)
        entries: list[AuditEntry] = []
        room = PAGE_BYTES
        for key, entry in found:
            room -= len(entry.value)
            if entries and room < 0:
                whole = False
                break
            event = Event.FromString(entry.value)
            entries.append(AuditEntry(session_id=key.split(".")[1], event=event))
        return entries, "" if whole or not entries else str(found[len(entries) - 1][1].revision)

    async def _tenant(self, session_id: str) -> str:
        """Says whose a session is, or was before it was deleted."""
        state = self._writer.remembered(session_id)
        if state is not None and state.tenant:
            return state.tenant
        try:
            return (await self._writer.current(session_id)).tenant
        except DeletedError:
            stone = await self._stones.find(session_id)
            if stone is None:  # it is being deleted right now
                raise Unavailable("LOG_UNAVAILABLE", "the session is being deleted", retry_after=1.0) from None
            return stone.tenant

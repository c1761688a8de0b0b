"""Accounts that are being connected: kept in the vault, so that any replica can finish what another has started.

Each is a document at a place that its state names. It is used up by compare-and-set before anything is done with it:
of two who bring the same state, one goes on. What nobody comes back for is swept by the starts that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.kit.errors import Conflict, Full, ServiceError
from services.kit.logs import Log
from services.vault_proxy import trail
from services.vault_proxy.connecting.sealing import seal, unseal
from services.vault_proxy.core.authorizing import STATE, Attempt, attempt_of
from services.vault_proxy.ports import CredentialStore

LIFETIME_SECONDS = 600.0  # for a person to log in and to agree
MOST_PENDING = 1_000  # of a tenant
SWEPT = 50  # that are looked at by one start: places are hashes, so the first of them are any

_log = Log("services.vault_proxy.connecting")


class Pending:
    """Keeps attempts. `now` is Unix time in seconds."""

    def __init__(self, store: CredentialStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    async def put(self, tenant: str, state: str, attempt: Attempt) -> float:
        """Keeps an attempt under a new state. Returns when it ends. Raises Full."""
        names = await self._store.list(trail.connections_folder(tenant))
        swept = await asyncio.gather(*(self._sweep(tenant, name) for name in names[:SWEPT]))
        if len(names) - sum(swept) >= MOST_PENDING:
            raise Full("FULL", f"{MOST_PENDING} accounts are being connected", retry_after=LIFETIME_SECONDS)
        place, ends = trail.connection(tenant, state), self._now() + LIFETIME_SECONDS
        fields = {"sealed": seal(state, place, attempt.fields()), "expires": f"{ends:.0f}"}
        await self._store.write(place, fields, 0)
        return ends

    async def take(self, tenant: str, state: str) -> Attempt | None:
        """Returns a state's attempt, once; None for one that is unknown, used or too old."""
        if not STATE.fullmatch(state):
            return None
        place = trail.connection(tenant, state)
        document = await self._store.read(place)
        fields = document.fields.reveal() if document else {}
        if document is None or "sealed" not in fields:
            return None
        ends = fields.get("expires", "")
        try:
            await self._store.write(place, {"expires": ends}, document.version)
        except Conflict:
            return None  # somebody else was first
        try:
            await self._store.purge(place)
        except ServiceError as problem:  # what is left says nothing, and is swept
            _log.warning("a used state is not purged", reason=problem.reason)
        opened = unseal(state, place, fields["sealed"]) if self._lives(ends) else None
        return attempt_of(opened) if opened is not None else None

    async def _sweep(self, tenant: str, name: str) -> bool:
        path = f"{trail.connections_folder(tenant)}/{name}"
        document = await self._store.read(path)
        if document is not None and self._lives(document.fields.reveal().get("expires", "")):
            return False
        await self._store.purge(path)
        return True

    def _lives(self, ends: str) -> bool:
        return ends.isascii() and ends.isdigit() and self._now() < float(ends)

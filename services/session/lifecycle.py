"""What happens to a session as a whole: put away and taken out again, and deleted."""

from __future__ import annotations

from collections.abc import Callable

from handmesh.session.v1.event_pb2 import Event, SessionArchived, SessionRestored
from handmesh.session.v1.session_pb2 import Session
from services.kit.errors import Gone, Refused
from services.session import codec, tombstones
from services.session.claims import Claims
from services.session.core import WriteState
from services.session.emitters import SESSION
from services.session.families import DELETED, ENDED, Families
from services.session.grants import Grants
from services.session.index import Index, prefix_of
from services.session.log import Log, Wire
from services.session.sessions import Sessions
from services.session.tombstones import Tombstone, Tombstones
from services.session.writer import NOTE, Draft, Writer


class Lifecycle:
    """Archives, restores and deletes. `log` is the store's own, in which fences can be seen."""

    def __init__(
        self,
        log: Log,
        wire: Wire,
        stones: Tombstones,
        writer: Writer,
        sessions: Sessions,
        index: Index,
        claims: Claims,
        grants: Grants,
        families: Families,
        now: Callable[[], int],
    ) -> None:
        self._log = log
        self._wire = wire
        self._stones = stones
        self._writer = writer
        self._sessions = sessions
        self._index = index
        self._claims = claims
        self._grants = grants
        self._families = families
        self._now = now

    async def archive(self, session_id: str, restore: bool, tenant: str | None) -> Session:
        """Makes a session read-only, or writable again (see `ArchiveSession`)."""
        if (await self._writer.current(session_id, tenant)).archived == restore:
            await self._sessions.carry(self._put_away(session_id, restore, tenant))
        return await self._sessions.get(session_id, tenant)

    async def delete(self, session_id: str, tenant: str | None) -> None:
        """Deletes a session (see `DeleteSession`). Whoever deletes it again is told the same."""
        if tenant is not None:
            stone = await self._stones.find(session_id)  # purged, it has nothing else
            if stone is None or stone.tenant != tenant:
                await self._writer.check_tenant(session_id, tenant)
        owner = await self._owner(session_id)
        if tenant not in (None, owner):
            raise tombstones.gone(session_id)
        await self._sessions.carry(self._delete(session_id, owner))

    async def discard(self, session_id: str, tenant: str) -> None:
        """Deletes what was begun and is not to become a session, whatever there is of it."""
        await self._sessions.carry(self._delete(session_id, tenant))

    async def clear(self, session_id: str, prefix: str, why: str = DELETED) -> None:
        """Deletes what was announced long ago and never made. `prefix` is of its entry in the index; `why` is for the
        session that wanted to start it."""
        await self._sessions.carry(self._bury(session_id, "", prefix, why))

    async def resume(self, session_id: str, prefix: str) -> None:
        """Carries a deletion through that was begun by a process that may be no more; harmless if it lives."""
        try:
            owner = await self._owner(session_id)
        except Gone:
            owner = ""  # nothing of it is there any more
        await self._sessions.carry(self._bury(session_id, owner, prefix))

    async def was_deleted(self, session_id: str) -> bool:
        """Says whether an id has a tombstone."""
        return await self._stones.find(session_id) is not None

    async def _put_away(self, session_id: str, restore: bool, tenant: str | None) -> None:
        event = Event(session_restored=SessionRestored()) if restore else Event(session_archived=SessionArchived())
        event.ignorable = True
        draft = Draft([event], [codec.fact_of(event, SESSION)], tenant=tenant)
        try:
            state = (await self._writer.append(session_id, draft)).state
        except Refused as refused:
            if refused.reason != "SESSION_ARCHIVED":
                raise
            return  # somebody else was faster
        self._index.note(session_id, state)
        if restore:
            await self._hear(session_id, state)
        else:
            await self._grants.revoke(session_id, below_epoch=0)
            await self._families.settle(session_id, state.children)
        await self._claims.want(session_id, state)

    async def _hear(self, session_id: str, state: WriteState) -> None:
        """Tells a session that is restored which children have ended meanwhile: all of them, but for accidents."""
        for child in tuple(state.children):
            try:
                if (await self._writer.current(child)).ended:
                    await self._families.tell(session_id, child, ENDED)
            except Gone:
                await self._families.tell(session_id, child, DELETED)

    async def _delete(self, session_id: str, owner: str) -> None:
        await self._bury(session_id, owner, prefix_of(owner))

    async def _bury(self, session_id: str, owner: str, prefix: str, why: str = DELETED) -> None:
        """Deletes, in steps that may all be repeated. The first makes sure that the others are taken."""
        row = await self._index.doom(session_id, prefix)
        fence = await tombstones.fence(self._log, session_id, self._now())
        if fence is not None:
            await self._wire.send(NOTE, session_id, codec.note(fence))
        await self._stones.put(session_id, Tombstone(self._now() // 1_000_000, owner, row.request))
        await self._grants.revoke(session_id, below_epoch=0)
        await self._families.forget(session_id, row.parent, why)
        await self._index.bury(session_id, prefix)

    async def _owner(self, session_id: str) -> str:
        """Says whose a session is or was. A deletion that broke off half-way is found in the log alone."""
        try:
            return (await self._writer.current(session_id)).tenant
        except Gone:
            stone = await self._stones.find(session_id)
            if stone is not None:
                return stone.tenant
            for batch in await self._log.read(session_id, 1, 2, 1):
                return codec.unseal(batch.data)[0].session_started.config.tenant
            raise

"""Finds sessions, newest first.

Each replica holds the index in memory and reads, before it answers, what has changed in it since: one small question
to the store, so every session that was made before is found. The rows say who may be asked for; then the logs of
those alone are looked at, so what is returned is true. A session whose status has just changed can be missing from a
list by status for `index.LAG_SECONDS`; after a crash, until the next survey has come by.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2 import Session, SessionStatus
from services.kit import ids
from services.kit.errors import Gone, Invalid
from services.session import codec
from services.session.core import Status, WriteState, status
from services.session.index import BUCKET, Index, Row, merged, prefix_of
from services.session.log import Registry
from services.session.reader import Reader
from services.session.slices import PAGE_BYTES, Cut
from services.session.writer import Writer

DEFAULT_PAGE = 50
MAX_PAGE = 1_000
MAX_SCAN = 10_000  # rows that one page looks at
SLACK = 60 * 1_000_000_000  # nanoseconds between an entry and its session's first event
AT_ONCE = 16  # logs that are looked at at once
_GONE = Row(gone=True)
_AT_WORK = (int(Status.RUNNING), int(Status.RETRYING))


@dataclass(frozen=True)
class Filter:
    """Which sessions are asked for. Times are in nanoseconds; 0 means any."""

    statuses: frozenset[int] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    harness: str = ""
    created_after: int = 0
    created_before: int = 0
    updated_before: int = 0
    archived: bool = False  # whether those are wanted, too

    def fits(self, row: Row) -> bool:
        """Says whether a session may be asked for, as far as its row tells. Its log tells the exact time."""
        return (
            not row.gone
            and row.made
            and (self.archived or not row.archived)
            and (not self.statuses or row.status in self.statuses)
            and (not self.harness or row.harness == self.harness)
            and all(row.labels.get(key) == value for key, value in self.labels.items())
            and row.created >= self.created_after - SLACK
            and (not self.created_before or row.created < self.created_before + SLACK)
            and (not self.updated_before or row.updated < self.updated_before)  # a row is no newer than its log
        )

    def fits_state(self, state: WriteState) -> bool:
        """Says whether a session is asked for, as far as its log tells."""
        return (
            (self.archived or not state.archived)
            and (not self.statuses or int(status(state)) in self.statuses)
            and state.create_time >= self.created_after
            and (not self.created_before or state.create_time < self.created_before)
            and (not self.updated_before or state.update_time < self.updated_before)
        )


@dataclass(frozen=True)
class Child:
    """A session that another one started, with its tenant's prefix."""

    session_id: str
    prefix: str
    row: Row


def summary_of(tenant: str, session_id: str, row: Row) -> Session:
    """Makes what a row tells of a session."""
    return Session(
        session_id=session_id,
        config=SessionConfig(tenant=tenant, harness=row.harness, labels=row.labels, parent_session_id=row.parent),
        status=SessionStatus.ValueType(row.status),
        create_time=codec.timestamp(row.created),
        update_time=codec.timestamp(row.updated),
        last_position=row.position,
        archived=row.archived,
    )


def _check(page_size: int, page_token: str) -> None:
    if page_size < 0:
        raise Invalid("ARGUMENT_INVALID", f"page_size is negative: {page_size}", field="page_size")
    if page_token and not ids.MINTED.fullmatch(page_token):
        raise Invalid("ARGUMENT_INVALID", "page_token is not one of ours", field="page_token")


class Listing:
    """The index, as this process knows it.

    The lock protects the order of changes: two readers at once would each apply the same ones.
    """

    def __init__(self, registry: Registry, index: Index, writer: Writer, reader: Reader) -> None:
        self._index = index
        self._registry = registry
        self._writer = writer
        self._reader = reader
        self._rows: defaultdict[str, dict[str, Row]] = defaultdict(dict)  # by tenant's prefix and session
        self._order: defaultdict[str, list[str]] = defaultdict(list)  # oldest first
        self._doomed: dict[str, str] = {}  # sessions whose deletion has begun, with their tenant's prefix
        self._at_work: set[str] = set()
        self._children: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by parent, with their tenant's prefix
        self._revision = 0
        self._lock = asyncio.Lock()

    async def page(self, tenant: str, which: Filter, page_size: int, page_token: str) -> tuple[list[Session], str]:
        """Returns a page of sessions, newest first, and where the next one starts; empty when there is none."""
        _check(page_size, page_token)
        await self.sync()
        cut = Cut(min(page_size or DEFAULT_PAGE, MAX_PAGE), PAGE_BYTES)
        rows, order = self._rows[prefix_of(tenant)], tuple(self._order[prefix_of(tenant)])
        left = bisect.bisect_left(order, page_token) if page_token else len(order)
        least = max(0, left - MAX_SCAN)
        token = page_token
        found: list[Session] = []
        while left > least and not cut.full:
            part: list[str] = []
            while left > least and len(part) < cut.most - cut.taken:
                left -= 1
                if which.fits(rows.get(order[left], _GONE)):
                    part.append(order[left])
            for session in await self._look(part, which):
                if not cut.takes(session.ByteSize()):
                    return found, token
                found.append(session)
                token = session.session_id
            token = order[left]
        return found, token if left > 0 else ""

    async def summary(self, tenant: str, which: Filter, page_size: int, page_token: str) -> tuple[list[Session], str]:
        """Returns a page as `page` does, of what is remembered: no log is read (see `ListSessionsRequest.summary`)."""
        _check(page_size, page_token)
        await self.sync()
        rows, order = self._rows[prefix_of(tenant)], self._order[prefix_of(tenant)]
        cut = Cut(min(page_size or DEFAULT_PAGE, MAX_PAGE), PAGE_BYTES)
        left = bisect.bisect_left(order, page_token) if page_token else len(order)
        least = max(0, left - MAX_SCAN)
        found: list[Session] = []
        while left > least and not cut.full:
            session_id = order[left - 1]
            session = self._summary(tenant, session_id, rows[session_id], which)
            if session is not None:
                if not cut.takes(session.ByteSize()):
                    break
                found.append(session)
            left -= 1
        return found, order[left] if left > 0 else ""

    def _summary(self, tenant: str, session_id: str, row: Row, which: Filter) -> Session | None:
        """Makes a session of its row and, where this process has written to it lately, of what its log says."""
        state = self._writer.remembered(session_id)
        if state is None or state.head < row.position:
            return summary_of(tenant, session_id, row) if which.fits(row) else None
        row = replace(row, status=int(status(state)), archived=state.archived)
        if not which.fits(row) or not which.fits_state(state):
            return None
        return codec.session(session_id, state, summary_of(tenant, session_id, row).config)

    def rows(self) -> Iterator[tuple[str, str, Row]]:
        """Yields tenant's prefix, id and row of all sessions there are, as of the last sync."""
        for prefix, rows in tuple(self._rows.items()):
            for session_id, row in tuple(rows.items()):
                yield prefix, session_id, row

    def doomed(self) -> list[tuple[str, str]]:
        """Returns prefix and id of the sessions whose deletion has begun and not ended, as of the last sync."""
        return [(prefix, session_id) for session_id, prefix in self._doomed.items()]

    def row(self, prefix: str, session_id: str) -> Row | None:
        """Returns a session's row, if there is one, as of the last sync."""
        return self._rows[prefix].get(session_id)

    def children_of(self, session_id: str) -> list[str]:
        """Returns the ids of the sessions that one has started and that are not deleted, as of the last sync."""
        return list(self._children.get(session_id, ()))

    def children(self) -> Iterator[Child]:
        """Yields all sessions that others have started, as of the last sync. One that is being deleted is not here."""
        for children in tuple(self._children.values()):
            for session_id, prefix in tuple(children.items()):
                row = self._rows[prefix].get(session_id)
                if row is not None and not row.doomed:
                    yield Child(session_id, prefix, row)

    def at_work(self) -> list[str]:
        """Returns the ids of the sessions that need a harness or have one, as of the last sync."""
        return list(self._at_work)

    async def sync(self) -> None:
        """Reads what has changed since the last time."""
        async with self._lock:
            whole = False
            while not whole:
                changed, whole = await self._registry.changes(BUCKET, self._revision)
                for key, entry in changed:
                    self._take(key, Row.unpack(entry.value))
                    self._revision = entry.revision
        for key, row in self._index.behind():
            prefix, _, session_id = key.partition(".")
            there = self._rows[prefix + "."].get(session_id)
            if there is not None:
                self._take(key, merged(there, row))

    def _take(self, key: str, row: Row) -> None:
        prefix, _, session_id = key.partition(".")
        rows, order = self._rows[prefix + "."], self._order[prefix + "."]
        if row.status in _AT_WORK and row.made and not (row.gone or row.archived or row.doomed):
            self._at_work.add(session_id)
        else:
            self._at_work.discard(session_id)
        if row.gone:
            self._doomed.pop(session_id, None)
            self._drop_child(session_id, rows.get(session_id, _GONE).parent)
            if rows.pop(session_id, None) is not None:
                del order[bisect.bisect_left(order, session_id)]
            return
        if row.doomed:
            self._doomed[session_id] = prefix + "."
        if session_id not in rows:
            bisect.insort(order, session_id)
        rows[session_id] = row
        if row.parent:
            self._children[row.parent][session_id] = prefix + "."

    def _drop_child(self, session_id: str, parent: str) -> None:
        if parent in self._children:
            self._children[parent].pop(session_id, None)
            if not self._children[parent]:
                del self._children[parent]

    async def _look(self, session_ids: Sequence[str], which: Filter) -> list[Session]:
        """Returns those that fit by their logs, in order."""
        few = asyncio.Semaphore(AT_ONCE)  # bounds how many logs are looked at at once

        async def look(session_id: str) -> Session | None:
            async with few:
                try:
                    state = await self._writer.current(session_id)
                except Gone:
                    return None
                if not which.fits_state(state):
                    return None
                config = await self._reader.config(session_id, state.config_position)
                return codec.session(session_id, state, config)

        return [session for session in await asyncio.gather(*map(look, session_ids)) if session is not None]

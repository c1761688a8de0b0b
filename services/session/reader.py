"""Reads logs: slices, by pages; the event that an anchor means; who owns a session."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event, ToolsOffered
from services.kit.errors import Gone, Refused
from services.session import codec
from services.session.core import known
from services.session.log import BATCH_SPAN, Log, StoredBatch
from services.session.slices import MAX_SCAN, PAGE_BYTES, Ask, Cut, Span, after, next_read, resolve, token
from services.session.writer import Writer

READ_SPAN = 1_000  # a page
BACK_SPAN = 64  # of one read backwards, which is kept whole: at most 64 MiB
MAX_OWNERS = 65_536  # remembered
MAX_CONFIGS = 256  # remembered


K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Anchor:
    """A place in a log: exactly one of them is set. `time` is in nanoseconds."""

    position: int | None = None
    event_id: str | None = None
    time: int | None = None


@dataclass(frozen=True)
class Page:
    """A page of a slice, in the order asked for. `data` is its events as they are stored, one after the other."""

    data: bytes
    next_position: int
    last_position: int

    @property
    def events(self) -> Sequence[Event]:
        """The events."""
        return codec.unseal(self.data)


class Reader:
    """Reads what is stored. Every call sees what was appended before it, by whichever replica."""

    def __init__(self, log: Log, writer: Writer) -> None:
        self._log = log
        self._writer = writer
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._configs: OrderedDict[tuple[str, int], SessionConfig] = OrderedDict()

    async def check(self, session_id: str, tenant: str | None) -> None:
        """Raises Gone when there is no such session, or it is another tenant's. Nobody's tenant is None."""
        await self._writer.check_tenant(session_id, tenant)
        owner = self._owners.get(session_id)
        if owner is None:
            for batch in await self._log.read(session_id, 1, 2, 1):
                owner = codec.unseal(batch.data)[0].session_started.config.tenant
                _remember(self._owners, session_id, owner, MAX_OWNERS)
        if owner is None:
            owner = (await self._writer.current(session_id)).tenant  # a damaged log may have lost its first event
        if owner is None or tenant not in (None, owner):
            raise Gone("SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id)

    async def config(self, session_id: str, position: int) -> SessionConfig:
        """Returns the configuration that an event of the log holds."""
        found = self._configs.get((session_id, position))
        if found is None:
            event = await self._event(session_id, position)
            kind = event.WhichOneof("kind")
            found = event.config_changed.config if kind == "config_changed" else event.session_started.config
            _remember(self._configs, (session_id, position), found, MAX_CONFIGS)
        return found

    async def page(self, session_id: str, ask: Ask, anchor: Anchor | None = None) -> Page:
        """Returns a page of a slice. Raises Gone (`EVENT_NOT_FOUND`) for an anchor that is not in the log."""
        ask.check(anchored=anchor is not None)
        early = None if anchor is not None else self._read_early(session_id, ask)
        try:
            last = await self._log.head(session_id)
            if last is None:
                await self._writer.current(session_id)  # raises Gone, unless there is a mark of a log that is lost
            head = last.last_position if last else 0
            position = None if anchor is None else await self._locate(session_id, anchor, head)
            span = resolve(ask, head, position)
            entries, left = await self._fill(session_id, span, ask, await early if early else ())
        finally:
            if early:
                early.cancel()
        return Page(b"".join(entries), token(left, descending=ask.descending), head)

    def _read_early(self, session_id: str, ask: Ask) -> asyncio.Task[Sequence[StoredBatch]] | None:
        """Begins to read before the head is known, where it does not matter: two questions take the time of one."""
        if ask.descending or ask.last or ask.kinds:
            return None
        start = max(1, ask.start)
        end = min(ask.end or start + ask.limit, start + ask.limit)
        if start >= end:
            return None
        task = asyncio.create_task(self._log.read(session_id, start, end, PAGE_BYTES))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, if nobody else hears it
        return task

    async def _fill(
        self, session_id: str, span: Span, ask: Ask, early: Sequence[StoredBatch]
    ) -> tuple[list[bytes], Span]:
        found: list[bytes] = []
        cut = Cut(ask.limit)
        looked_at, step = 0, BATCH_SPAN if ask.descending else READ_SPAN if ask.kinds else min(READ_SPAN, ask.limit)
        while span and not cut.full and looked_at < MAX_SCAN:
            part = next_read(span, step, descending=ask.descending)
            entries = await self._entries(session_id, part, early, whole=ask.descending)
            early = ()
            done = 0
            for position, entry in reversed(entries) if ask.descending else entries:
                if not ask.kinds or codec.unseal(entry)[0].WhichOneof("kind") in ask.kinds:
                    if cut.full or not cut.takes(len(entry)):
                        return found, after(span, done, descending=ask.descending) if done else span
                    found.append(entry)
                done = position
            span = after(span, done, descending=ask.descending)
            looked_at += len(entries)
            step = min(BACK_SPAN if ask.descending else READ_SPAN, step * 2)
        return found, span

    async def _entries(
        self, session_id: str, span: Span, early: Sequence[StoredBatch] = (), *, whole: bool
    ) -> list[tuple[int, bytes]]:
        """Reads a span in order: the whole of it, or as much as comes at once. Never nothing.

        `early` is what was read of it already, if anything.
        """
        found: list[tuple[int, bytes]] = []
        while span:
            fits = early and early[0].first_position <= span.start <= early[-1].last_position
            batches = early if fits else await self._log.read(session_id, span.start, span.end, PAGE_BYTES)
            early = ()
            if not batches or batches[0].first_position > span.start:
                raise Refused("SESSION_DAMAGED", f"the session's log has lost position {span.start}")
            for batch in batches:
                parts = [batch.data] if batch.count == 1 else codec.split(batch.data)
                for position, entry in enumerate(parts, batch.first_position):
                    if span.start <= position < span.end:
                        found.append((position, entry))
            span = Span(batches[-1].last_position + 1, span.end)
            if not whole:
                break
        return found

    async def offered(self, session_id: str, position: int) -> ToolsOffered | None:
        """Returns the ToolsOffered at a position; None where the log has something else, or ends before."""
        last = await self._log.head(session_id)
        if last is None or not 1 <= position <= last.last_position:
            return None
        event = await self._event(session_id, position)
        return event.tools_offered if event.HasField("tools_offered") else None

    async def _event(self, session_id: str, position: int) -> Event:
        entries = await self._entries(session_id, Span(position, position + 1), whole=True)
        return codec.unseal(entries[0][1])[0]

    async def _locate(self, session_id: str, anchor: Anchor, head: int) -> int:
        if anchor.time is not None:
            return await self._first_since(session_id, anchor.time, head)
        position = anchor.position or 0
        if anchor.event_id is not None:
            position = known(await self._writer.current(session_id), anchor.event_id)
        if not 1 <= position <= head:
            raise Gone("EVENT_NOT_FOUND", "the anchor is not in the log")
        return position

    async def _first_since(self, session_id: str, time: int, head: int) -> int:
        """Finds the first event emitted at or after a time, or one past the end: emit times never go back."""
        low, high = 1, head + 1
        while low < high:
            middle = (low + high) // 2
            event = await self._event(session_id, middle)
            if codec.nanoseconds(event.emit_time) < time:
                low = middle + 1
            else:
                high = middle
        return low


def _remember(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)

"""Reads logs: slices, by pages; the event that an anchor means; who owns a session."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event
from services.kit.errors import Gone, Refused
from services.session import codec
from services.session.core import known
from services.session.log import BATCH_SPAN, Log
from services.session.slices import MAX_SCAN, PAGE_BYTES, Ask, Cut, Span, after, next_read, resolve, token
from services.session.writer import Writer

READ_SPAN = 512
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
    """A page of a slice, in the order asked for."""

    events: Sequence[Event]
    next_position: int
    last_position: int


class Reader:
    """Reads what is stored. Every call sees what was appended before it, by whichever replica."""

    def __init__(self, log: Log, writer: Writer) -> None:
        self._log = log
        self._writer = writer
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._configs: OrderedDict[tuple[str, int], SessionConfig] = OrderedDict()

    async def check(self, session_id: str, tenant: str | None) -> None:
        """Raises Gone when there is no such session, or it is another tenant's. Nobody's tenant is None."""
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
        last = await self._log.head(session_id)
        if last is None:
            await self._writer.current(session_id)  # raises Gone, unless there is a mark of a log that is lost
        head = last.last_position if last else 0
        position = None if anchor is None else await self._locate(session_id, anchor, head)
        span = resolve(ask, head, position)
        events, left = await self._fill(session_id, span, ask)
        return Page(events, token(left, descending=ask.descending), head)

    async def _fill(self, session_id: str, span: Span, ask: Ask) -> tuple[list[Event], Span]:
        found: list[Event] = []
        cut = Cut(ask.limit)
        looked_at, step = 0, BATCH_SPAN if ask.descending else READ_SPAN if ask.kinds else min(READ_SPAN, ask.limit)
        while span and not cut.full and looked_at < MAX_SCAN:
            part = next_read(span, step, descending=ask.descending)
            events = await self._events(session_id, part, whole=ask.descending)
            for event in reversed(events) if ask.descending else events:
                if not ask.kinds or event.WhichOneof("kind") in ask.kinds:
                    if cut.full or not cut.takes(event.ByteSize()):
                        return found, span
                    found.append(event)
                span = after(span, event.position, descending=ask.descending)
            looked_at += len(events)
            step = min(BACK_SPAN if ask.descending else READ_SPAN, step * 2)
        return found, span

    async def _events(self, session_id: str, span: Span, *, whole: bool) -> list[Event]:
        """Reads a span in order: the whole of it, or as much as comes at once. Never nothing."""
        found: list[Event] = []
        while span:
            batches = await self._log.read(session_id, span.start, span.end, PAGE_BYTES)
            if not batches or batches[0].first_position > span.start:
                raise Refused("SESSION_DAMAGED", f"the session's log has lost position {span.start}")
            for batch in batches:
                found += [event for event in codec.unseal(batch.data) if span.start <= event.position < span.end]
            span = Span(batches[-1].last_position + 1, span.end)
            if not whole:
                break
        return found

    async def _event(self, session_id: str, position: int) -> Event:
        return (await self._events(session_id, Span(position, position + 1), whole=True))[0]

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

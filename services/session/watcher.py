"""Follows logs: what is stored first, then what is appended, each position once and in order.

New batches are heard on the wire, where any of them may be missed. So what is heard is passed on only when it follows
what was passed on before; else the log is read again. What is heard waits in a bounded buffer; when that overflows it
is thrown away, and the log is read instead, so a slow reader costs no memory. One that takes no message for long is
sent away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import Preview, PublishPreviewsRequest
from services.kit.errors import Full, Gone, OutOfRange, Refused, Unavailable
from services.session import codec
from services.session.log import Log, Stop, StoredBatch, Wire
from services.session.slices import MAX_PAGE, PAGE_BYTES
from services.session.writer import NOTE

PREVIEW = "preview"
WATCHED = "watched"  # who is shown previews says so here, when asked
READ_SPAN = 512
BUFFER_BYTES = 2 * 1024 * 1024  # of a watcher
MAX_PREVIEWS = 1_000  # that wait for a watcher
ANSWER_SECONDS = 0.1  # that watchers at other replicas have to say that they are there
SLOW_SECONDS = 10.0  # for one message, while the buffer overflows
_CLOSING = frozenset(
    {"harness_woke", "retry_scheduled", "turn_ended", "session_ended"}
)  # nobody goes on with a preview
POLL_SECONDS = 10.0  # after which a watcher that hears nothing looks into the log


@dataclass(frozen=True)
class Seen:
    """What a watcher is told next. `data` is events as they are stored; previews are of events still to come."""

    data: bytes
    previews: Sequence[Preview]
    last_position: int

    @property
    def events(self) -> Sequence[Event]:
        """The events."""
        return codec.unseal(self.data)


@dataclass(eq=False)
class _Watch:
    """One watcher: what it was told, and what it has heard since."""

    next: int
    last: int
    previewed: bool = False  # whether it is shown previews
    asked: bool = False  # whether somebody wants to know that
    behind: bool = True  # whether the log has to be read: at first, and when something may have been missed
    overflowed: bool = False
    batches: deque[StoredBatch] = field(default_factory=deque)
    size: int = 0
    previews: deque[tuple[int, Preview]] = field(default_factory=lambda: deque(maxlen=MAX_PREVIEWS))  # by epoch
    epoch: int = 0  # of the newest harness that was passed on
    shown: set[str] = field(default_factory=set)  # ids of events that are still to come, of which pieces were shown
    told: deque[str] = field(default_factory=lambda: deque(maxlen=256))  # ids of the newest events passed on
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, data: bytes) -> None:
        batch = codec.noted(data)
        self.last = max(self.last, batch.last_position)
        if self.size + len(batch.data) > BUFFER_BYTES and self.batches:
            self.batches.clear()
            self.size = 0
            self.behind = self.overflowed = True
        self.batches.append(batch)
        self.size += len(batch.data)
        self.news.set()

    def hear_preview(self, data: bytes) -> None:
        said = PublishPreviewsRequest.FromString(data)
        self.asked = self.asked or said.ask_watched
        self.previews.extend((said.epoch, piece) for piece in said.previews)
        self.news.set()

    def miss(self) -> None:
        self.behind = True
        self.news.set()

    def take(self, batches: Sequence[StoredBatch]) -> bytes:
        """Takes those events of batches, in order, that come next."""
        found: list[bytes] = []
        for batch in batches:
            if batch.first_position <= self.next <= batch.last_position:
                begun = self.next - batch.first_position
                found += codec.split(batch.data)[begun:] if begun else [batch.data]
                self.next = batch.last_position + 1
        self.last = max(self.last, self.next - 1)
        return b"".join(found)

    def take_heard(self) -> bytes:
        """Takes what was heard and comes next, up to a page. Notices when something is missing before it."""
        found: list[StoredBatch] = []
        first, size, position = self.next, 0, self.next
        while self.batches and position - first < MAX_PAGE and size < PAGE_BYTES:
            if self.batches[0].first_position > position:
                self.behind = True
                break
            batch = self.batches.popleft()
            self.size -= len(batch.data)
            found.append(batch)
            position = max(position, batch.last_position + 1)
            size += len(batch.data)
        return self.take(found)

    def take_previews(self) -> list[Preview]:
        pieces = [piece for epoch, piece in self.previews if epoch >= self.epoch and piece.event_id not in self.told]
        self.previews.clear()
        for piece in pieces:
            (self.shown.discard if piece.discarded else self.shown.add)(piece.event_id)
        return pieces

    def pass_on(self, events: Sequence[Event]) -> list[Preview]:
        """Notes what is passed on; returns the end of previews whose event will not come: their harness has died."""
        ids = [event.event_id for event in events]
        self.told.extend(ids)
        self.shown.difference_update(ids)
        closing = [event for event in events if event.WhichOneof("kind") in _CLOSING]
        if not closing:
            return []
        self.epoch = max(self.epoch, *(event.position for event in closing if event.HasField("harness_woke")), 0)
        ended = [Preview(event_id=event_id, discarded=True) for event_id in sorted(self.shown)]
        if not closing[-1].HasField("harness_woke"):  # the next harness may show a call's output from its beginning
            self.told.extend(self.shown)
        self.shown.clear()
        return ended


class Watcher:
    """Follows sessions for whoever watches them."""

    def __init__(self, log: Log, wire: Wire, slow_seconds: float = SLOW_SECONDS) -> None:
        self._log = log
        self._wire = wire
        self._slow_seconds = slow_seconds
        self._watches: set[_Watch] = set()
        self._draining = False

    @property
    def watches(self) -> int:
        """How many watch at the moment."""
        return len(self._watches)

    def drain(self) -> None:
        """Sends everybody away: this process ends."""
        self._draining = True
        for watch in self._watches:
            watch.news.set()

    async def show(self, session_id: str, said: PublishPreviewsRequest) -> None:
        """Shows previews to whoever watches the session with them. `said` has the epoch of who sends them."""
        await self._wire.send(PREVIEW, session_id, said.SerializeToString())

    async def shown(self, session_id: str) -> bool:
        """Tells whether anybody is shown previews of a session. Takes ANSWER_SECONDS when nobody is."""
        answered = asyncio.Event()
        stop = await self._wire.listen(WATCHED, session_id, lambda _: answered.set())
        try:
            await self.show(session_id, PublishPreviewsRequest(ask_watched=True))
            async with asyncio.timeout(ANSWER_SECONDS):
                await answered.wait()
        except TimeoutError:
            return False
        finally:
            await stop()
        return True

    async def watch(self, session_id: str, start: int, previews: bool) -> AsyncIterator[Seen]:
        """Yields the events from a position on, and goes on for ever. The first message comes at once, even empty.

        Raises OutOfRange for a position past the next one, Full (`READER_SLOW`) for a reader that is too slow.
        """
        last = await self._log.head(session_id)
        head = last.last_position if last else 0
        if start > head + 1:
            raise OutOfRange("POSITION_OUT_OF_RANGE", f"the log's last position is {head}", last_position=head)
        watch = _Watch(next=max(1, start), last=head)
        self._watches.add(watch)
        stops: list[Stop] = []
        try:
            stops.append(await self._wire.listen(NOTE, session_id, watch.hear, watch.miss))
            if previews:
                watch.previewed = True
                stops.append(await self._wire.listen(PREVIEW, session_id, watch.hear_preview))
            told = False
            while not self._draining:
                seen = await self._next(session_id, watch)
                if seen is None and told:
                    await self._wait(session_id, watch)
                    continue
                asked = asyncio.get_running_loop().time()
                yield seen or Seen(b"", (), watch.last)
                told = True
                if seen and seen.events and seen.events[-1].HasField("session_deleted"):
                    raise Gone("SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id)
                if watch.overflowed and asyncio.get_running_loop().time() - asked > self._slow_seconds:
                    raise Full("READER_SLOW", "read faster, or resume later", next_position=watch.next)
                watch.overflowed = False
            raise Unavailable("DRAINING", "this process is going away; ask another")
        finally:
            self._watches.discard(watch)
            for stop in stops:
                await stop()

    async def _next(self, session_id: str, watch: _Watch) -> Seen | None:
        """Returns what comes next, if anything is there."""
        if watch.asked:
            watch.asked = False
            await self._wire.send(WATCHED, session_id, b"")
        data = watch.take_heard()
        if not data and watch.behind:
            watch.behind = False
            data = await self._read(session_id, watch) or watch.take_heard()
        ended = watch.pass_on(codec.unseal(data)) if watch.previewed and data else []
        pieces = ended + watch.take_previews()
        return Seen(data, pieces, watch.last) if data or pieces else None

    async def _read(self, session_id: str, watch: _Watch) -> bytes:
        last = await self._log.head(session_id)
        end = last.last_position + 1 if last else 0
        if watch.next >= end:
            return b""
        watch.behind = True  # there may be more than one read gives
        stop = min(end, watch.next + READ_SPAN)
        data = watch.take(await self._log.read(session_id, watch.next, stop, PAGE_BYTES))
        if not data:
            raise Refused("SESSION_DAMAGED", f"the session's log has lost position {watch.next}")
        return data

    async def _wait(self, session_id: str, watch: _Watch) -> None:
        """Waits for news, or until it is time to look by oneself: what was said on the wire may have been lost."""
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await watch.news.wait()
        except TimeoutError:
            watch.behind = True
        watch.news.clear()

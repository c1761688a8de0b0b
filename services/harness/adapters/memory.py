"""A session's log in memory (see `SessionLog`), with the rules of the real one: for the rehearsal of harness types."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event, SessionStarted
from handmesh.session.v1.session_pb2 import Preview
from services.harness.adapters.codec import calls_of, fact_of
from services.harness.core import BlobRef, Fact
from services.harness.ports import Appended, Page, Previews, Slice
from services.kit import ids
from services.kit.errors import Conflict, Gone, Invalid, Refused

SESSION = "sess_" + "0" * 26
MAX_EVENT_BYTES = 1024 * 1024
PAGE = 100  # events that are read when nothing is said of how many


class MemoryLog:
    """Fenced, idempotent, and with one result for each call. Everything that was shown is kept, in `shown`."""

    def __init__(self, config: SessionConfig | None, *events: Event) -> None:
        self.session_id = SESSION
        self.events: list[Event] = []
        self.newest: Sequence[Fact] = []
        self.shown: list[Preview] = []
        self.blobs: dict[str, bytes] = {}
        self.clock = 0.0  # Unix time, seconds, of what is appended
        self._news = asyncio.Condition()
        self._append([Event(event_id="start", session_started=SessionStarted(config=config)), *events], 0)

    def kinds(self) -> list[str]:
        """Names the events' kinds."""
        return [event.WhichOneof("kind") or "" for event in self.events]

    def only(self, kind: str) -> list[Any]:
        """Returns what the events of one kind say."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("kind") == kind]

    @property
    def epoch(self) -> int:
        """The newest harness's."""
        return max((event.position for event in self.events if event.HasField("harness_woke")), default=0)

    async def add(self, *events: Event) -> None:
        """Appends as a client, the session service or another harness does."""
        async with self._news:
            self._append(events, 0)
            self._news.notify_all()

    async def follow(self, start_position: int) -> AsyncIterator[Page]:
        """Yields what is there and what comes."""
        start = start_position
        while True:
            page = self.events[start - 1 :]
            yield Page([fact_of(event) for event in page], len(self.events))
            start += len(page)
            async with self._news:
                while len(self.events) < start:
                    await self._news.wait()

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        """Appends as a harness."""
        await asyncio.sleep(0)
        for event in events:
            ids.check("event_id", event.event_id)
            if event.ByteSize() > MAX_EVENT_BYTES:
                raise Invalid("EVENT_TOO_LARGE", "an event has at most 1 MiB")
        async with self._news:
            found = [event.position for event in self.events if event.event_id == events[0].event_id]
            if found:
                return Appended(found[0])
            self._check_calls(events)
            self._check(events, epoch, expected_position)
            first = self._append(events, epoch)
            self._news.notify_all()
        grant = "grant" if events[0].HasField("harness_woke") else ""
        return Appended(first, grant, int(self.clock * 1e9))

    def _check(self, events: Sequence[Event], epoch: int, expected: int | None) -> None:
        if {event.event_id for event in events} & {event.event_id for event in self.events}:
            raise Invalid("EVENT_INVALID", "another one of them is there already")
        if expected is not None and expected != len(self.events):
            raise Conflict("POSITION_CONFLICT", "the log has moved on", last_position=len(self.events))
        if not events[0].HasField("harness_woke") and epoch != self.epoch:
            raise Conflict("EPOCH_STALE", "a newer harness has the session")
        settled = {it.tool_use_id for it in self.only("tool_finished")}
        if any(event.tool_finished.tool_use_id in settled for event in events if event.HasField("tool_finished")):
            raise Refused("TOOL_CALL_SETTLED", "the tool call has its result already")

    def _check_calls(self, events: Sequence[Event]) -> None:
        known = {call.id for it in self.only("model_replied") for call in calls_of(it.content_json, "")}
        for event in events:
            asked = [call.id for call in calls_of(event.model_replied.content_json or "[]", "")]
            if len(set(asked)) < len(asked):
                raise Invalid("EVENT_INVALID", "two tool calls of the reply have the same id", field="content_json")
            if known & set(asked):
                raise Refused("TOOL_CALL_SETTLED", "the tool call has its result already")

    def _append(self, events: Sequence[Event], epoch: int) -> int:
        first = len(self.events) + 1
        for position, event in enumerate(events, first):
            stored = Event()
            stored.CopyFrom(event)
            stored.position, stored.epoch = position, epoch
            stored.emit_time.FromNanoseconds(int(self.clock * 1e9))
            self.events.append(stored)
        return first

    async def put_blob(self, data: bytes, media_type: str) -> BlobRef:
        """Keeps something big."""
        sha256 = hashlib.sha256(data).hexdigest()
        ref = BlobRef("blob_" + sha256[:26], media_type, len(data), sha256)
        self.blobs[ref.blob_id] = data
        return ref

    async def get_blob(self, blob_id: str, max_bytes: int) -> bytes | None:
        """Returns it."""
        if blob_id not in self.blobs:
            raise Gone("BLOB_NOT_FOUND", "no such blob", blob_id=blob_id)
        return self.blobs[blob_id] if len(self.blobs[blob_id]) <= max_bytes else None

    async def read(
        self, start: int, end: int, kinds: Sequence[str] = (), *, descending: bool = False, most: int = 0
    ) -> Slice:
        """Reads a slice."""
        head = len(self.events)
        found = self.events[max(1, start) - 1 : (end or head + 1) - 1]
        wanted = [event for event in found if not kinds or event.WhichOneof("kind") in kinds]
        page = (wanted[::-1] if descending else wanted)[: most or PAGE]
        last = page[-1].position if page else 0
        more = len(page) < len(wanted)
        return Slice(page, (last if descending else last + 1) if more else 0, head)

    def previews(self, epoch: int) -> Previews:
        """Shows by itself."""
        return self

    async def watched(self, epoch: int) -> bool:
        """Nobody watches."""
        return False

    def show(self, preview: Preview) -> None:
        """Keeps what is shown."""
        self.shown.append(preview)

    def drop(self) -> None:
        """Has sent everything."""

    async def flush(self) -> None:
        """Has sent everything."""

    async def close(self) -> None:
        """Has sent everything."""

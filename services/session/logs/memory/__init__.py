"""A store in memory: gone with the process. For tests, and to show what the ports promise."""

from __future__ import annotations

import asyncio
import bisect
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.session.log import HOLD_SECONDS, Entry, Stop, Store, StoredBatch, TakenError
from services.session.logs.memory.objects import MemoryObjects
from services.session.settings import Settings


@asynccontextmanager
async def make(_settings: Settings | None = None) -> AsyncIterator[Store]:
    """Opens an empty store."""
    yield Store(MemoryLog(), MemoryRegistry(), MemoryQueue(), MemoryWire(), MemoryObjects(), lost=_never)


async def _never() -> str:
    await asyncio.Event().wait()
    return ""


class MemoryLog:
    """Batches in lists."""

    def __init__(self) -> None:
        self._batches: defaultdict[str, list[StoredBatch]] = defaultdict(list)

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        batches = self._batches[session_id]
        at = bisect.bisect_left(batches, batch.first_position, key=lambda each: each.first_position)
        if at < len(batches):
            raise TakenError
        batches.append(batch)

    async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> Sequence[StoredBatch]:
        found: list[StoredBatch] = []
        batches = self._batches.get(session_id, [])
        at = bisect.bisect_left(batches, start, key=lambda each: each.last_position)
        while at < len(batches) and batches[at].first_position < end and max_bytes > 0:
            found.append(batches[at])
            max_bytes -= len(batches[at].data)
            at += 1
        return found

    async def head(self, session_id: str, hint: StoredBatch | None = None) -> StoredBatch | None:
        batches = self._batches.get(session_id)
        return batches[-1] if batches else None


class MemoryRegistry:
    """Entries in dictionaries."""

    def __init__(self) -> None:
        self._buckets: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
        self._revision = 0

    async def get(self, bucket: str, key: str) -> Entry | None:
        return self._buckets[bucket].get(key)

    async def get_many(self, bucket: str, keys: Sequence[str]) -> dict[str, bytes]:
        entries = self._buckets[bucket]
        return {key: entries[key].value for key in keys if key in entries}

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        self._revision += 1
        self._buckets[bucket][key] = Entry(value, self._revision)

    async def swap(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        there = self._buckets[bucket].get(key)
        if (there.revision if there else 0) != revision:
            return 0
        await self.put(bucket, key, value)
        return self._buckets[bucket][key].revision

    async def changes(
        self, bucket: str, after: int, prefix: str = "", most: int = 1_000
    ) -> tuple[list[tuple[str, Entry]], bool]:
        entries = self._buckets[bucket].items()
        changed = [(key, entry) for key, entry in entries if entry.revision > after and key.startswith(prefix)]
        return sorted(changed, key=lambda each: each[1].revision)[:most], len(changed) <= most

    async def keys(self, bucket: str, prefix: str) -> list[str]:
        return [key for key in self._buckets[bucket] if key.startswith(prefix)]


@dataclass
class _Queued:
    """A session in the queue. `taken` counts who has it, so that an old holder's word means nothing."""

    harness: str
    session_id: str
    timed: bool = False
    taken: int = 0
    timer: asyncio.TimerHandle | None = None


class MemoryQueue:
    """Sessions in a deque for each harness type; taken ones have a timer."""

    def __init__(self) -> None:
        self._there: dict[tuple[str, str], _Queued] = {}
        self._waiting: defaultdict[str, deque[_Queued]] = defaultdict(deque)
        self._takers: defaultdict[str, deque[asyncio.Future[_Queued]]] = defaultdict(deque)

    async def put(self, harness: str, session_id: str, timed: bool = False) -> bool:
        if (harness, session_id) in self._there:
            return False
        queued = self._there[harness, session_id] = _Queued(harness, session_id, timed)
        self._offer(queued)
        return True

    async def take(self, harness: str, seconds: float) -> MemoryItem | None:
        taken: asyncio.Future[_Queued] = asyncio.get_running_loop().create_future()
        if self._waiting[harness]:
            taken.set_result(self._waiting[harness].popleft())
        else:
            self._takers[harness].append(taken)
        try:
            await asyncio.wait({taken}, timeout=seconds)
        except asyncio.CancelledError:
            if taken.done():
                self._offer(taken.result())
            raise
        finally:
            if not taken.done():
                self._takers[harness].remove(taken)
        if not taken.done():
            return None
        queued = taken.result()
        queued.taken += 1
        self.back_after(queued, HOLD_SECONDS)
        return MemoryItem(self, queued, queued.taken, queued.timed)

    async def waiting(self) -> dict[str, int]:
        return {harness: len(waiting) for harness, waiting in self._waiting.items() if waiting}

    def adopt(self, session_id: str, handle: str) -> MemoryItem:
        harness, _, taken = handle.partition(" ")
        queued = self._there.get((harness, session_id)) or _Queued(harness, session_id)
        return MemoryItem(self, queued, int(taken))

    async def inherit(self, harness: str, session_id: str) -> MemoryItem | None:
        queued = self._there.get((harness, session_id))
        if queued is None or queued in self._waiting[harness]:
            return None
        item = MemoryItem(self, queued, queued.taken)
        await item.hold()
        return item

    def back_after(self, queued: _Queued, seconds: float) -> None:
        """Offers a taken session again after some time, unless its holder speaks before."""
        if queued.timer:
            queued.timer.cancel()
        queued.timer = asyncio.get_running_loop().call_later(seconds, self._expire, queued)

    def _expire(self, queued: _Queued) -> None:
        queued.taken += 1
        self._offer(queued)

    def _offer(self, queued: _Queued) -> None:
        if self._takers[queued.harness]:
            self._takers[queued.harness].popleft().set_result(queued)
        else:
            self._waiting[queued.harness].append(queued)

    def remove(self, queued: _Queued) -> None:
        """Forgets a session that somebody is done with."""
        if queued.timer:
            queued.timer.cancel()
        self._there.pop((queued.harness, queued.session_id), None)


class MemoryItem:
    """A taken session."""

    def __init__(self, queue: MemoryQueue, queued: _Queued, taken: int, timed: bool = False) -> None:
        self._queue, self._queued, self._taken = queue, queued, taken
        self.timed = timed

    @property
    def session_id(self) -> str:
        return self._queued.session_id

    @property
    def again(self) -> bool:
        return self._taken > 1

    @property
    def handle(self) -> str:
        return f"{self._queued.harness} {self._taken}"

    async def hold(self) -> None:
        if self._queued.taken == self._taken:
            self._queue.back_after(self._queued, HOLD_SECONDS)

    async def done(self) -> None:
        if self._queued.taken == self._taken:
            self._queue.remove(self._queued)

    async def back(self, seconds: float = 0.0) -> None:
        if self._queued.taken == self._taken:
            self._queue.back_after(self._queued, seconds)


class MemoryWire:
    """Calls whoever listens, at once."""

    def __init__(self) -> None:
        self._ears: defaultdict[tuple[str, str], list[Callable[[bytes], None]]] = defaultdict(list)

    async def send(self, topic: str, key: str, data: bytes) -> None:
        for hear in tuple(self._ears.get((topic, key), ())):
            hear(data)

    async def listen(
        self, topic: str, key: str, hear: Callable[[bytes], None], gap: Callable[[], None] | None = None
    ) -> Stop:
        self._ears[topic, key].append(hear)

        async def stop() -> None:
            ears = self._ears[topic, key]
            ears.remove(hear)
            if not ears:
                del self._ears[topic, key]

        return stop

"""Sessions that want a harness at some time. Each has an entry in the registry, and holds nothing else.

So a timer outlives every process, and a session that rests is in nobody's hands: whatever is said to it meanwhile
queues it at once. Every replica knows all timers. The one that took a timer rings it in time; another one does a moment
later, when the entry is still there. A timer may ring twice, or early after a crash, and is never lost.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.kit.errors import Unavailable
from services.kit.logs import Log as Journal
from services.session.log import Entry, Registry

BUCKET = "timers"
TICK_SECONDS = 0.1
LOOK_SECONDS = 1.0  # between two looks at what other replicas have written
GRACE_SECONDS = 2.0  # that the replica which took a timer has to ring it, before others do
AGAIN_SECONDS = 1.0  # until one is rung again that could not be
AT_ONCE = 16
NONE = b""  # an entry whose timer has rung

_journal = Journal("services.session.timers")


@dataclass(frozen=True, order=True)
class Timer:
    """When a session is wanted (nanoseconds since 1970), and by harnesses of which type."""

    due: int
    session_id: str
    harness: str


class Timers:
    """`ring` queues a session; it may raise Unavailable, and is called again then."""

    def __init__(self, registry: Registry, now: Callable[[], int], ring: Callable[[Timer], Awaitable[None]]) -> None:
        self._registry = registry
        self._now = now
        self._ring = ring
        self._heap: list[tuple[int, Timer]] = []  # by the time at which this process looks at it
        self._revision = 0

    async def set(self, timer: Timer) -> None:
        """Replaces the session's timer, durably on return."""
        value = json.dumps({"due": timer.due, "harness": timer.harness}, separators=(",", ":")).encode()
        await self._registry.put(BUCKET, timer.session_id, value)
        heapq.heappush(self._heap, (timer.due, timer))

    async def has(self, session_id: str) -> bool:
        """Says whether the session has a timer that has not rung."""
        entry = await self._registry.get(BUCKET, session_id)
        return entry is not None and entry.value != NONE

    async def run(self) -> None:
        """Rings what is due, until cancelled."""
        look = 0.0
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() >= look:
                try:
                    while not await self._look():
                        pass
                except Unavailable:
                    pass  # at the next look
                look = loop.time() + LOOK_SECONDS
            await self._ring_due()
            await asyncio.sleep(TICK_SECONDS)

    async def _look(self) -> bool:
        """Takes what was written since the last look, by this process too; says whether that was all."""
        changed, whole = await self._registry.changes(BUCKET, self._revision)
        for session_id, entry in changed:
            self._revision = entry.revision
            if (timer := _timer(session_id, entry)) is not None:
                heapq.heappush(self._heap, (timer.due + int(GRACE_SECONDS * 1e9), timer))
        return whole

    async def _ring_due(self) -> None:
        while self._heap and self._heap[0][0] <= self._now():
            due: list[Timer] = []
            while self._heap and self._heap[0][0] <= self._now() and len(due) < AT_ONCE:
                due.append(heapq.heappop(self._heap)[1])
            await asyncio.gather(*(self._ring_one(timer) for timer in due))

    async def _ring_one(self, timer: Timer) -> None:
        try:
            entry = await self._registry.get(BUCKET, timer.session_id)
            if entry is None or _timer(timer.session_id, entry) != timer:
                return  # it has rung, or another one was set since
            await self._ring(timer)
            await self._registry.swap(BUCKET, timer.session_id, NONE, entry.revision)
        except Unavailable as problem:
            _journal.warning("timer not rung", session_id=timer.session_id, reason=problem.reason)
            heapq.heappush(self._heap, (self._now() + int(AGAIN_SECONDS * 1e9), timer))


def _timer(session_id: str, entry: Entry) -> Timer | None:
    if entry.value == NONE:
        return None
    value = json.loads(entry.value)
    return Timer(value["due"], session_id, value["harness"])

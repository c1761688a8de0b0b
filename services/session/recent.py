"""A log that remembers what was read of it not long ago, as it lies in the store.

Stored batches never change, so what is remembered is right as long as the log is the same log: each look at its head
tells. A session whose head is not what was remembered of it, or lies before it, is forgotten whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.session.log import Log, StoredBatch

MAX_BYTES = 48 * 1024 * 1024  # remembered, over all sessions
BATCH_COST = 512  # bytes that a batch takes beside its data


@dataclass
class _Kept:
    """What is remembered of a session: batches by each of their positions, and its head when it was last looked at."""

    batches: dict[int, StoredBatch] = field(default_factory=dict)
    head: StoredBatch | None = None
    size: int = 0


class Recent:
    """Wraps a log for those who read it (see `Log`). Whoever has to see damage asks the log itself."""

    def __init__(self, log: Log, max_bytes: int = MAX_BYTES) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        await self._log.append(session_id, batch)

    async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> Sequence[StoredBatch]:
        found = self._known(session_id, start, end, max_bytes)
        if found:
            return found
        batches = await self._log.read(session_id, start, end, max_bytes)
        if batches:
            self._remember(session_id, batches)
        return batches

    async def head(self, session_id: str, hint: StoredBatch | None = None) -> StoredBatch | None:
        kept = self._sessions.get(session_id)
        head = await self._log.head(session_id, hint or (kept.head if kept else None))
        if kept is not None and not self._fits(kept, head):
            self._forget(session_id)
        if head is not None:
            self._keep(session_id).head = head
        return head

    @staticmethod
    def _fits(kept: _Kept, head: StoredBatch | None) -> bool:
        if head is None or (kept.head is not None and head.last_position < kept.head.last_position):
            return False
        return kept.batches.get(head.first_position, head) == head

    def _known(self, session_id: str, start: int, end: int, max_bytes: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        kept = self._sessions.get(session_id)
        if kept is None:
            return found
        self._sessions.move_to_end(session_id)
        position = start
        while position < end and max_bytes > 0:
            batch = kept.batches.get(position)
            if batch is None:
                break
            found.append(batch)
            max_bytes -= len(batch.data)
            position = batch.last_position + 1
        return found

    def _remember(self, session_id: str, batches: Sequence[StoredBatch]) -> None:
        kept = self._keep(session_id)
        for batch in batches:
            if batch.first_position in kept.batches:
                continue
            for position in range(batch.first_position, batch.last_position + 1):
                kept.batches[position] = batch
            kept.size += len(batch.data) + BATCH_COST
            self._size += len(batch.data) + BATCH_COST
        while self._size > self._max_bytes:
            self._forget(next(iter(self._sessions)))

    def _keep(self, session_id: str) -> _Kept:
        kept = self._sessions.get(session_id)
        if kept is None:
            kept = self._sessions[session_id] = _Kept(size=BATCH_COST)
            self._size += BATCH_COST
        return kept

    def _forget(self, session_id: str) -> None:
        self._size -= self._sessions.pop(session_id).size

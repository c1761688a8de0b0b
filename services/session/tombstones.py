"""What keeps a deleted session deleted: a last event that fences its log, and a tombstone that stays for ever.

Deleting first says so in the session's entry in the index: from there on somebody carries it through, whoever dies
(`Lifecycle.resume`). Then it appends `SessionDeleted` at the log's end. Whoever writes at the same time loses that
position, reads on and finds the session gone; whoever reads asks for the log's head first, and finds it too. Then the
tombstone is written, and the janitor may purge the log, `PURGE_AFTER_SECONDS` later.

After that the fence is gone. So whoever has not seen a session alive for `TRUST_SECONDS` looks for its tombstone: a
process that was stopped in the middle of an append finds it as soon as it goes on, and says that the session is gone.
The event that it stored is nobody's: no read gets past the tombstone, and the janitor's next round takes it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from google.protobuf.message import DecodeError

from handmesh.session.v1.event_pb2 import Event, SessionDeleted
from handmesh.session.v1.session_pb2 import GetEventsResponse
from services.kit.errors import Unavailable
from services.session import codec
from services.session.emitters import SESSION
from services.session.log import DeletedError, Log, Registry, StoredBatch, TakenError

BUCKET = "tombstones"
TRUST_SECONDS = 10.0
PURGE_AFTER_SECONDS = 30.0  # the janitor's; longer than TRUST_SECONDS, by more than clocks differ
MAX_SEEN = 65_536  # sessions whose life is remembered
MAX_TRIES = 64  # positions that others take while a session is deleted
FENCE_ID = "session_deleted"
_FENCE_NAME = FENCE_ID.encode()
_FENCE_BYTES = 128  # a fence is smaller; bigger batches need no look


@dataclass(frozen=True)
class Tombstone:
    """That a session was deleted: when, in milliseconds since 1970, whose it was, and the key of the request that made
    it, which the janitor forgets in its time."""

    deleted: int
    tenant: str
    request: str = ""


class Tombstones:
    """All tombstones."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def find(self, session_id: str) -> Tombstone | None:
        """Returns a session's tombstone, if it was deleted."""
        entry = await self._registry.get(BUCKET, session_id)
        if entry is None:
            return None
        kept = json.loads(entry.value)
        return Tombstone(int(kept["deleted"]), str(kept.get("tenant", "")), str(kept.get("request", "")))

    async def put(self, session_id: str, tombstone: Tombstone) -> None:
        """Writes a tombstone, unless there is one."""
        kept = {name: value for name, value in asdict(tombstone).items() if value != ""}
        await self._registry.swap(BUCKET, session_id, json.dumps(kept).encode(), 0)


class LivingLog:
    """A log in which deleted sessions are gone: asking for their head, reading their end or appending raises Gone."""

    def __init__(self, log: Log, tombstones: Tombstones, clock: Callable[[], float]) -> None:
        self._log = log
        self._tombstones = tombstones
        self._clock = clock
        self._seen: OrderedDict[str, float] = OrderedDict()  # when a session was last seen alive

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        await self._log.append(session_id, batch)
        if not self._trusted(session_id):
            await self._check(session_id)
        self._see(session_id)

    async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> Sequence[StoredBatch]:
        found = await self._log.read(session_id, start, end, max_bytes)
        if found and is_fence(found[-1]):
            raise gone(session_id)
        if not found or found[0].first_position > start:
            await self._check(session_id)  # purged, and then it is no damage
        return found

    async def head(self, session_id: str, hint: StoredBatch | None = None) -> StoredBatch | None:
        last = await self._log.head(session_id, hint)
        if last is not None and is_fence(last):
            raise gone(session_id)
        if last is None or not self._trusted(session_id):
            await self._check(session_id)
        self._see(session_id)
        return last

    def _trusted(self, session_id: str) -> bool:
        seen = self._seen.get(session_id)
        return seen is not None and self._clock() - seen < TRUST_SECONDS

    def _see(self, session_id: str) -> None:
        self._seen[session_id] = self._clock()
        self._seen.move_to_end(session_id)
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)

    async def _check(self, session_id: str) -> None:
        if await self._tombstones.find(session_id) is not None:
            self._seen.pop(session_id, None)
            raise gone(session_id)


async def fence(log: Log, session_id: str, time: int) -> StoredBatch | None:
    """Appends the fence to a log, whatever its state, and returns it; None when it is there, or nothing is.

    Goes to the store itself, past all rules: even a log that is damaged or full can be deleted.
    """
    for _ in range(MAX_TRIES):
        last = await log.head(session_id)
        if last is None or is_fence(last):
            return None
        event = Event(event_id=FENCE_ID, ignorable=True, session_deleted=SessionDeleted())
        first = last.last_position + 1
        batch = StoredBatch(first, 1, last.digest, codec.seal([event], [SESSION], first, time, 0))
        try:
            await log.append(session_id, batch)
        except TakenError:
            continue
        return batch
    raise Unavailable("LOG_UNAVAILABLE", "too many others append to the session", retry_after=0.1)


def is_fence(batch: StoredBatch) -> bool:
    """Says whether a batch is the end of a deleted session's log."""
    if batch.count != 1 or len(batch.data) > _FENCE_BYTES or _FENCE_NAME not in batch.data:
        return False
    try:
        events = GetEventsResponse.FromString(batch.data).events
    except DecodeError:
        return False  # damaged, which is for others to find out
    return any(event.HasField("session_deleted") for event in events)


def gone(session_id: str) -> DeletedError:
    """What is said of a session that was deleted: the same as of one that never was."""
    return DeletedError("SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id)

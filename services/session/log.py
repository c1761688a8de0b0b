"""The ports of the session service: what it needs of a store, and nothing of how a store is built.

    Log        the events of every session, durable and dense
    Registry   small values by key, with compare-and-set
    WorkQueue  sessions that need a harness, durable
    Wire       what replicas tell each other at once, and forget
    Objects    big content, in a module of its own (`objects.py`)

`conformance.py` checks each promise made here against every folder of `logs/`. Whatever cannot be reached is
Unavailable (`LOG_UNAVAILABLE`) within `PATIENCE_SECONDS`; it may have happened all the same.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.kit.errors import Gone
from services.session.objects import Objects

PATIENCE_SECONDS = 2.0
MAX_STORED_BYTES = 1024 * 1024 + 64 * 1024  # a batch with what the log sets in each of its events
BATCH_SPAN = 16  # positions that one stored batch takes at most
HOLD_SECONDS = 5.0  # how long a taken work item is kept for its holder without a sign of life

Stop = Callable[[], Awaitable[None]]


class TakenError(Exception):
    """Something else is stored at that position already. Read on from there."""


class DeletedError(Gone):
    """The session was deleted: what is remembered of it is worth nothing."""


class UnusableStoreError(Exception):
    """The store must not be used as it is. The text is one line for the operator."""


@dataclass(frozen=True)
class StoredBatch:
    """Events that were appended in one step, as they lie in the store.

    `data` is the serialized `repeated Event events = 1` of a message: batches joined together are such a list again.
    """

    first_position: int
    count: int
    prev_digest: str  # `digest` of the batch before; empty for a session's first
    data: bytes

    @property
    def last_position(self) -> int:
        return self.first_position + self.count - 1

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the stored message: of the link to the one before, and of the events."""
        return hashlib.sha256(self.prev_digest.encode() + self.data).hexdigest()


class Log(Protocol):
    """The events of every session. Nothing in it is ever changed."""

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        """Stores a batch, whole or not at all, and durably on return.

        Raises TakenError when a batch begins at its first position already: then nothing was stored. The caller
        appends right after the last batch that it has seen stored; the store does not look for gaps.

        Once a batch is under way its outcome is waited for, even by a task that is cancelled: the cancellation is
        taken back, and the caller goes on with what it knows then. That takes `PATIENCE_SECONDS` at most.
        """

    async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> Sequence[StoredBatch]:
        """Returns, in order, the batches that hold positions of [start, end), the first one's middle included.

        Stops after about `max_bytes` (one batch always comes), so a shorter answer means: ask on. An empty one
        means that the log has nothing there.
        """

    async def head(self, session_id: str, hint: StoredBatch | None = None) -> StoredBatch | None:
        """Returns the session's last batch, or None when there is no such session. Sees every append that has
        returned, whoever made it. `hint` is a batch that may be it: the answer is the same, and comes sooner."""


@dataclass(frozen=True)
class Entry:
    """A value and its revision, which grows with each change."""

    value: bytes
    revision: int


class Registry(Protocol):
    """Small values by key, in named buckets. Durable on return; reads see every write that has returned.

    Keys are `[A-Za-z0-9_.-]+`.
    """

    async def get(self, bucket: str, key: str) -> Entry | None:
        """Returns what is there."""

    async def get_many(self, bucket: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Returns those that are there."""

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        """Writes a value, whatever was there."""

    async def swap(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        """Writes a value if the key is still at this revision; 0 means that nothing is there. Returns the entry's new
        revision, or 0 when somebody else was faster."""

    async def changes(
        self, bucket: str, after: int, prefix: str = "", most: int = 1_000
    ) -> tuple[list[tuple[str, Entry]], bool]:
        """Returns keys with what is there now, those that were written after a revision, in the order of their
        revisions; and whether these are all. 0 means from the beginning. Some come whenever there are any, and never
        more than `most` (at most 1,000). With a prefix, which ends at a dot, only keys that begin with it."""

    async def keys(self, bucket: str, prefix: str) -> list[str]:
        """Lists the keys that begin with a prefix, which ends at a dot. In no order."""


class WorkItem(Protocol):
    """A session that was taken from the queue. It comes back by itself when nobody holds it for `HOLD_SECONDS`."""

    @property
    def session_id(self) -> str:
        """Which session."""

    @property
    def timed(self) -> bool:
        """Whether it was queued because a time has come."""

    @property
    def again(self) -> bool:
        """Whether it was taken before: its holder gave it back, or was not heard of for `HOLD_SECONDS`."""

    @property
    def handle(self) -> str:
        """Names what was taken, for `WorkQueue.adopt`."""

    async def hold(self) -> None:
        """Keeps it for another `HOLD_SECONDS`. May be lost; say it often."""

    async def done(self) -> None:
        """Removes it. On return the queue takes the session again."""

    async def back(self, seconds: float = 0.0) -> None:
        """Gives it back: somebody takes it, at once or after some time."""


class WorkQueue(Protocol):
    """Sessions that need a harness: each at most once, whether it waits or is taken. Shared by all replicas."""

    async def put(self, harness: str, session_id: str, timed: bool = False) -> bool:
        """Queues a session for harnesses of a type, durably. False when it is there already, waiting or taken."""

    async def take(self, harness: str, seconds: float) -> WorkItem | None:
        """Takes a session for a harness type, waiting at most so long. Cancelling it loses nothing."""

    def adopt(self, session_id: str, handle: str) -> WorkItem:
        """Makes an item that another replica took this one's: from now on this one holds it.

        Its `timed` is not known any more: False. When it is gone already, what is said of it means nothing.
        """

    async def inherit(self, harness: str, session_id: str) -> WorkItem | None:
        """Makes the item of a session this replica's, whoever took it: for one whose holder is no more.

        None when the session is not in the queue, or waits there to be taken.
        """

    async def waiting(self) -> dict[str, int]:
        """Counts the sessions that wait to be taken, by harness type: those of which there are any. What is taken or
        given back at this moment may be counted or not."""


class Wire(Protocol):
    """Tells every replica, this one included. What is sent may be lost; it is never stored."""

    async def send(self, topic: str, key: str, data: bytes) -> None:
        """Sends. Does not wait for anybody, and does not fail when nobody can hear."""

    async def listen(
        self, topic: str, key: str, hear: Callable[[bytes], None], gap: Callable[[], None] | None = None
    ) -> Stop:
        """Calls `hear` with whatever is sent from now on, in the order of each sender, until stopped.

        `gap` is called after a time in which something may have been missed. Neither may wait or raise.
        """


@dataclass(frozen=True)
class Store:
    """A store, opened. Each folder of `logs/` has `make(settings)`, an async context manager that gives one."""

    log: Log
    registry: Registry
    queue: WorkQueue
    wire: Wire
    objects: Objects
    lost: Callable[[], Coroutine[Any, Any, str]]  # returns why, once the store is gone for good

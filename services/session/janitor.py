"""Purges what has a tombstone: `python -m services.session.janitor`, with NATS's user `janitor`, which may purge and
look, and nothing else. The session service cannot purge at all.

A deleted session loses its mark, its events, its entries in the registry, its place in the queue and its big content,
in steps with pauses, so that others' appends are not held up. The tombstone stays for ever. All may be repeated.
Now and then the janitor also looks for bytes that nobody will ever name (`leftovers`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.kit.logs import Log as Journal
from services.kit.settings import setting, tuning, whole
from services.session.leftovers import Leftovers
from services.session.logs.jetstream.streams import shard_of
from services.session.operator import Operator, OperatorSettings, StoreError, connected, main
from services.session.purging import purge, subjects
from services.session.tombstones import PURGE_AFTER_SECONDS

TOMBSTONES = "tombstones"
AGAIN_SECONDS = 3_600.0
REQUEST_SECONDS = 24 * 3_600.0  # how long a request is known whose session was deleted: said again, it makes no other

_journal = Journal("services.session.janitor")


@dataclass(frozen=True)
class Settings(OperatorSettings):
    """What the janitor is told."""

    every: int = setting("HANDMESH_JANITOR_SECONDS", whole, 10, "Seconds between two looks at the tombstones.")
    leftovers_every: int = tuning(
        "HANDMESH_LEFTOVERS_SECONDS", whole, 3_600, "Seconds between two looks for what broken uploads left behind."
    )


class Janitor:
    """Purges sessions. Remembers which it has done, so that a look costs no more than a list of names; but not for
    ever: an append that was under way for long may come after the purge. `now` is the time of day in seconds."""

    def __init__(self, operator: Operator, now: Callable[[], float] = time.time) -> None:
        self._operator = operator
        self._now = now
        self._done: dict[str, float] = {}

    async def sweep(self) -> int:
        """Purges all that has a tombstone and was not done yet; returns how many sessions that were."""
        count = 0
        prefix = f"$KV.{TOMBSTONES}."
        async for subject in subjects(self._operator, f"KV_{TOMBSTONES}", prefix + ">"):
            session_id = subject.removeprefix(prefix)
            if self._now() - self._done.get(session_id, 0.0) < AGAIN_SECONDS:
                continue
            stone = json.loads(await self._operator.value(f"KV_{TOMBSTONES}", subject) or b"{}")
            age = self._now() - float(stone.get("deleted", self._now() * 1_000)) / 1_000
            if age < PURGE_AFTER_SECONDS:
                continue
            messages = await self.purge(session_id)
            if stone.get("request") and age >= REQUEST_SECONDS:
                messages += await purge(self._operator, "KV_requests", f"$KV.requests.{stone['request']}")
            self._done[session_id] = self._now()
            count += 1
            _journal.info("purged", session_id=session_id, messages=messages)
        return count + await self._sweep_stores()

    async def _sweep_stores(self) -> int:
        """Purges the memory stores that were deleted, the mark of each last; returns how many."""
        marks = "$KV.memory_stores.d."
        stores = [
            subject.removeprefix(marks) async for subject in subjects(self._operator, "KV_memory_stores", marks + "*")
        ]
        for store_id in stores:
            messages = await purge(self._operator, "OBJECTS", f"obj.{store_id}.>")
            messages += await purge(self._operator, "KV_memories", f"$KV.memories.{store_id}.*")
            messages += await purge(self._operator, "KV_memory_versions", f"$KV.memory_versions.{store_id}.>")
            await purge(self._operator, "KV_memory_stores", marks + store_id)
            _journal.info("purged", memory_store_id=store_id, messages=messages)
        return len(stores)

    async def purge(self, session_id: str) -> int:
        """Purges one session; returns how many messages that were. The mark goes first: without it no log is short."""
        shard = shard_of(session_id)
        purged = await purge(self._operator, "KV_marks", f"$KV.marks.{session_id}")
        purged += await purge(self._operator, f"LOG-{shard}", f"log.{shard}.{session_id}.*")
        purged += await purge(self._operator, "WORK", f"work.*.{session_id}")
        purged += await purge(self._operator, "KV_sessions", f"$KV.sessions.*.{session_id}")
        purged += await purge(self._operator, "KV_grants", f"$KV.grants.{session_id}.*")
        purged += await purge(self._operator, "KV_blobs", f"$KV.blobs.{session_id}")
        purged += await purge(self._operator, "KV_snapshots", f"$KV.snapshots.{session_id}.>")
        purged += await purge(self._operator, "KV_timers", f"$KV.timers.{session_id}")
        return purged + await purge(self._operator, "OBJECTS", f"obj.{session_id}.>")


async def keep_sweeping(sweep: Callable[[], Awaitable[int]], seconds: float) -> None:
    """Sweeps for ever. What fails is tried again at the next look."""
    while True:
        try:
            await sweep()
        except StoreError as problem:
            _journal.warning("sweep failed", problem=str(problem))
        await asyncio.sleep(seconds)


async def run(settings: Settings) -> None:
    """Sweeps until SIGTERM."""
    async with connected(settings, "janitor") as operator:
        sweeping = [
            asyncio.create_task(keep_sweeping(Janitor(operator).sweep, settings.every)),
            asyncio.create_task(keep_sweeping(Leftovers(operator, time.time).sweep, settings.leftovers_every)),
        ]
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, lambda: [each.cancel() for each in sweeping])
        await asyncio.wait(sweeping, return_when=asyncio.FIRST_COMPLETED)
        for each in sweeping:
            if not each.cancelled() and each.done():
                each.result()  # it never ends by itself


if __name__ == "__main__":
    main("janitor", Settings, run)

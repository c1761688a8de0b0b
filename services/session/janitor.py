"""Purges what has a tombstone: `python -m services.session.janitor`, with NATS's user `janitor`, which may purge and
look, and nothing else. The session service cannot purge at all.

A deleted session loses its mark, its events, its entries in the registry and its big content, in steps with pauses, so
that others' appends are not held up. The tombstone stays for ever. All of it may be repeated.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from services.kit.logs import Log as Journal
from services.kit.settings import setting, whole
from services.session.logs.jetstream.streams import shard_of
from services.session.operator import NOT_FOUND, Operator, OperatorSettings, StoreError, connected, main
from services.session.tombstones import PURGE_AFTER_SECONDS

TOMBSTONES = "tombstones"
STEP = 256  # messages in one purge: NATS appends nothing meanwhile
REST = 4.0  # pauses are so many times as long as the step before them
LEAST_REST = 0.01  # seconds
AGAIN_SECONDS = 3_600.0

_journal = Journal("services.session.janitor")


@dataclass(frozen=True)
class Settings(OperatorSettings):
    """What the janitor is told."""

    every: int = setting("HANDMESH_JANITOR_SECONDS", whole, 10, "Seconds between two looks at the tombstones.")


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
        async for subject in self._subjects(f"KV_{TOMBSTONES}", prefix + ">"):
            session_id = subject.removeprefix(prefix)
            if self._now() - self._done.get(session_id, 0.0) < AGAIN_SECONDS:
                continue
            stone = await self._operator.ask(f"DIRECT.GET.KV_{TOMBSTONES}", {"last_by_subj": subject})
            if self._now() - float(stone["deleted"]) / 1_000 < PURGE_AFTER_SECONDS:
                continue
            messages = await self.purge(session_id)
            self._done[session_id] = self._now()
            count += 1
            _journal.info("purged", session_id=session_id, messages=messages)
        return count + await self._sweep_stores()

    async def _sweep_stores(self) -> int:
        """Purges the memory stores that were deleted, the mark of each last; returns how many."""
        marks = "$KV.memory_stores.d."
        stores = [subject.removeprefix(marks) async for subject in self._subjects("KV_memory_stores", marks + "*")]
        for store_id in stores:
            messages = await self._purge("OBJECTS", f"obj.{store_id}.>")
            messages += await self._purge("KV_memories", f"$KV.memories.{store_id}.*")
            messages += await self._purge("KV_memory_versions", f"$KV.memory_versions.{store_id}.>")
            await self._purge("KV_memory_stores", marks + store_id)
            _journal.info("purged", memory_store_id=store_id, messages=messages)
        return len(stores)

    async def purge(self, session_id: str) -> int:
        """Purges one session; returns how many messages that were. The mark goes first: without it no log is short."""
        shard = shard_of(session_id)
        purged = await self._purge("KV_marks", f"$KV.marks.{session_id}")
        purged += await self._purge(f"LOG-{shard}", f"log.{shard}.{session_id}.*")
        purged += await self._purge("KV_sessions", f"$KV.sessions.*.{session_id}")
        purged += await self._purge("KV_blobs", f"$KV.blobs.{session_id}")
        purged += await self._purge("KV_snapshots", f"$KV.snapshots.{session_id}.>")
        return purged + await self._purge("OBJECTS", f"obj.{session_id}.>")

    async def _purge(self, stream: str, subject: str) -> int:
        """Purges what a stream has on a subject, oldest first, a step at a time."""
        loop = asyncio.get_running_loop()
        total = left = sum([1 async for _ in self._subjects(stream, subject)])
        while left > 0:
            left = max(0, left - STEP)
            began = loop.time()
            question = {"filter": subject} | ({"keep": left} if left else {})
            answer = await self._operator.ask(f"STREAM.PURGE.{stream}", question)
            if "error" in answer:
                raise StoreError(f"NATS refuses to purge {stream}: {answer['error'].get('description')}")
            await asyncio.sleep(max(LEAST_REST, REST * (loop.time() - began)))
        return total

    async def _subjects(self, stream: str, subject: str) -> AsyncIterator[str]:
        """Lists the subjects of a stream, each of which has one message. A stream that is not there has none."""
        seen = 0
        while True:
            question = {"subjects_filter": subject, "offset": seen}
            answer = await self._operator.ask(f"STREAM.INFO.{stream}", question)
            if answer.get("error", {}).get("err_code") == NOT_FOUND:
                return
            if "error" in answer:
                raise StoreError(f"NATS does not show {stream}: {answer['error'].get('description')}")
            found = answer["state"].get("subjects") or {}
            for each in found:
                yield each
            seen += len(found)
            if not found or seen >= answer.get("total", 0):
                return


async def keep_sweeping(janitor: Janitor, seconds: float) -> None:
    """Sweeps for ever. What fails is tried again at the next look."""
    while True:
        try:
            await janitor.sweep()
        except StoreError as problem:
            _journal.warning("sweep failed", problem=str(problem))
        await asyncio.sleep(seconds)


async def run(settings: Settings) -> None:
    """Sweeps until SIGTERM."""
    async with connected(settings, "janitor") as operator:
        sweeping = asyncio.create_task(keep_sweeping(Janitor(operator), settings.every))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, sweeping.cancel)
        await asyncio.wait({sweeping})
        if not sweeping.cancelled():
            sweeping.result()


if __name__ == "__main__":
    main("janitor", Settings, run)

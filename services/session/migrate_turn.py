"""Whose turn it is to change the store: one at a time, and nobody for ever.

Whoever migrates holds an entry and writes it again every second. The others wait. One that dies leaves its entry as
it is: whoever sees it unchanged for five seconds, by a clock of its own, takes it over. A holder that finds its entry
taken stops.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from services.kit.logs import Log as Journal
from services.session.migrations import SCHEMA
from services.session.operator import Operator, StoreError

TURN = "schema.migrate.turn"
RENEW_SECONDS = 1.0
DEAD_SECONDS = 5.0
WAIT_SECONDS = 600.0
LOOK_SECONDS = 0.1

T = TypeVar("T")
_journal = Journal("services.session.migrate")


async def in_turn(operator: Operator, who: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Does the work while nobody else does any, after whoever is at it. Raises StoreError when that takes too long, and
    when another has taken the turn over; the work is cancelled then."""
    revision = await _taken(operator, who)
    working = asyncio.create_task(work())
    keeping = asyncio.create_task(_kept(operator, who, revision))
    try:
        await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        return await working
    finally:
        for task in (working, keeping):
            task.cancel()
        await asyncio.gather(working, keeping, return_exceptions=True)
        if working.done() and not working.cancelled() and working.exception() is None:
            await operator.put(TURN, b"")


async def _taken(operator: Operator, who: str) -> int:
    deadline = time.monotonic() + WAIT_SECONDS
    seen, since = -1, time.monotonic()
    while True:
        holder, revision = await operator.entry(SCHEMA, TURN)
        if revision != seen:
            if holder and seen < 0:
                _journal.info("another migrates this store; waiting", holder=holder.decode())
            seen, since = revision, time.monotonic()
        if not holder or time.monotonic() - since > DEAD_SECONDS:
            mine = await operator.put(TURN, who.encode(), revision)
            if mine:
                return mine
        elif time.monotonic() > deadline:
            raise StoreError(f"{holder.decode()} migrates this store since more than {WAIT_SECONDS:g} s; try again")
        else:
            await asyncio.sleep(LOOK_SECONDS)


async def _kept(operator: Operator, who: str, revision: int) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        revision = await operator.put(TURN, who.encode(), revision)
        if not revision:
            raise StoreError("another has taken over the migration of this store, for this one was silent too long")

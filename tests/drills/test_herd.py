"""A thousand sessions wait when harnesses come: each is offered once, and they do not all begin in one moment."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from services.kit import ids
from services.session.streams import BURST, OFFERS_PER_SECOND
from tests.drills.size import size
from tests.session.claiming import Harness, make
from tests.session.running import Run, Service, message

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

SESSIONS = size(200, 1_000)
AT_ONCE = 16
SOONEST = 0.8  # of what the pace says: each pause is drawn at random around it


async def filled(service: Service, kind: str) -> set[str]:
    """Makes sessions that need a harness of a type that nobody is."""
    made: set[str] = set()
    for start in range(0, SESSIONS, AT_ONCE):
        part = range(start, min(SESSIONS, start + AT_ONCE))
        made.update(await asyncio.gather(*(make(service, kind, message(str(number))) for number in part)))
    return made


async def test_sessions_that_wake_together_begin_one_after_another(run: Run) -> None:
    """Two harnesses at two replicas: a burst each, then no faster than the pace; none forgotten, none offered twice."""
    kind = "t" + ids.mint("x")[-20:]
    async with run() as one, run() as two:
        sessions = await filled(one, kind)
        began = time.monotonic()
        harnesses = [Harness(service, kind, SESSIONS) for service in (one, two)]
        offered = Counter[str]()

        async def take(harness: Harness) -> None:
            while offered.total() < SESSIONS:
                offered[(await harness.offer()).session_id] += 1

        taking = [asyncio.create_task(take(harness)) for harness in harnesses]
        await asyncio.wait(taking, return_when=asyncio.FIRST_COMPLETED)
        took = time.monotonic() - began
        for task in taking:
            task.cancel()
        await asyncio.wait(taking)
        await asyncio.gather(*(harness.nothing() for harness in harnesses))
        for harness in harnesses:
            await harness.close()
    assert offered == Counter(sessions)
    assert took >= SOONEST * (SESSIONS - 2 * BURST) / (2 * OFFERS_PER_SECOND)
    print(f"\n{SESSIONS} sessions that wait, offered by two replicas: {took:.1f} s")

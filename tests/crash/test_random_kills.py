"""SIGKILL of harnesses at random moments under load: the next event soon, every tool once, nothing lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time

import pytest

from tests.crash.crew import LOOK_SECONDS, Crew
from tests.crash.story import Story, count, outcomes
from tests.drills.size import size

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.timeout(1_800),
    pytest.mark.asyncio(loop_scope="package"),
]

KILLS = size(3, 50)
LOAD = 2  # sessions at work beside the one that is watched
LATEST_SECONDS = 1.5  # after its harness woke; the turn takes about two


async def test_harnesses_are_killed_at_random(crew: Crew) -> None:
    """With a second harness running: the checker finds nothing in any session, also in those beside."""
    chance, took = random.Random(5), list[float]()
    done: list[Story] = []
    over = asyncio.Event()

    async def load() -> None:
        while not over.is_set():
            story = await Story.begin(crew, "both")
            await story.tell()
            done.append(story)

    async with asyncio.TaskGroup() as group:
        for _ in range(LOAD):
            group.create_task(load())
        for _ in range(KILLS):
            await crew.whole()
            story = await Story.begin(crew, "slow")
            telling = group.create_task(story.tell())
            while not story.owner():
                await asyncio.sleep(LOOK_SECONDS)
            await asyncio.sleep(chance.uniform(0.0, LATEST_SECONDS))
            seen, began = len(story.watched), time.monotonic()
            os.kill(story.owner(), signal.SIGKILL)
            while len(story.watched) == seen and not telling.done():
                await asyncio.sleep(0.002)
            took.append(time.monotonic() - began)
            await telling
            done.append(story)
        over.set()
    print(f"\nnext event after SIGKILL: p50 {statistics.median(took):.3f} s, max {max(took):.3f} s of {len(took)}")
    for story in done:
        log = await story.log()
        assert await story.violations() == []
        assert set(outcomes(log)) == {"OK"}
        assert count(log, "turn_ended") == 1

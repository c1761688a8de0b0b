"""The crash matrix: whatever dies, wherever, the session goes on, and the checker finds nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.cells import KILLS, Cell
from tests.crash.crew import Crew
from tests.crash.story import Story, count, outcomes
from tests.drills.size import size

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

TIMES = size(1, 5)


async def finish(story: Story, allowed: frozenset[str] = frozenset({"OK"})) -> None:
    """Follows a story to its end and holds it to everything that must be true."""
    await story.tell()
    log = await story.log()
    assert await story.violations() == []
    assert set(outcomes(log)) <= allowed
    assert count(log, "model_replied") == 2  # an answer that is in the log is never asked for again
    assert count(log, "turn_ended") == 1


async def test_nothing_is_wrong_when_nothing_dies(crew: Crew) -> None:
    """The stories themselves, side by side."""
    stories = await asyncio.gather(*(Story.begin(crew, kind) for kind in ("both", "asked", "yours", "shop", "slow")))
    await asyncio.gather(*(finish(story) for story in stories))


@pytest.mark.parametrize("cell", KILLS * TIMES, ids=str)
async def test_a_kill(crew: Crew, cell: Cell) -> None:
    """SIGKILL at the cell's point: what was said stays said, what ran ran once, and the turn ends."""
    crew.arm(cell.point, f"kill after {cell.passes}")
    try:
        story = await Story.begin(crew, cell.kind, at_once=cell.at_once)
        await finish(story, cell.outcomes)
        await crew.struck(cell.point)
    finally:
        assert crew.disarm() == []

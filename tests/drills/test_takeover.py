"""Harnesses and session replicas are killed, paused and stopped under running sessions: others go on at once."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from tests.drills.brains import Brains, Seen, brains
from tests.drills.size import size

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.timeout(1_800)]

KILLS = size(2, 50)


def say(what: str, seconds: list[float]) -> None:
    """Prints figures; bounds are held by `bench`."""
    print(f"\n{what}: p50 {statistics.median(seconds):.3f} s, max {max(seconds):.3f} s of {len(seconds)}")


async def settled(seen: Seen) -> None:
    """The turn ends, and whatever a tool did was done once."""
    await seen.kind("turn_ended")
    assert seen.count("tool_started") == seen.count("tool_finished")
    for it in seen.only("tool_finished"):
        assert it.result.output.split() == ["run"]
    assert [event.position for event in seen.events] == list(range(1, len(seen.events) + 1))
    await seen.close()


async def busy(world: Brains, client: object, what: str) -> Seen:
    """Starts a session and waits until its tool runs, or its model answers."""
    seen = Seen(await client.create_session(content=what))  # type: ignore[attr-defined]
    if what == "tool":
        await seen.kind("tool_started")
    else:
        await seen.until(lambda: seen.text)
    return seen


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_another_harness_goes_on(tmp_path: Path, what: str) -> None:
    """SIGKILL in a tool and in the model's answer: another harness goes on, the tool runs once, no event is lost."""
    async with brains(tmp_path / "mesh") as (world, client):
        await world.harness()
        took: list[float] = []
        for _ in range(KILLS):
            await world.harness()
            seen = await busy(world, client, what)
            began = time.monotonic()
            await world.kill(seen.owner())
            took.append(await seen.next_after(began))
            await settled(seen)
            assert seen.count("harness_woke") == 2
        say(f"next event after SIGKILL of the harness in its {what}", took)


async def test_the_only_harness_is_replaced(tmp_path: Path) -> None:
    """SIGKILL of the only harness: the next one that starts goes on."""
    async with brains(tmp_path / "mesh") as (world, client):
        await world.harness()
        took: list[float] = []
        for _ in range(KILLS):
            seen = await busy(world, client, "tool")
            await world.kill(seen.owner())
            began = time.monotonic()
            await world.harness()
            took.append(await seen.next_after(began))
            await settled(seen)
        say("next event after the start of a new harness", took)

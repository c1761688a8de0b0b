"""Harnesses and session replicas are killed, paused and stopped under running sessions: others go on at once."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from handmesh.client import Client
from tests.drills.brains import Brains, Seen
from tests.drills.size import FULL, size

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.timeout(1_800),
    pytest.mark.asyncio(loop_scope="module"),
]

KILLS = size(2, 50)
WAITS = "it only waits: `make drill` has it"


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


async def busy(world: Brains, client: Client, what: str) -> Seen:
    """Starts a session and waits until its tool runs, or its model answers."""
    seen = Seen(await client.create_session(content=what))
    if what == "tool":
        await seen.kind("tool_started")
    else:
        await seen.until(lambda: seen.text)
    return seen


def loaded(pid: int) -> bool:
    """Tells whether a process has the model's library, by the part of it that is a shared object."""
    return "pydantic_core" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_another_harness_goes_on(world: Brains, client: Client, what: str) -> None:
    """SIGKILL in a tool and in the model's answer: another harness goes on, the tool runs once, no event is lost."""
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


async def test_the_only_harness_is_replaced(world: Brains, client: Client) -> None:
    """SIGKILL of the only harness: the next one that starts goes on."""
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


async def test_a_harness_that_is_told_to_go(world: Brains, client: Client) -> None:
    """SIGTERM: a tool goes on in its hand and another harness has the session at once; an answer is waited for."""
    await world.harness()
    took: list[float] = []
    for what in ("tool", "model"):
        await world.harness()
        seen = await busy(world, client, what)
        began = time.monotonic()
        assert await world.stop(seen.owner()) == 0
        took.append(await seen.next_after(began))
        await settled(seen)
        assert seen.count("harness_woke") == (2 if what == "tool" else 1)
        assert seen.count("model_replied") == (2 if what == "tool" else 1)
    say("next event after SIGTERM in a tool, in an answer", took)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM][: size(1, 2)])
async def test_session_replicas_come_and_go(world: Brains, client: Client, number: int) -> None:
    """Two session replicas and three harnesses: each is ended in turn under running sessions. Nobody takes a session
    from a harness that is at work, and after each end the next message is answered."""
    replicas = [await world.session(), await world.session()]
    world.sessions = world.sessions[1:]  # the mesh's own one serves the client
    for _ in range(3):
        await world.harness()
    for replica in range(len(replicas)):
        all_seen = [await busy(world, client, "tool") for _ in range(3)]
        pid, address = replicas[replica], world.sessions[replica]
        began = time.monotonic()
        await (world.kill(pid) if number == signal.SIGKILL else world.stop(pid))
        replicas[replica] = await world.session(address)
        for seen in all_seen:
            await seen.kind("turn_ended")
            assert seen.count("harness_woke") == 1
            await seen.session.send("tool")
            await seen.kind("turn_ended", 2)
            assert [it.result.output.split() for it in seen.only("tool_finished")] == [["run"], ["run", "run"]]
            await seen.close()
        say("two turns over the end of a session replica", [time.monotonic() - began])
    for left in (2, 1, 0):
        seen = await busy(world, client, "tool")
        await (world.kill(seen.owner()) if number == signal.SIGKILL else world.stop(seen.owner()))
        if not left:
            await world.harness()
        await settled(seen)


@pytest.mark.skipif(not FULL, reason=WAITS)
async def test_a_harness_that_sleeps_too_long(world: Brains, client: Client) -> None:
    """SIGSTOP past the deadline, another harness goes on; SIGCONT: the old one is refused, leaves, and does no harm."""
    await world.harness()
    await world.harness()
    took: list[float] = []
    for what in ("tool", "model"):
        seen = await busy(world, client, what)
        old, began = seen.owner(), time.monotonic()
        os.kill(old, signal.SIGSTOP)
        await seen.kind("harness_woke", 2)
        took.append(time.monotonic() - began)
        os.kill(old, signal.SIGCONT)
        await settled(seen)
        await seen.session.send("hello")
        again = Seen(seen.session)
        await again.kind("turn_ended", 2)
        assert again.count("harness_woke") in (2, 3)  # the sleeper took nothing back: the other one may still keep it
        assert again.count("model_replied") == seen.count("model_replied") + 1
        await again.close()
    say("another harness after SIGSTOP of the first", took)


@pytest.mark.skipif(not FULL, reason=WAITS)
async def test_a_session_replica_that_sleeps_too_long(world: Brains, client: Client) -> None:
    """SIGSTOP of the replica that holds the claims: harnesses go to the other, and the sleeper takes nothing back."""
    await world.session()
    first = await world.session()
    world.sessions = [world.sessions[2], world.sessions[1]]
    await world.harness()
    seen = await busy(world, client, "tool")
    os.kill(first, signal.SIGSTOP)
    await settled(seen)
    again = Seen(seen.session)
    await seen.session.send("tool")
    await again.kind("turn_ended", 2)
    os.kill(first, signal.SIGCONT)
    await seen.session.send("tool")
    await again.kind("turn_ended", 3)
    assert [len(it.result.output.split()) for it in again.only("tool_finished")] == [1, 2, 3]
    await again.close()


async def test_a_harness_that_stands_by(world: Brains) -> None:
    """HANDMESH_MODEL_PRELOAD loads the model's library before it is asked; else an idle harness is small."""
    small, ready = await world.harness(), await world.harness(HANDMESH_MODEL_PRELOAD="1")
    async with asyncio.timeout(60):
        while not loaded(ready):
            await asyncio.sleep(0.05)
    assert not loaded(small)


async def test_a_wake_by_hand_takes_nothing_over(world: Brains, client: Client) -> None:
    """`Wake` at a second harness while the first works: ALREADY_AWAKE, and no second harness, answer or tool."""
    harnesses = [await world.harness()]
    seen = await busy(world, client, "model")
    harnesses.append(await world.harness())
    assert [await world.wake(pid, seen.session.id) for pid in harnesses] == ["ALREADY_AWAKE"] * 2
    await settled(seen)
    assert (seen.count("harness_woke"), seen.count("model_replied")) == (1, 1)


@pytest.mark.skipif(not FULL, reason=WAITS)
async def test_a_long_retry_is_slept_by_nobody(world: Brains, client: Client) -> None:
    """The model asks for 14 s: the run ends; the harness and the session service end too; others ask again in time."""
    first, second = await world.session(), await world.session()
    world.sessions = world.sessions[1:]
    one = await world.harness()
    seen = Seen(await client.create_session(content="overloaded"))
    await seen.kind("retry_scheduled")
    due = seen.only("retry_scheduled")[0].retry_time.ToNanoseconds() / 1e9
    await asyncio.gather(world.stop(first), world.kill(one))
    await world.kill(second)
    world.sessions = []
    await world.session()
    await world.harness()
    await settled(seen)
    assert seen.events[-1].emit_time.ToNanoseconds() / 1e9 >= due
    assert (seen.count("retry_scheduled"), seen.count("harness_woke")) == (1, 2)

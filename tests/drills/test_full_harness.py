"""A harness that works on as many sessions as it may: those that wait are taken in order, or by another harness."""

from __future__ import annotations

import pytest

from handmesh.client import Client, HandmeshError
from tests.drills.brains import Brains, Seen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]

CAPACITY = 2
SESSIONS = 10


def span(seen: Seen) -> tuple[int, int]:
    """Returns when a harness took a session up, and when its turn ended."""
    woke, ended = (next(it for it in seen.events if it.HasField(kind)) for kind in ("harness_woke", "turn_ended"))
    return woke.emit_time.ToNanoseconds(), ended.emit_time.ToNanoseconds()


async def finished(sessions: list[Seen]) -> None:
    """Waits until each session has had its turn, from one harness alone."""
    for seen in sessions:
        await seen.kind("turn_ended")
        assert (seen.count("harness_woke"), seen.count("turn_ended")) == (1, 1)
        await seen.close()


async def test_each_session_gets_its_turn(world: Brains, client: Client) -> None:
    """Ten sessions for a harness that takes two: never more at once, none starves, in the order of their messages."""
    await world.harness(HANDMESH_CAPACITY=str(CAPACITY))
    sessions = [Seen(await client.create_session(content="hello")) for _ in range(SESSIONS)]
    await finished(sessions)
    spans = [span(seen) for seen in sessions]
    for begun, _ in spans:
        assert sum(other <= begun < ended for other, ended in spans) <= CAPACITY
    order = sorted(range(SESSIONS), key=lambda number: spans[number])
    assert all(abs(place - number) < CAPACITY for place, number in enumerate(order))


async def test_who_waits_is_taken_by_another(world: Brains, client: Client) -> None:
    """A full harness refuses a wake by hand (RESOURCE_EXHAUSTED); a harness that joins takes what waits."""
    first = await world.harness(HANDMESH_CAPACITY="1")
    busy = Seen(await client.create_session(content="long"))
    await busy.kind("tool_started")
    waiting = [Seen(await client.create_session(content="hello")) for _ in range(3)]
    with pytest.raises(HandmeshError) as told:
        await world.wake(first, waiting[0].session.id)
    assert (told.value.code, told.value.reason) == ("RESOURCE_EXHAUSTED", "FULL")
    second = await world.harness(HANDMESH_CAPACITY="1")
    await finished(waiting)
    assert {seen.owner() for seen in waiting} == {second}
    await busy.session.interrupt()
    await finished([busy])
    assert busy.owner() == first

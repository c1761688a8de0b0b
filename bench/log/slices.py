"""GetEvents beside an echo and the raw batched read of the same events."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator

from bench.figure import Figure
from bench.log.world import PAYLOAD, World, emit, fill_sessions, session_name, timed
from handmesh.session.v1 import session_pb2 as pb
from services.session.logs.jetstream.events import JetStreamLog

LENGTH = 10_000
PAGE = 1_000
TENS = 30  # slices of 10 in a block
READ_BYTES = 3 * 1024 * 1024


def ask(session_id: str, start: int, count: int) -> pb.GetEventsRequest:
    """A request for `count` events from `start` on."""
    return pb.GetEventsRequest(session_id=session_id, start_position=start, page_size=count)


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields the figures of slices of sessions of 10^4 events of 1 KB. Each is read once, but where it says so."""
    log = JetStreamLog(await world.store())
    sessions = [session_name(number) for number in range(1 if size == "ci" else 4)]
    await fill_sessions(log, [(each, LENGTH, PAYLOAD) for each in sessions])
    await world.restart_session()
    stub, echo = world.client(), world.client(world.echo_address)
    metadata = world.metadata
    await stub.GetEvents(ask(sessions[0], 9, 1), metadata=metadata)
    await timed(lambda: echo.EmitEvent(emit(sessions[0]), metadata=metadata), TENS)
    floor: list[float] = []
    long: list[float] = []
    again: list[float] = []
    for session_id in sessions:
        for start in range(1, LENGTH, PAGE):

            async def page(session_id: str = session_id, start: int = start) -> None:
                answer = await stub.GetEvents(ask(session_id, start, PAGE), metadata=metadata)
                assert len(answer.events) == PAGE

            async def raw(session_id: str = session_id, start: int = start) -> None:
                assert len(await log.read(session_id, start, start + PAGE, READ_BYTES)) == PAGE

            floor += [statistics.median(await timed(lambda: echo.EmitEvent(emit(session_id), metadata=metadata), 20))]  # noqa: B023
            await raw()  # the first to read finds the store cold
            [read] = await timed(raw, 1)
            [first] = await timed(page, 1)
            long.append(first / read)
            again.append(statistics.median(await timed(page, 5)) / floor[-1])
    shown = {"echo_p50_ms": round(statistics.median(floor), 3), "raw_ms": round(read, 2), "page_ms": round(first, 2)}
    yield Figure("GetEvents of 1,000 : raw batched read", "ratio", tuple(long), 1.5, more=shown)
    yield Figure("GetEvents of 1,000 recently read : echo", "ratio", tuple(again), 7.0)
    async for figure in _tens(world, sessions, 8 if size == "ci" else 16):
        yield figure


async def _tens(world: World, sessions: list[str], blocks: int) -> AsyncIterator[Figure]:
    await world.restart_session()
    stub, echo = world.client(), world.client(world.echo_address)
    metadata = world.metadata
    await stub.GetEvents(ask(sessions[0], 5_000, 1), metadata=metadata)
    short: list[float] = []
    places: dict[str, list[float]] = {"head": [], "middle": [], "tail": []}
    shown = {}
    for block in range(blocks):
        floor = statistics.median(await timed(lambda: echo.EmitEvent(emit(sessions[0]), metadata=metadata), TENS))
        for place, begin in (("head", 20), ("middle", 4_500), ("tail", LENGTH - 20 - 10 * TENS * 3)):
            starts = iter(range(begin + 10 * TENS * (block % 3), LENGTH, 10))
            session_id = sessions[block // 3 % len(sessions)]
            taken = await timed(lambda: stub.GetEvents(ask(session_id, next(starts), 10), metadata=metadata), TENS)  # noqa: B023
            places[place].append(statistics.median(taken))
            short.append(places[place][-1] / floor)
        shown = {"echo_p50_ms": round(floor, 3)} | {k: round(statistics.median(v), 3) for k, v in places.items()}
    yield Figure("GetEvents of 10 : echo", "ratio", tuple(short), 2.2, more=shown)
    spread = [max(triple) / min(triple) for triple in zip(*places.values(), strict=True)]
    yield Figure("GetEvents of 10, the slowest of head, middle, tail : the fastest", "ratio", tuple(spread), 1.5)

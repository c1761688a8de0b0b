"""A store of 10^6 events over 10^4 sessions: memory, restarts, a cold append, and a neighbour that is deleted."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.log.appends import session
from bench.log.slices import ask
from bench.log.world import (
    SMALL,
    World,
    emit,
    event,
    fill_sessions,
    lazy_nats,
    make_streams,
    percentile,
    resident,
    session_name,
    start,
    store_of,
    timed,
    well,
)
from handmesh.launcher.nats import Nats
from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.session.logs.jetstream.events import JetStreamLog
from services.session.logs.jetstream.streams import SHARDS, shard_of
from services.session.snapshots import EVERY

SIZES = {"ci": (20_000, 200, 10_000), "full": (1_000_000, 10_000, 99_000)}
"""Events, sessions, and events of the longest session."""

CALLS = 40
WATCHERS = {"ci": 500, "full": 2_000}


def sessions_of(size: str) -> list[tuple[str, int, str]]:
    """The sessions of a store: one long one, the others alike."""
    events, count, longest = SIZES[size]
    each = (events - longest) // (count - 1)
    return [(session_name(0), longest, SMALL), *((session_name(number), each, SMALL) for number in range(1, count))]


async def measure(size: str) -> AsyncIterator[Figure]:
    """Yields the figures of a big store, beside a small one where the issue asks for that."""
    sessions = sessions_of(size)

    async def fill(directory: Path, ports: tuple[int, int]) -> None:
        async with start_store(directory, ports) as (nats, log):
            await fill_sessions(log, sessions)
            filled.append(resident(nats.process.pid))

    filled: list[float] = []
    async with start(fill) as big:
        events = sum(count for _, count, _ in sessions)
        async for figure in _restarts(big, events, size):
            yield figure
        yield Figure("nats-server's memory after the fill", "MB", tuple(filled), 400.0, more={"events": events})
        async for figure in _cold(big, sessions[0][0], 3 if size == "ci" else 5):
            yield figure
        async with start() as small:
            async for figure in _growth(small, big, size):
                yield figure
        async for figure in _deletion(big, [name for name, _, _ in sessions[1:]], 2 if size == "ci" else 6):
            yield figure
        async for figure in _watchers(big, size):
            yield figure


@asynccontextmanager
async def start_store(directory: Path, ports: tuple[int, int]) -> AsyncIterator[tuple[Nats, JetStreamLog]]:
    """A store with its streams, to fill."""
    async with lazy_nats(directory, ports) as nats, AsyncExitStack() as stack:
        await make_streams(nats)
        connection = await store_of(nats, stack)
        yield nats, JetStreamLog(connection)


async def _restarts(world: World, events: int, size: str) -> AsyncIterator[Figure]:
    await world.session.stop()
    taken: dict[str, list[float]] = {"clean": [], "SIGKILL": []}
    memory: list[float] = []
    for _ in range(2 if size == "ci" else 3):
        for how in taken:
            await (world.nats.process.kill() if how == "SIGKILL" else world.nats.process.stop(grace=60))
            begun = time.perf_counter()
            world.nats = await Nats.start(world.directory / "nats", world.directory / "nats.log", *world.ports)
            taken[how].append(time.perf_counter() - begun)
            memory.append(resident(world.nats.process.pid))
            assert await _count(world) >= events, "acknowledged events are lost"
    yield Figure("nats-server's memory after a restart", "MB", tuple(memory), 400.0, more={"events": events})
    for how, seconds in taken.items():
        yield Figure(f"nats-server's restart ({how}), every event there", "s", tuple(seconds), 1.5)
    yield Figure("session service's start", "s", tuple([await world.restart_session() for _ in range(3)]), 1.0)


async def _count(world: World) -> int:
    connection = await world.store()
    answers = [await connection.ask(f"$JS.API.STREAM.INFO.LOG-{shard}", {}) for shard in range(SHARDS)]
    await connection.close()
    return sum(answer["state"]["messages"] for answer in answers)


async def _cold(world: World, session_id: str, times: int) -> AsyncIterator[Figure]:
    """Has the service keep a state, and measures the first append of a new process when the state is at its oldest."""
    stub, metadata = world.client(), world.metadata
    answer = await stub.EmitEvent(emit(session_id, SMALL), metadata=metadata, timeout=120)
    await asyncio.sleep(1)  # the state is written behind
    behind = (EVERY - 8) // 16
    for _ in range(behind):
        events = [event(SMALL, ids.mint("evt")) for _ in range(16)]
        answer = await stub.EmitEvents(pb.EmitEventsRequest(session_id=session_id, events=events), metadata=metadata)
    taken: list[float] = []
    for _ in range(times):
        await world.restart_session()
        stub = world.client()
        other = await session(stub, world)
        await timed(lambda: stub.EmitEvent(emit(other), metadata=metadata), 20)  # noqa: B023
        await well(world.directory)
        taken += await timed(lambda: stub.EmitEvent(emit(session_id, SMALL), metadata=metadata), 1)  # noqa: B023
    shown = {"position": getattr(answer, "first_position", 0), "behind_the_snapshot": behind * 16}
    yield Figure("a cold session's first append", "ms", tuple(taken), 20.0, more=shown)


async def _growth(small: World, big: World, size: str) -> AsyncIterator[Figure]:
    log = JetStreamLog(await small.store())
    await fill_sessions(log, [(session_name(number), 100, SMALL) for number in range(1, 11)])
    stubs = [small.client(), big.client()]
    own = [await session(stub, world) for stub, world in zip(stubs, (small, big), strict=True)]
    appends: list[float] = []
    slices: list[float] = []
    for block in range(8 if size == "ci" else 20):
        await well(big.directory)
        append, slice_ = [], []
        for stub, world, mine in zip(stubs, (small, big), own, strict=True):
            metadata = world.metadata
            append += [statistics.median(await timed(lambda: stub.EmitEvent(emit(mine), metadata=metadata), CALLS))]  # noqa: B023
            names = iter([session_name(1 + (block * 8 + each) % 10) for each in range(8)])
            wanted = ask("", 1 + block % 8 * 10, 10)

            async def read(
                stub: Any = stub, metadata: Any = metadata, names: Any = names, wanted: Any = wanted
            ) -> None:
                wanted.session_id = next(names)
                await stub.GetEvents(wanted, metadata=metadata)

            slice_ += [statistics.median(await timed(read, 8))]
        if block:
            appends.append(append[1] / append[0])
            slices.append(slice_[1] / slice_[0])
    shown = {"small": 1_000, "big": SIZES[size][0]}
    yield Figure("append in a big store : in one of 10^3 events", "ratio", tuple(appends), 2.0, more=shown)
    yield Figure("slice of 10 in a big store : in one of 10^3 events", "ratio", tuple(slices), 2.0, more=shown)


async def _deletion(world: World, victims: list[str], times: int) -> AsyncIterator[Figure]:
    """Purges sessions as the operator's NATS user while others append, all of one shard: the worst case."""
    import nats

    login = json.loads(world.nats.migrate_credentials.read_text())
    admin = await nats.connect(world.nats.url, user=login["user"], password=login["password"])
    stub, metadata = world.client(), world.metadata
    mine = await session(stub, world)
    doomed = iter([each for each in victims if shard_of(each) == shard_of(mine)])
    ratios: list[float] = []
    shown: dict[str, Any] = {}
    for _ in range(times):
        await well(world.directory)
        alone = await timed(lambda: stub.EmitEvent(emit(mine), metadata=metadata), 300)
        ended = False

        async def delete() -> int:
            done = 0
            while not ended:  # noqa: B023
                name = next(doomed)
                question = json.dumps({"filter": f"log.{shard_of(name)}.{name}.*"}).encode()
                await admin.request(f"$JS.API.STREAM.PURGE.LOG-{shard_of(name)}", question, timeout=10)
                done += 1
                await asyncio.sleep(0.2)  # paced
            return done

        deleting = asyncio.create_task(delete())
        beside = await timed(lambda: stub.EmitEvent(emit(mine), metadata=metadata), 300)
        ended = True
        shown = {"deleted": await deleting, "alone_p99_ms": round(percentile(alone, 99), 2)}
        ratios.append(percentile(beside, 99) / percentile(alone, 99))
    await admin.close()
    name = "append p99 while a neighbour of the same shard is deleted every 200 ms : alone"
    yield Figure(name, "ratio", tuple(ratios), 2.0, more=shown)


async def _watchers(world: World, size: str) -> AsyncIterator[Figure]:
    await world.restart_session()
    before = resident(world.session.pid)
    stubs = [world.client() for _ in range(20)]
    mine = [await session(stubs[0], world) for _ in range(50)]
    many = WATCHERS[size]
    calls = []
    for at in range(many):
        request = pb.WatchEventsRequest(session_id=mine[at % 50], start_position=2)
        calls.append(stubs[at % 20].WatchEvents(request, metadata=world.metadata))
    for call in calls:
        await call.read()
    await asyncio.sleep(2)
    after = resident(world.session.pid)
    for call in calls:
        call.cancel()
    shown = {"watchers": many, "before_mb": round(before), "each_kb": round((after - before) * 1024 / many)}
    yield Figure("session service's memory with idle watchers", "MB", (after,), 300.0, more=shown)

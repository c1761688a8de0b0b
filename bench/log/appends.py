"""EmitEvent beside an echo, a raw publish, an fsync and an INSERT, in interleaved blocks.

`floor` in a row is the same ratio of a server that publishes and does nothing else (see `peer`): where that misses the
bound too, the bound asks for more than a unary call and a publish can give on the machine.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

from bench.figure import Figure, Unmeasured
from bench.log.postgres import Missing, postgres
from bench.log.world import PAYLOAD, World, emit, event, fsync, percentile, rate, start_peer, timed, well
from handmesh.launcher.ports import free_ports
from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.session.log import StoredBatch
from services.session.logs.jetstream.connection import Connection
from services.session.logs.jetstream.events import JetStreamLog
from services.session.logs.jetstream.streams import shard_of

CALLS = 50  # of a block


class _Raw:
    """Acknowledged publishes to the log's own streams: the floor of an append, in two clients."""

    def __init__(self, connection: Connection) -> None:
        self._log, self._client = JetStreamLog(connection), connection.client
        self._session, self._position = ids.mint("sess"), 0
        self._data = event(PAYLOAD, ids.mint("evt")).SerializeToString()

    async def lean(self) -> None:
        """With the client that the session service has."""
        self._position += 1
        await self._log.append(self._session, StoredBatch(self._position, 1, "0" * 64, self._data))

    async def stock(self) -> None:
        """With nats-py."""
        self._position += 1
        subject = f"log.{shard_of(self._session)}.{self._session}.{self._position}"
        await self._client.request(subject, self._data, headers={"Nats-Expected-Last-Subject-Sequence": "0"}, timeout=5)


async def session(stub: Any, world: World) -> str:
    """Makes a session."""
    answer = await stub.CreateSession(pb.CreateSessionRequest(), metadata=world.metadata)
    return str(answer.session.session_id)


async def measure(world: World, size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of appends."""
    (port,) = free_ports(1)
    floor = await start_peer(world, "floor", f"127.0.0.1:{port}")
    try:
        async for figure in _alone(world, f"127.0.0.1:{port}", 12 if size == "ci" else 40):
            yield figure
        async for figure in _together(
            world, f"127.0.0.1:{port}", 3 if size == "ci" else 8, 1.0 if size == "ci" else 3.0
        ):
            yield figure
    finally:
        await floor.stop()
    try:
        async with postgres(world) as address:
            async for figure in _beside_postgres(world, address, 8 if size == "ci" else 20):
                yield figure
    except Missing as missing:
        for name in ("EmitEvent p50 : INSERT p50, 1 caller", "EmitEvent rate : INSERT rate, 64 sessions"):
            yield Unmeasured(name, str(missing))


async def _alone(world: World, address: str, blocks: int) -> AsyncIterator[Figure]:
    stub, echo, raw = world.client(), world.client(world.echo_address), _Raw(await world.store())
    floor = world.client(address)
    ours = await session(stub, world)
    metadata = world.metadata
    rows: dict[str, list[list[float]]] = {name: [] for name in ("echo", "emit", "floor", "lean", "stock", "fsync")}
    for block in range(blocks + 1):
        await well(world.directory)
        measured = {
            "echo": await timed(lambda: echo.EmitEvent(emit(ours), metadata=metadata), CALLS),
            "lean": await timed(raw.lean, CALLS),
            "emit": await timed(lambda: stub.EmitEvent(emit(ours), metadata=metadata), CALLS),
            "floor": await timed(lambda: floor.EmitEvent(emit(ours), metadata=metadata), CALLS),
            "stock": await timed(raw.stock, CALLS),
            "fsync": fsync(world.directory, CALLS),
        }
        if block and statistics.median(measured["fsync"]) < 1.0:  # the first one warms up
            for name, taken in measured.items():
                rows[name].append(taken)
    p50 = {name: [statistics.median(taken) for taken in blocks] for name, blocks in rows.items()}
    shown = {f"{name}_p50_ms": round(statistics.median(values), 3) for name, values in p50.items()}
    for kind in ("stock", "lean"):
        ratios = tuple(e / (o + 1.4 * r) for e, o, r in zip(p50["emit"], p50["echo"], p50[kind], strict=True))
        name = "nats-py" if kind == "stock" else "the service's own client"
        floors = [f / (o + 1.4 * r) for f, o, r in zip(p50["floor"], p50["echo"], p50[kind], strict=True)]
        more = shown | {"floor": round(statistics.median(floors), 3)}
        yield Figure(f"EmitEvent p50 : echo + 1.4 x raw publish by {name}", "ratio", ratios, 1.0, more=more)
    # A percentile needs a hundred samples; its noise is that of parts of the run.
    parts = [list(chain(*rows["emit"][at : at + 4])) for at in range(0, len(rows["emit"]) - 3, 4)]
    tails = tuple(percentile(part, 99) / statistics.median(part) for part in parts)
    everything = list(chain(*rows["emit"]))
    whole = {"emit_p99_ms": round(percentile(everything, 99), 3), "emits": len(everything)}
    yield Figure("EmitEvent p99 : p50, 1 caller", "ratio", tails, 2.5, more=whole)


async def _together(world: World, address: str, blocks: int, seconds: float) -> AsyncIterator[Figure]:
    stubs, echo, floor = ([world.client(each) for _ in range(4)] for each in ("", world.echo_address, address))
    sessions = [await session(stubs[0], world) for _ in range(64)]
    metadata = world.metadata

    def one(at: int) -> Any:
        return stubs[at % 4].EmitEvent(emit(sessions[at]), metadata=metadata)

    def ten(at: int) -> Any:
        events = [event(PAYLOAD, ids.mint("evt")) for _ in range(10)]
        return stubs[at % 4].EmitEvents(pb.EmitEventsRequest(session_id=sessions[at], events=events), metadata=metadata)

    def echoed(at: int) -> Any:
        return echo[at % 4].EmitEvent(emit(sessions[at]), metadata=metadata)

    def published(at: int) -> Any:
        return floor[at % 4].EmitEvent(emit(sessions[at]), metadata=metadata)

    many: list[float] = []
    floors: list[float] = []
    batched: list[float] = []
    shown: dict[str, Any] = {}
    for _ in range(blocks):
        await well(world.directory)
        echoes = await rate(echoed, 64, seconds)
        reached = await rate(one, 64, seconds)
        many.append(reached / echoes)
        floors.append(await rate(published, 64, seconds) / echoes)
        shown = {"echo_per_s": round(echoes), "emit_per_s": round(reached), "stretch": 0.7}
        await well(world.directory)
        single = await rate(one, 8, seconds)
        tens = 10 * await rate(ten, 8, seconds)
        batched.append(tens / single)
    shown["floor"] = round(statistics.median(floors), 3)
    yield Figure("EmitEvent rate : echo rate, 64 sessions", "ratio", tuple(many), 0.5, least=True, more=shown)
    rates = {"single_events_per_s": round(single), "batched_events_per_s": round(tens)}
    yield Figure("events/s in batches of 10 : single, 8 callers", "ratio", tuple(batched), 2.0, least=True, more=rates)


async def _beside_postgres(world: World, address: str, blocks: int) -> AsyncIterator[Figure]:
    ours, theirs = [world.client() for _ in range(4)], [world.client(address) for _ in range(4)]
    sessions = [await session(ours[0], world) for _ in range(64)]
    metadata = world.metadata
    alone: list[float] = []
    together: list[float] = []
    shown: dict[str, Any] = {}
    for block in range(blocks + 1):
        await well(world.directory)
        insert = await timed(lambda: theirs[0].EmitEvent(emit(sessions[0]), metadata=metadata), CALLS)
        append = await timed(lambda: ours[0].EmitEvent(emit(sessions[0]), metadata=metadata), CALLS)
        if block:
            alone.append(statistics.median(append) / statistics.median(insert))
            shown = {"insert_p50_ms": round(statistics.median(insert), 3), "stretch": 1.0}
    for _ in range(max(3, blocks // 3)):
        await well(world.directory)
        inserts = await rate(lambda at: theirs[at % 4].EmitEvent(emit(sessions[at]), metadata=metadata), 64, 1.0)
        appends = await rate(lambda at: ours[at % 4].EmitEvent(emit(sessions[at]), metadata=metadata), 64, 1.0)
        together.append(appends / inserts)
        await asyncio.sleep(0)
    yield Figure("EmitEvent p50 : INSERT p50, 1 caller", "ratio", tuple(alone), 1.5, more=shown)
    rates = {"insert_per_s": round(inserts), "emit_per_s": round(appends), "stretch": 1.0}
    yield Figure("EmitEvent rate : INSERT rate, 64 sessions", "ratio", tuple(together), 0.9, least=True, more=rates)

"""Our layout beside a subject for each session, on the same client, streams and disk: the figures of ADR 10.

ours     log.<shard>.<session>.<position>   a slice is a batched get of its subjects, by any replica
theirs   alt.<shard>.<session>              a slice needs the sequence of its first event: from an index that the
                                            process has built, or by reading the session from its beginning
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.log.world import (
    IN_FLIGHT,
    PAYLOAD,
    SMALL,
    chain,
    lazy_nats,
    make_streams,
    resident,
    session_name,
    store_of,
    timed,
    well,
)
from handmesh.launcher.nats import Nats
from handmesh.launcher.ports import free_ports
from services.session.log import StoredBatch
from services.session.logs.jetstream.connection import Connection
from services.session.logs.jetstream.events import COUNT, EXPECTED, PREVIOUS, JetStreamLog
from services.session.logs.jetstream.link import PLAIN
from services.session.logs.jetstream.streams import SHARDS, shard_of

STORES = {"ci": ((1_000, 10),), "full": ((1_000, 10), (100_000, 1_000), (1_000_000, 10_000))}
"""Events and sessions of each store."""

READ_BYTES = 3 * 1024 * 1024
TIMES = 40


@dataclass(frozen=True)
class Row:
    """What was measured of one layout; it has no bound."""

    measured: dict[str, Any]
    holds: bool = True

    def row(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return self.measured


class _Layout(Protocol):
    async def set_up(self) -> None: ...
    async def append(self, session_id: str, batch: StoredBatch) -> None: ...
    async def read(self, session_id: str, start: int, end: int) -> int: ...
    async def last(self, session_id: str) -> None: ...


class Ours:
    """The log as the session service has it."""

    def __init__(self, connection: Connection, index: dict[str, list[int]]) -> None:
        self._connection, self._log = connection, JetStreamLog(connection)

    async def set_up(self) -> None:
        """The operator has made the streams."""

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        await self._log.append(session_id, batch)

    async def read(self, session_id: str, start: int, end: int) -> int:
        return len(await self._log.read(session_id, start, end, READ_BYTES))

    async def last(self, session_id: str) -> None:
        await self._log.head(session_id)


@dataclass
class Theirs:
    """A subject for each session; `index` holds the sequences of its events."""

    connection: Connection
    index: dict[str, list[int]] = field(default_factory=dict)

    async def set_up(self) -> None:
        for shard in range(SHARDS):
            config = {"name": f"ALT-{shard}", "subjects": [f"alt.{shard}.*"], "storage": "file", "allow_direct": True}
            await self.connection.ask(f"$JS.API.STREAM.CREATE.ALT-{shard}", config)

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        sequences = self.index.setdefault(session_id, [])
        header = {EXPECTED: sequences[-1] if sequences else 0, COUNT: 1, PREVIOUS: batch.prev_digest or "none"}
        text = PLAIN + "".join(f"{key}: {value}\r\n" for key, value in header.items()).encode() + b"\r\n"
        answer = json.loads((await self.connection.request(_theirs(session_id), batch.data, text)).data)
        sequences.append(answer["seq"])

    async def read(self, session_id: str, start: int, end: int) -> int:
        return await self._from(session_id, self.index[session_id][start - 1], end - start)

    async def scan(self, session_id: str, start: int, end: int) -> int:
        """Reads without an index: from the beginning."""
        done, sequence = 0, 1
        while done < end - 1:
            done += await self._from(session_id, sequence, min(1_000, end - 1 - done))
            sequence = self.index[session_id][done - 1] + 1
        return end - start

    async def _from(self, session_id: str, sequence: int, count: int) -> int:
        question = {"seq": sequence, "batch": count, "next_by_subj": _theirs(session_id), "max_bytes": READ_BYTES}
        messages, _, _ = await self.connection.collect(f"ALT-{shard_of(session_id)}", json.dumps(question).encode())
        return len(messages)

    async def last(self, session_id: str) -> None:
        await self.connection.last(f"ALT-{shard_of(session_id)}", _theirs(session_id))


def _theirs(session_id: str) -> str:
    return f"alt.{shard_of(session_id)}.{session_id}"


async def measure(size: str) -> AsyncIterator[Row]:
    """Yields a row for each layout and size of the store."""
    for events, sessions in STORES[size]:
        for layout in (Ours, Theirs):
            yield Row(await _measure(layout, events, sessions))


async def _measure(
    layout: Callable[[Connection, dict[str, list[int]]], Any], events: int, sessions: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        directory = Path(folder)
        ports = free_ports(2)
        index: dict[str, list[int]] = {}
        longest = min(10_000, events // 2)
        each = (events - longest) // (sessions - 1)
        found: dict[str, Any] = {
            "name": "layout",
            "layout": layout.__name__.lower(),
            "events": events,
            "sessions": sessions,
        }  # type: ignore[attr-defined]
        begun = time.perf_counter()
        async with lazy_nats(directory, (ports[0], ports[1])) as nats, AsyncExitStack() as stack:
            filling = layout(await store_of(nats, stack, operator=True), index)
            await make_streams(nats)
            await filling.set_up()
            await _fill(filling, longest, each, sessions)
            found |= {
                "fill_s": round(time.perf_counter() - begun, 1),
                "rss_filled_mb": round(resident(nats.process.pid)),
            }
        begun = time.perf_counter()
        nats = await Nats.start(directory / "nats", directory / "nats.log", ports[0], ports[1])
        found |= {"restart_s": round(time.perf_counter() - begun, 2), "rss_mb": round(resident(nats.process.pid))}
        async with AsyncExitStack() as stack:
            stack.push_async_callback(nats.process.stop)
            found |= {"fsync_ms": round(await well(directory), 3)}
            found |= await _times(layout(await store_of(nats, stack, operator=True), index), longest, each)
        return found


async def _fill(layout: _Layout, longest: int, each: int, sessions: int) -> None:
    numbers = iter(range(sessions))

    async def work() -> None:
        for number in numbers:
            count, payload = (longest, PAYLOAD) if number == 0 else (each, SMALL)
            for batch in chain(session_name(number), count, payload):
                await layout.append(session_name(number), batch)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def _times(layout: Any, longest: int, each: int) -> dict[str, Any]:
    name, small = session_name(0), session_name(1)
    more = iter(list(chain(small, each + 3 * TIMES, SMALL))[each:])

    async def p50(call: Callable[[], Awaitable[Any]], times: int = TIMES) -> float:
        return round(statistics.median(await timed(call, times)), 2)

    found = {
        "append_ms": await p50(lambda: layout.append(small, next(more))),
        "last_ms": await p50(lambda: layout.last(name)),
    }
    page = min(1_000, longest // 4)
    for place, at in (("head", 17), ("middle", longest // 2), ("tail", longest - page)):
        found[f"10_{place}_ms"] = await p50(lambda: layout.read(name, at, at + 10))  # noqa: B023
        found[f"{page}_{place}_ms"] = await p50(lambda: layout.read(name, at, at + page), 8)  # noqa: B023
    if isinstance(layout, Theirs):
        found["10_tail_without_index_ms"] = await p50(lambda: layout.scan(name, longest - 10, longest), 3)
    return found

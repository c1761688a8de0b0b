"""A mesh with several harnesses and session replicas, each a process that can be killed, paused and replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from handmesh.client import Session
from handmesh.client.addresses import local_api_key
from handmesh.client.channels import Link
from handmesh.harness.v1.harness_pb2 import WakeOutcome, WakeRequest
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceStub
from handmesh.launcher.health import Health
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.launcher.settings import service_environment
from handmesh.session.v1.event_pb2 import Event

SCRIPT = Path(__file__).with_name("brains.yaml")
PATIENCE_SECONDS = 60.0


class Brains:
    """A mesh without a harness of its own, and the processes that are started beside it."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.sessions = [mesh.settings.ports.mesh("session")]  # where session replicas are
        self.client_ports: dict[int, int] = {}
        self._started: dict[int, Process] = {}
        self._count = 0

    async def harness(self, **more: str) -> int:
        """Starts a harness that knows all session replicas there are; returns its process id."""
        target = ",".join(self.sessions)
        return (await self._start("harness", {"HANDMESH_SESSION_ADDRESS": target} | more))[0]

    async def session(self, address: str = "", **more: str) -> int:
        """Starts one more session replica, or one where another was; returns its process id."""
        pid, at = await self._start("session", more, address)
        if not address:
            self.sessions.append(at)
        return pid

    async def wake(self, pid: int, session_id: str) -> str:
        """Asks a harness to wake a session; returns the outcome."""
        link = Link(f"127.0.0.1:{self.client_ports[pid]}", local_api_key(self.mesh.files.data_directory), None)
        try:
            answer = await link.call(HarnessServiceStub(link.channel).Wake, WakeRequest(session_id=session_id))
        finally:
            await link.close()
        return WakeOutcome.Name(answer.outcome).removeprefix("WAKE_OUTCOME_")

    async def _start(self, service: str, more: dict[str, str], address: str = "") -> tuple[int, str]:
        mesh_port, client_port = free_ports(2)
        address = address or f"127.0.0.1:{mesh_port}"
        ports = {"HANDMESH_LISTEN": address, "HANDMESH_CLIENT_LISTEN": f"127.0.0.1:{client_port}"}
        environment = service_environment(service, self.mesh.settings) | ports | more
        self._count += 1
        name = f"{service}-{self._count}"
        command = Command(
            name=name,
            arguments=[sys.executable, "-P", "-m", f"services.{service}"],
            environment=environment,
            log=self.mesh.files.log(name),
            directory=self.mesh.files.data_directory,
        )
        process = Process.start(command)
        self._started[process.pid] = process
        self.client_ports[process.pid] = client_port
        async with Health(process, client_port) as health:
            await process.ready(health.serving, within=30)
        return process.pid, address

    async def kill(self, pid: int) -> None:
        """Ends a process with SIGKILL and waits until it is gone."""
        await self._started.pop(pid).kill()

    async def stop(self, pid: int) -> int:
        """Ends a process with SIGTERM and returns its exit code."""
        return await self._started.pop(pid).stop()

    async def close(self) -> None:
        """Ends all processes that were started here."""
        for process in self._started.values():
            if process.exit_code is None:
                os.kill(process.pid, signal.SIGCONT)
        await asyncio.gather(*(process.kill() for process in self._started.values()))


class Seen:
    """A session as a client sees it: its events, and when each came."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events: list[Event] = []
        self.times: list[float] = []
        self.text = False  # whether the model has begun to answer
        self._news = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        async for it in self.session.watch(previews=True):
            if isinstance(it, Event):
                self.events.append(it)
                self.times.append(time.monotonic())
            else:
                self.text = True
            self._news.set()

    async def until(self, enough: Any) -> None:
        """Waits until `enough()`."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not enough():
                self._news.clear()
                await self._news.wait()

    async def kind(self, kind: str, times: int = 1) -> None:
        """Waits until there are so many events of a kind."""
        await self.until(lambda: self.count(kind) >= times)

    def count(self, kind: str) -> int:
        """Counts the events of a kind."""
        return sum(event.WhichOneof("kind") == kind for event in self.events)

    def only(self, kind: str) -> list[Any]:
        """Returns what the events of a kind say."""
        return [getattr(event, kind) for event in self.events if event.WhichOneof("kind") == kind]

    def owner(self) -> int:
        """Returns the process id of the harness that has the session."""
        return int(self.only("harness_woke")[-1].instance.rpartition(":")[2])

    async def next_after(self, moment: float) -> float:
        """Waits for the first event after a moment; returns how many seconds later it came."""
        await self.until(lambda: self.times[-1] > moment)
        return next(at for at in self.times if at > moment) - moment

    async def close(self) -> None:
        """Stops watching."""
        self._watching.cancel()
        await asyncio.wait({self._watching})

"""What is measured: the sandbox service and an echo server, each a process of its own, called as a harness calls them.

Both are reached over the mesh's port with mutual TLS. Docker is asked by docker-py, for what it is compared with.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.launcher.processes import Command, Process, log_tail
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from services.kit.channels import connect

ROOT = Path(__file__).parents[2]
BACKENDS = ("docker", "bubblewrap")
IMAGE = "handmesh/base:latest"
POOL = 8
START_SECONDS = 60.0
FILL_SECONDS = 120.0
ANSWER_SECONDS = 120.0
RELEASES_AT_ONCE = 8

_ENVIRONMENT = """
[environments.{backend}-{kind}]
backend = "{backend}"
size = "small"
"""


@dataclass
class World:
    """The processes, and stubs to call them. `problems` says for each backend why it cannot be used, or nothing."""

    directory: Path
    service: Process
    stub: Any
    echo: Any
    problems: dict[str, str]

    @property
    def backends(self) -> list[str]:
        """The backends that can be used here."""
        return [name for name in BACKENDS if not self.problems[name]]

    async def provision(self, environment: str, resources: Sequence[pb.Resource] = ()) -> str:
        """Makes or claims a sandbox; returns its id."""
        request = pb.ProvisionRequest(environment=environment, resources=resources)
        return str((await self.stub.Provision(request, timeout=ANSWER_SECONDS)).sandbox.sandbox_id)

    async def execute(self, sandbox_id: str, command: str, seconds: float = 60.0) -> tool_pb2.ToolResult:
        """Runs a command of bash for so many seconds at most."""
        given = json.dumps({"command": command, "timeout_ms": int(seconds * 1000)})
        request = pb.ExecuteRequest(sandbox_id=sandbox_id, name="bash", input=given)
        result: tool_pb2.ToolResult = (await self.stub.Execute(request, timeout=ANSWER_SECONDS)).result
        return result

    async def echoed(self) -> None:
        """Makes a call of the same size that a bare server answers at once."""
        await self.echo.Execute(pb.ExecuteRequest(sandbox_id="sbx_" + "a" * 26, name="bash", input=_ECHO))

    async def release(self, sandbox_ids: Sequence[str]) -> None:
        """Destroys sandboxes."""
        room = asyncio.Semaphore(RELEASES_AT_ONCE)  # an engine that is asked to remove a hundred at once takes longer

        async def release(sandbox_id: str) -> None:
            async with room:
                await self.stub.Release(pb.ReleaseRequest(sandbox_id=sandbox_id))

        await asyncio.gather(*map(release, sandbox_ids))

    async def release_all(self) -> None:
        """Destroys all sandboxes."""
        found = (await self.stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes
        await self.release([sandbox.sandbox_id for sandbox in found])

    async def filled(self, environment: str) -> None:
        """Waits until a pool is full."""
        end = time.monotonic() + FILL_SECONDS
        while time.monotonic() < end:
            for row in (await self.stub.ListEnvironments(pb.ListEnvironmentsRequest())).environments:
                if row.name == environment and row.pool_free >= row.pool:
                    return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the pool of {environment} was not full within {FILL_SECONDS:.0f} s")

    def peak_memory(self) -> float:
        """Returns the most memory that the service has had since `forget_peak`, in MB."""
        for line in Path(f"/proc/{self.service.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def forget_peak(self) -> None:
        """Lets the service's peak begin at what it has now."""
        Path(f"/proc/{self.service.pid}/clear_refs").write_text("5")


_ECHO = json.dumps({"command": "echo hi"})


@asynccontextmanager
async def start(*, pools: bool = False) -> AsyncIterator[World]:
    """Starts everything in a folder of its own, with pools or without. Repositories may lie in `upstream` of it."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        ensure_certificates(directory / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
        written = [_ENVIRONMENT.format(backend=backend, kind="cold") for backend in BACKENDS]
        if pools:
            written += [_ENVIRONMENT.format(backend=backend, kind="warm") + f"pool = {POOL}\n" for backend in BACKENDS]
        (directory / "environments.toml").write_text("".join(written))
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "HANDMESH_TLS_DIR": str(directory / "tls" / "sandbox"),
            "HANDMESH_STATE_DIR": str(directory / "state"),
            "HANDMESH_ENVIRONMENTS_FILE": str(directory / "environments.toml"),
            "HANDMESH_LOG_LEVEL": "warning",
            "HANDMESH_GIT_ALLOW": f"file://{directory / 'upstream'}",
        }
        stubs, processes = [], []
        for name, module in (("sandbox", "services.sandbox"), ("echo", "bench.hands.peer")):
            (port,) = free_ports(1)
            own = environment | {"HANDMESH_LISTEN": f"127.0.0.1:{port}"}
            command = Command(name, [sys.executable, "-m", module], own, directory / f"{name}.log", ROOT)
            processes.append(Process.start(command))
            channel = connect(f"127.0.0.1:{port}", directory / "tls" / "harness")
            stack.push_async_callback(channel.close)
            stubs.append(SandboxServiceStub(channel))
        service, echo = processes
        world = World(directory, service, stubs[0], stubs[1], {})
        try:
            await _answers(stubs[0], service)
            await _answers(stubs[1], echo)
            rows = (await world.stub.ListEnvironments(pb.ListEnvironmentsRequest())).environments
            world.problems = {row.backend: row.problem for row in rows if row.name.endswith("-cold")}
            yield world
        except BaseException:
            print(*log_tail(directory / "sandbox.log"), sep="\n", file=sys.stderr)
            raise
        finally:
            if service.exit_code is None:
                await world.release_all()
            for process in processes:
                await process.stop(grace=30)


async def _answers(stub: Any, process: Process) -> None:
    """Waits until a server answers. Raises PartFailed when it has ended."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            await stub.ListTools(pb.ListToolsRequest(), wait_for_ready=True, timeout=1)
            return
        except grpc.aio.AioRpcError:
            if process.exit_code is not None or time.monotonic() > end:
                raise process.failure("does not serve") from None


async def timed(call: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    """Calls one after the other; returns how long each took, in ms."""
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


def spawns(times: int) -> list[float]:
    """Runs `sh -c 'echo hi'` on this machine, one after the other; returns how long each took, in ms."""
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        subprocess.run(["/bin/sh", "-c", "echo hi"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


def p50(taken: Sequence[float]) -> float:
    """Returns the median."""
    return statistics.median(taken)

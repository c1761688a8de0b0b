"""Execute on a hand that dials out, beside a local one and an echo server; and two hundred workers at once."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from bench.figure import Figure, Unmeasured
from bench.hands.world import ROOT, World, p50, timed
from handmesh.client.client import Addresses, Client
from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from services.kit.channels import connect

CALLS = 30  # of a block
WORKERS = 200
NAP_SECONDS = 1.0
LATE_SECONDS = 1.0  # two hundred calls of a second at once may take so much longer
ECHOES = 6.0  # that a call on a remote hand may take: one for each way that it goes, and its reports
START_SECONDS = 60.0


@dataclass
class Mesh:
    """A session and a sandbox service with clients' ports, an echo server, and a client."""

    directory: Path
    world: World
    client: Client
    processes: list[Process]

    async def sandbox(self, environment: str) -> str:
        """Makes a sandbox for the client itself; returns its id."""
        request = pb.ProvisionRequest(environment=environment)
        made = await self.client.sandbox_link.call(self.client.sandbox_stub.Provision, request)
        return str(made.sandbox.sandbox_id)

    async def execute(self, sandbox_id: str, tool: str, **given: Any) -> str:
        """Runs a tool as a harness does."""
        request = pb.ExecuteRequest(sandbox_id=sandbox_id, name=tool, input=json.dumps(given))
        return str((await self.world.stub.Execute(request, timeout=60)).result.output)

    @asynccontextmanager
    async def workers(self, names: list[str]) -> AsyncIterator[None]:
        """Runs workers of hands in a process of their own, until all are connected and used."""
        tokens = [(name, (await self.client.hand_tokens.create(name)).token) for name in names]
        file = self.directory / "workers.json"
        file.write_text(json.dumps({"address": self.client.addresses.sandbox, "hands": tokens}))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.hands.workers", str(file)),
            cwd=ROOT,
            env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(START_SECONDS):
                await process.stdout.readline()
            yield
        finally:
            process.kill()
            await process.communicate()


async def measure(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of hands that dial out."""
    async with start() as mesh:
        rows = (await mesh.world.stub.ListEnvironments(pb.ListEnvironmentsRequest())).environments
        problem = next(row.problem for row in rows if row.name == "default")
        if problem:
            yield Unmeasured("Execute p50 on a remote hand : local + echo", problem)
        else:
            async with mesh.workers(["box", "hi"]):
                yield await _beside(mesh, 8 if size == "ci" else 30)
        async with mesh.workers([f"many-{number}" for number in range(WORKERS)]):
            yield await _many(mesh, 2 if size == "ci" else 5)
            yield await _one_of_many(mesh, 8 if size == "ci" else 30)


async def _beside(mesh: Mesh, blocks: int) -> Figure:
    """Compares what a remote hand adds with a local one's whole call: the tool itself does next to nothing in both.

    What `handmesh hand serve` takes for the same command is shown beside it: it starts a bash for each.
    """
    local, box, hi = [await mesh.sandbox(name) for name in ("default", "box", "hi")]
    calls = {
        "echo": mesh.world.echoed,
        "local": lambda: mesh.execute(local, "bash", command="echo hi"),
        "remote": lambda: mesh.execute(hi, "hi"),
        "remote_bash": lambda: mesh.execute(box, "bash", command="echo hi"),
    }
    rows: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(blocks + 1):
        for name, call in calls.items():
            value = p50(await timed(call, CALLS))
            if block:  # the first one warms up
                rows[name].append(value)
    shown = {f"{name}_p50_ms": round(statistics.median(values), 3) for name, values in rows.items()}
    allowed = [one + echo for one, echo in zip(rows["local"], rows["echo"], strict=True)]
    ratios = tuple(took / most for took, most in zip(rows["remote"], allowed, strict=True))
    return Figure("Execute p50 on a remote hand : local + echo", "ratio", ratios, 1.0, more=shown)


async def _many(mesh: Mesh, times: int) -> Figure:
    sandboxes = [await mesh.sandbox(f"many-{number}") for number in range(WORKERS)]
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        said = await asyncio.gather(*(mesh.execute(each, "nap", seconds=NAP_SECONDS) for each in sandboxes))
        taken.append(time.perf_counter() - begun - NAP_SECONDS)
        if set(said) != {"slept"}:
            raise RuntimeError(f"a nap said {set(said)}")
    return Figure(
        f"{WORKERS} calls on {WORKERS} workers at once, past their own {NAP_SECONDS:g} s",
        "s",
        tuple(taken),
        LATE_SECONDS,
    )


async def _one_of_many(mesh: Mesh, blocks: int) -> Figure:
    sandbox = await mesh.sandbox("many-0")
    ratios = []
    for block in range(blocks + 1):
        echo = p50(await timed(mesh.world.echoed, CALLS))
        one = p50(await timed(lambda: mesh.execute(sandbox, "hi"), CALLS))
        if block:
            ratios.append(one / echo)
    return Figure(f"Execute p50 on one of {WORKERS} connected workers : echo", "ratio", tuple(ratios), ECHOES)


@asynccontextmanager
async def start() -> AsyncIterator[Mesh]:
    """Starts everything in a folder of its own. The session service keeps its logs in memory."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        ensure_certificates(directory / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
        key = ensure_api_key(directory).read_text().strip()
        names = {"session": "services.session", "sandbox": "services.sandbox", "echo": "bench.hands.peer"}
        ports = dict(zip([*names, "session client", "sandbox client"], free_ports(5), strict=True))
        processes = []
        for name, module in names.items():
            own = dict(os.environ) | {
                "PYTHONPATH": str(ROOT),
                "HANDMESH_TLS_DIR": str(directory / "tls" / (name if name in SERVICES else "sandbox")),
                "HANDMESH_API_KEYS_FILE": str(directory / "api_keys.json"),
                "HANDMESH_LISTEN": f"127.0.0.1:{ports[name]}",
                "HANDMESH_STATE_DIR": str(directory / "state"),
                "HANDMESH_LOG": "memory",
                "HANDMESH_LOG_LEVEL": "warning",
                "HANDMESH_SESSION_ADDRESS": f"127.0.0.1:{ports['session']}",
            }
            if f"{name} client" in ports:
                own["HANDMESH_CLIENT_LISTEN"] = f"127.0.0.1:{ports[f'{name} client']}"
            command = Command(name, [sys.executable, "-m", module], own, directory / f"{name}.log", ROOT)
            processes.append(Process.start(command))
        stubs = []
        for name in ("sandbox", "echo"):
            channel = connect(f"127.0.0.1:{ports[name]}", directory / "tls" / "harness")
            stack.push_async_callback(channel.close)
            stubs.append(SandboxServiceStub(channel))
        addresses = [f"127.0.0.1:{ports[f'{name} client']}" for name in ("session", "sandbox")]
        client = Client(Addresses(addresses[0], addresses[0], addresses[1], addresses[0]), key)
        stack.push_async_callback(client.close)
        world = World(directory, processes[1], stubs[0], stubs[1], {})
        try:
            for stub in stubs:
                await _answers(stub)
            await client.hand_tokens.all()
            yield Mesh(directory, world, client, processes)
        finally:
            if processes[1].exit_code is None:
                await world.release_all()
            for process in processes:
                await process.stop(grace=30)


async def _answers(stub: Any) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            await stub.ListTools(pb.ListToolsRequest(), wait_for_ready=True, timeout=1)
            return
        except grpc.aio.AioRpcError:
            if time.monotonic() > end:
                raise

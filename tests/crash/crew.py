"""A mesh to be broken: two harnesses, a folder of failpoints, and somebody who starts again what has died."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from handmesh.client import Client, connect
from handmesh.client.addresses import Addresses, local_api_key
from handmesh.client.channels import Link
from handmesh.harness.v1 import harness_pb2
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceStub
from handmesh.launcher.health import Health
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import HOST, SERVICES, Ports, free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.launcher.settings import MeshSettings, Scripted, service_environment
from handmesh.launcher.vault_operator import ACTIVE, VaultOperator
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.ids import mint
from tests.crash import memory

SCRIPT = Path(__file__).with_name("script.yaml")
ENVIRONMENTS = Path(__file__).with_name("environments.toml")
LOOK_SECONDS = 0.02
STRIKE_SECONDS = 60.0  # until a point is reached
READY_SECONDS = 60.0
AT_ONCE = 8  # sandboxes that are released together


@dataclass
class Shop:
    """An MCP server, and the vault that has its token."""

    url: str
    calls_url: str
    token: str
    vault_id: str = ""


@dataclass
class Crew:
    """The mesh's own harness is `harness`; `others` are more of its kind, by name."""

    mesh: Mesh
    client: Client
    failpoints: Path
    shop: Shop
    memory_store_id: str = ""
    others: dict[str, Process] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)  # of the others, for clients
    types: dict[str, str] = field(default_factory=dict)  # of the others, where they are not all that they can be
    wanted: set[str] = field(default_factory=lambda: {*SERVICES, "nats", "openbao"})
    starting: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    # --- failpoints ---

    def arm(self, point: str, action: str) -> None:
        """Says what happens to the next process that comes to the point."""
        for old in self.failpoints.glob(f"{point}.hit-*"):
            old.unlink()
        new = self.failpoints / f"{point}.new"
        new.write_text(action)
        new.rename(self.failpoints / point)  # never seen half written

    async def struck(self, point: str) -> int:
        """Waits until a process came there, and returns its id."""
        async with asyncio.timeout(STRIKE_SECONDS):
            while not (found := list(self.failpoints.glob(f"{point}.hit-*"))):
                await asyncio.sleep(LOOK_SECONDS)
        return int(found[0].name.rpartition("-")[2])

    def disarm(self) -> list[str]:
        """Takes away what nobody came to, and names it."""
        left = [file for file in self.failpoints.iterdir() if ".hit-" not in file.name]
        for file in left:
            file.unlink()
        return [file.name for file in left]

    # --- processes ---

    async def add_harness(self, name: str, capacity: int = 100, types: str = "") -> None:
        """Starts one more harness, of these types if any are said, and waits until it serves."""
        (port,) = free_ports(1)
        self.addresses[name] = f"{HOST}:{port}"
        self.types[name] = types or self.types.get(name, "")
        process = self.others[name] = self._harness(name, capacity)
        async with Health(process, port) as health:
            await process.ready(health.serving, within=READY_SECONDS)

    def _harness(self, name: str, capacity: int) -> Process:
        files = self.mesh.files
        environment = service_environment("harness", self.mesh.settings) | {
            "HANDMESH_LISTEN": f"{HOST}:0",  # nobody dials a harness over the mesh
            "HANDMESH_CLIENT_LISTEN": self.addresses[name],
            "HANDMESH_CAPACITY": str(capacity),
        }
        if types := self.types[name]:
            environment["HANDMESH_HARNESS_TYPES"] = types
        arguments = [sys.executable, "-P", "-m", "services.harness"]
        return Process.start(Command(name, arguments, environment, files.log(name), files.data_directory))

    async def drop_harness(self, name: str) -> None:
        """Ends a harness; nobody starts it again."""
        if name in self.others:
            await self.others.pop(name).stop()
            return
        self.wanted.discard(name)
        os.kill(self.mesh.pids[name], signal.SIGTERM)
        async with asyncio.timeout(READY_SECONDS):
            while name in self.mesh.pids:
                await asyncio.sleep(LOOK_SECONDS)

    async def runs(self, name: str) -> int:
        """Counts the sessions that one of the others is at work on."""
        link = Link(self.addresses[name], local_api_key(self.mesh.files.data_directory), None)
        try:
            found = await link.call(HarnessServiceStub(link.channel).ListRuns, harness_pb2.ListRunsRequest())
            return len(found.runs)
        finally:
            await link.close()

    async def keep(self) -> None:
        """Starts again what has died, for ever, as an operator's process supervisor would."""
        while True:
            for name in (self.wanted - self.mesh.pids.keys()) - self.starting.keys():
                self._start(name)
            for name, process in self.others.items():
                if process.exit_code is not None and name not in self.starting:
                    self._start(name)
            await asyncio.sleep(LOOK_SECONDS)

    def _start(self, name: str) -> None:
        work = self.add_harness(name) if name in self.others else self.mesh.restart(name)

        async def start() -> None:
            try:
                await work
            finally:
                del self.starting[name]

        self.starting[name] = asyncio.create_task(start())

    async def whole(self) -> None:
        """Waits until everything runs."""
        async with asyncio.timeout(READY_SECONDS):
            while self.starting or self.wanted - self.mesh.pids.keys():
                await asyncio.sleep(LOOK_SECONDS)

    def pids(self) -> dict[str, int]:
        """Returns the process ids of everything that runs."""
        own = {name: process.pid for name, process in self.others.items() if process.exit_code is None}
        return {**self.mesh.pids, **own}

    def name_of(self, pid: int) -> str:
        """Names the part that has this process id, or nothing."""
        return next((name for name, each in self.pids().items() if each == pid), "")


@asynccontextmanager
async def crew(directory: Path, types: str = "") -> AsyncIterator[Crew]:
    """Starts the mesh, a second harness and a shop; at the end nothing is left of them. `types` are the harnesses'."""
    failpoints = directory / "failpoints"
    failpoints.mkdir()
    armed = {service: {"HANDMESH_FAILPOINTS": str(failpoints)} for service in SERVICES}
    armed["vault_proxy"]["HANDMESH_OUTBOUND_ALLOW"] = HOST
    armed["harness"]["HANDMESH_MODEL_PRELOAD"] = "1"  # what is killed loads it again beside the next cell
    armed["harness"]["HANDMESH_LINGER_SECONDS"] = "0.2"  # some turns find the session kept, and claims end in time
    if types:
        armed["harness"]["HANDMESH_HARNESS_TYPES"] = types
    data = directory / "mesh"
    settings = MeshSettings(
        data, Scripted(SCRIPT), os.environ, Ports.free(), environments_file=ENVIRONMENTS, extra=armed
    )
    async with (
        shop(directory) as server,
        await Mesh.start(settings) as mesh,
        connect(data_directory=data) as client,
    ):
        made = Crew(mesh, client, failpoints, server)
        await _put_token(made)
        made.memory_store_id = await memory.make(client)
        await made.add_harness("second")
        keeper = asyncio.create_task(made.keep())
        try:
            yield made
        finally:
            keeper.cancel()
            await asyncio.gather(*made.starting.values(), return_exceptions=True)
            for pid in made.pids().values():
                os.kill(pid, signal.SIGCONT)
            left = [sandbox.sandbox_id for sandbox in await client.sandboxes()]  # hands outlive their mesh
            for start in range(0, len(left), AT_ONCE):
                await asyncio.gather(*map(client.release, left[start : start + AT_ONCE]))
            for process in made.others.values():
                await process.stop()


@asynccontextmanager
async def without_openbao(made: Crew, how: str) -> AsyncIterator[None]:
    """Takes OpenBao away, by `kill`, `seal` or `stop`, and brings it back at the end."""
    pid, operator = made.pids()["openbao"], made.mesh.vault
    if how == "seal":
        await asyncio.to_thread(_seal, operator)
    else:
        made.wanted.discard("openbao")
        os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "seal":
            keys = json.loads((made.mesh.files.openbao / "keys.json").read_text())
            await asyncio.to_thread(operator.unseal, keys["unseal_key"])
        elif how == "stop":
            os.kill(pid, signal.SIGCONT)
        made.wanted.add("openbao")
        await made.whole()
        async with asyncio.timeout(READY_SECONDS):
            while await asyncio.to_thread(operator.health) != ACTIVE:
                await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def shop(directory: Path) -> AsyncIterator[Shop]:
    """Runs the demo MCP server with a token of its own."""
    token = f"canary-{mint('tok')}"
    (directory / "token").write_text(token)
    arguments = ("-m", "handmesh.demo_mcp", "--listen", "127.0.0.1:0", "--token-file", str(directory / "token"))
    server = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    said = json.loads(await server.stdout.readline())
    try:
        yield Shop(said["url"], said["calls_url"], token)
    finally:
        server.terminate()
        await server.wait()


def _seal(operator: VaultOperator) -> None:
    url, headers = f"http://{operator.host}:{operator.port}/v1/sys/seal", {"X-Vault-Token": operator.token or ""}
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)):
        pass


async def _put_token(made: Crew) -> None:
    link = Link(
        Addresses.of_ports(made.mesh.settings.ports).vault_proxy, local_api_key(made.mesh.files.data_directory), None
    )
    stub = VaultProxyServiceStub(link.channel)
    vault = (await link.call(stub.CreateVault, vault_proxy_pb2.CreateVaultRequest(name="shop"))).vault
    secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=made.shop.token))
    origin = made.shop.url.removesuffix("/mcp")
    add = vault_proxy_pb2.AddCredentialRequest(vault_id=vault.vault_id, name="shop", origin=origin, secret=secret)
    await link.call(stub.AddCredential, add)
    await link.close()
    made.shop.vault_id = vault.vault_id

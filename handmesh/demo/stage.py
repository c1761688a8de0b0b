"""What the demo needs: a mesh of its own, an MCP server that wants a token, and the token in OpenBao alone."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from handmesh.client import Client, connect
from handmesh.client.health import listens
from handmesh.launcher.files import write_private
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import HOST, Ports, free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.launcher.settings import MeshSettings, Scripted, child_environment

SCRIPT = Path(__file__).with_name("script.yaml")
SERVER = "shop"
TENANT = "default"
READY_SECONDS = 20.0
LOOK_EVERY = 0.02


class Parts(Protocol):
    """What the story does to the mesh that it plays on: a process is killed and started again."""

    @property
    def pids(self) -> Mapping[str, int]:
        """Returns {part: process id} of the parts that run now."""
        ...

    async def kill(self, part: str) -> None:
        """Kills one part with SIGKILL, as a crash would, and returns when it is gone."""
        ...

    async def restart(self, part: str) -> None:
        """Starts one part again and returns when it is ready."""
        ...


@dataclass(frozen=True)
class Stage:
    """All that the story uses. `data_directory` is the mesh's; the token's own file lies outside of it."""

    mesh: Parts
    client: Client
    data_directory: Path
    server_url: str
    vault_id: str
    token: str = field(repr=False)

    async def runs(self, sandbox_id: str, execution_id: str) -> bool:
        """Says whether a sandbox runs an execution right now."""
        executions = await self.client.executions(sandbox_id)
        return any(each.execution_id == execution_id and each.running for each in executions)


@asynccontextmanager
async def mesh_of_its_own(directory: Path, server: str, otlp: str | None = None) -> AsyncIterator[Mesh]:
    """Starts a mesh below `directory`, on free ports, with the scripted model. Stops it at the end.

    `server` (host:port) is where the MCP server will be: loopback and plain http, so vault_proxy must be allowed to.
    `otlp` is the OpenTelemetry collector that gets its traces, if any.
    """
    settings = MeshSettings(
        data_directory=directory / "mesh",
        model=Scripted(SCRIPT),
        caller_environment=os.environ,
        ports=Ports.free(),
        otlp=otlp,
        extra={"vault_proxy": {"HANDMESH_OUTBOUND_ALLOW": server}},
    )
    async with await Mesh.start(settings) as mesh:
        yield mesh


def server_address() -> str:
    """Returns a free place for the MCP server: host:port."""
    return f"{HOST}:{free_ports(1)[0]}"


@asynccontextmanager
async def set_up(directory: Path, mesh: Mesh, server: str) -> AsyncIterator[Stage]:
    """Starts the MCP server at `server` and puts its token into OpenBao. Stops the server at the end."""
    token = new_token()
    token_file = directory / "mcp" / "token"
    write_private(token_file, token.encode())
    process = Process.start(_server_command(mesh, token_file, server))
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not await listens(server):
                if process.exit_code is not None:
                    raise process.failure("ended while it started")
                await asyncio.sleep(LOOK_EVERY)
        origin = f"http://{server}"
        vault_id = await asyncio.to_thread(_store, mesh, token, origin)
        data_directory = mesh.settings.data_directory
        async with connect(data_directory=data_directory) as client:
            try:
                yield Stage(mesh, client, data_directory, f"{origin}/mcp", vault_id, token)
            finally:  # hands outlive the services that made them, so they are ended first
                for each in await client.sandboxes():
                    await client.release(each.sandbox_id)
    finally:
        await process.stop()


def new_token() -> str:
    """Makes a token with characters that URL-encoding changes, so that all its spellings differ."""
    return f"demo+{base64.b64encode(secrets.token_bytes(30)).decode()}/"


def minted(prefix: str) -> str:
    """Makes an id as the mesh makes them: a prefix and 26 characters."""
    return f"{prefix}_{base64.b32hexencode(secrets.token_bytes(20)).decode().lower()[:26]}"


def status_without_token(url: str) -> int:
    """Returns how the server answers somebody without a token: an HTTP status."""
    return _answer(url, "POST")[0]


def calls_served(url: str) -> list[str]:
    """Returns the tools that the server says were called, in order."""
    content = json.loads(_answer(url.removesuffix("/mcp") + "/calls", "GET")[1])
    return [str(call["tool"]) for call in content["calls"]]


def _answer(url: str, method: str) -> tuple[int, bytes]:
    address, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address, timeout=READY_SECONDS)
    try:
        connection.request(method, f"/{path}", "{}", {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _store(mesh: Mesh, token: str, origin: str) -> str:
    """Puts the token into OpenBao as a credential for one origin, and returns its vault's id."""
    vault_id, credential_id = minted("vault"), minted("cred")
    mesh.vault.put_bearer(vault_id, credential_id, origin, token, SERVER, TENANT)
    return vault_id


def _server_command(mesh: Mesh, token_file: Path, server: str) -> Command:
    arguments = ["-P", "-m", "handmesh.demo_mcp", "--listen", server, "--token-file", str(token_file)]
    return Command(
        name="mcp",
        arguments=[sys.executable, *arguments],
        environment=child_environment(mesh.settings),
        log=mesh.files.log("mcp"),
        directory=token_file.parent,
    )

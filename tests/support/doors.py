"""A vault proxy for the doors of sandboxes, as the sandbox service sees one: real gRPC, real mutual TLS, no vault.

`egress` and `git` say what is behind its doors. `git` of a `GitServer` adds the credential outside the sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from handmesh.session.v1.session_pb2 import GitRule
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import (
    VaultProxyServiceServicer,
    add_VaultProxyServiceServicer_to_server,
)
from services.kit.errors import Unauthenticated, Unavailable
from services.kit.grants import shown
from services.kit.guard import Context
from tests.support.git import GitServer
from tests.support.mesh_server import Served, served

Door = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Is a door that leads nowhere."""


@dataclass
class FakeVaultProxy(VaultProxyServiceServicer):
    """What it answers, and what it was asked. `grants` are those that are valid: grant -> what it may reach by git."""

    grants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    placeholders: dict[str, str] = field(default_factory=dict)
    ca_certificate: str = ""
    doors: dict[int, Door] = field(default_factory=lambda: dict.fromkeys(pb.DoorKind.values(), closed))
    sealed: bool = False
    prepared: list[pb.PrepareDoorsRequest] = field(default_factory=list)
    opened: list[pb.OpenDoorRequest] = field(default_factory=list)
    address: str = ""  # of the door listener
    tickets: dict[str, tuple[int, str]] = field(default_factory=dict)  # -> door, and the grant that it was given for
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    def _admitted(self, context: Context) -> str:
        if self.sealed:
            raise Unavailable("VAULT_UNAVAILABLE", "the vault is sealed")
        grant = shown(context.invocation_metadata())
        if grant not in self.grants:
            raise Unauthenticated("GRANT_INVALID", "the grant is not valid, or not any more")
        return grant

    async def PrepareDoors(self, request: pb.PrepareDoorsRequest, context: Context) -> pb.PrepareDoorsResponse:
        grant = self._admitted(context)
        self.prepared.append(request)
        return pb.PrepareDoorsResponse(
            placeholders=[pb.Placeholder(variable=name, value=value) for name, value in self.placeholders.items()],
            ca_certificate=self.ca_certificate,
            repositories=[GitRule(repository=url) for url in self.grants[grant]],
        )

    async def OpenDoor(self, request: pb.OpenDoorRequest, context: Context) -> pb.OpenDoorResponse:
        grant = self._admitted(context)
        self.opened.append(request)
        ticket = secrets.token_urlsafe(32)
        self.tickets[ticket] = (request.kind, grant)
        return pb.OpenDoorResponse(ticket=ticket, address=self.address)

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection of the door listener."""
        task = asyncio.create_task(self._serve(reader, writer))
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            kind, _ = self.tickets.pop((await reader.readline()).decode("ascii").rstrip("\n"), (0, ""))
            await self.doors[kind](reader, writer)
            writer.close()
            await writer.wait_closed()


@asynccontextmanager
async def fake_vault_proxy(data: Path) -> AsyncIterator[tuple[FakeVaultProxy, Served]]:
    """Serves one. `data` has the certificates of the mesh."""
    fake = FakeVaultProxy()  # type: ignore[abstract]

    def add(server: object) -> None:
        add_VaultProxyServiceServicer_to_server(fake, server)  # type: ignore[arg-type]

    async with served(data, "vault_proxy", add, "handmesh.vault_proxy.v1.VaultProxyService") as it:
        tls = it.tls / "vault_proxy"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls / "ca.pem"))
        context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        listener = await asyncio.start_server(fake.connected, "127.0.0.1", 0, ssl=context)
        fake.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield fake, it
        finally:
            listener.close()
            for task in fake.serving:
                task.cancel()
            await asyncio.gather(*fake.serving, return_exceptions=True)


def answering(text: str, seen: list[bytes]) -> Door:
    """Is a door that answers every request of HTTP by a text, and keeps the heads that it has seen."""

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + text.encode())
        await writer.drain()

    return door


def git_door(server: GitServer, password: str) -> Door:
    """Is a door to the repositories of a server, one request each: `/host:port/path`, with a credential added."""

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, _, rest = head.partition("\r\n")
        method, target, version = line.split(" ")
        host = f"/127.0.0.1:{server.port}"
        if not target.startswith(host + "/"):
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        key = base64.b64encode(f"x-access-token:{password}".encode()).decode()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        added = f"Authorization: Basic {key}\r\nConnection: close\r\n"
        far_writer.write(f"{method} {target.removeprefix(host)} {version}\r\n{added}{rest}".encode("latin-1"))
        out = asyncio.create_task(_pump(reader, far_writer))
        try:
            await _pump(far_reader, writer)
        finally:
            out.cancel()
            await asyncio.gather(out, return_exceptions=True)
            far_writer.close()

    return door


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 << 10):
        writer.write(data)
        await writer.drain()

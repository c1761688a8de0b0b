"""An egress door on a loopback port, and the world behind it: hosts with TLS and without, names, a vault."""

from __future__ import annotations

import asyncio
import datetime
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.ca import ensure_certificates
from handmesh.session.v1.event_pb2 import CredentialUsed, DoorRefused
from services.kit import ids
from services.kit.origin import Allowed
from services.vault_proxy.audit import Audit, Bound
from services.vault_proxy.core import kinds
from services.vault_proxy.core.kinds import Draft
from services.vault_proxy.core.placeholders import placeholder_of
from services.vault_proxy.credentials import Credential, Credentials
from services.vault_proxy.doors.authority import Authority
from services.vault_proxy.doors.egress import EgressDoor
from services.vault_proxy.doors.purse import Purse
from services.vault_proxy.doors.refusals import Refusals
from services.vault_proxy.doors.uses import Uses
from services.vault_proxy.doors.visit import Policy, Visit
from services.vault_proxy.doors.wires import Limits
from services.vault_proxy.grants import Access
from services.vault_proxy.outbound.dial import Dialler
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.memory import MemoryStore
from tests.support.requirements import in_ci
from tests.vault_proxy.strange_server import StrangeServer, strange_server

HOST = "api.example"
VALUE = 'canary "of/egress" & more'
LIMITS = Limits(idle_seconds=30, seconds=60, bytes=64 * 1024 * 1024)
SANDBOX = "sbx_00000000000000000000000001"


SYSTEM_PACKAGES = ("curl", "git")  # ci/system-packages sees to them


def need(program: str) -> None:
    """Skips the test where a program is missing; fails it in CI if CI should have it."""
    if shutil.which(program) is None:
        if in_ci() and program in SYSTEM_PACKAGES:
            pytest.fail(f"{program} is missing (in CI nothing is skipped)", pytrace=False)
        pytest.skip(f"{program} is missing")


class Said(Audit):
    """Keeps what sessions are told."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # nobody runs `tell` here
        self.uses: list[tuple[str, CredentialUsed]] = []
        self.refusals: list[tuple[str, DoorRefused]] = []

    def used(
        self, session_id: str, server: str, execution_id: str, credential: Bound, result: str, times: int = 1
    ) -> None:
        use = CredentialUsed(
            credential_id=credential.credential_id,
            vault_id=credential.vault_id,
            server=server,
            execution_id=execution_id,
            result=result,
            times=times if times > 1 else 0,
        )
        self.uses.append((session_id, use))

    def refused(self, session_id: str, refusal: DoorRefused) -> None:
        self.refusals.append((session_id, refusal))


@dataclass
class Names:
    """A resolver: every name is on loopback, but for those that a test knows better. Counts what it is asked."""

    known: dict[str, list[list[str]]] = field(default_factory=dict)  # answers one after the other, the last for ever
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.known.get(host, [["127.0.0.1"]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Everywhere(Allowed):
    """All hosts may be on loopback: the names of these tests are. A test of the rules takes `Allowed()`."""

    def covers(self, origin: object) -> bool:
        return True


def authority(directory: Path) -> Authority:
    """Makes an authority of its own."""
    ensure_certificates(directory, (), datetime.datetime.now(datetime.UTC))
    return Authority(directory / "ca" / "ca.pem", directory / "ca" / "key.pem")


def tls_of(signer: Authority, host: str) -> ssl.SSLContext:
    """Returns how a host of the world answers TLS, whatever name it is called by."""
    context = signer.context(host)
    context.sni_callback = None
    return context


@dataclass
class World:
    """A door, whom it serves, and what came of it."""

    directory: Path
    door: EgressDoor
    uses: Uses
    purse: Purse
    store: MemoryStore
    credentials: Credentials
    names: Names
    said: Said
    visit: Visit
    signer: Authority  # of the hosts' certificates
    port: int = 0
    serving: set[asyncio.Task[None]] = field(default_factory=set)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def trusted(self) -> Path:
        """What a sandbox trusts: the hosts' authority, and the door's."""
        file = self.directory / "bundle.pem"
        file.write_text(self.signer.certificate + self.door.ca_certificate)
        return file

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a tool in a sandbox."""
        proxy = f"http://127.0.0.1:{self.port}"
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "http_proxy": proxy, "https_proxy": proxy}

    async def host(self, name: str | None = HOST, **behaviour: Any) -> tuple[StrangeServer, int]:
        """Starts a host, with TLS unless `name` is None, and allows it. Returns it and its port."""
        tls = tls_of(self.signer, name) if name else None
        server = await self.stack.enter_async_context(strange_server(tls=tls, **behaviour))
        port = int(server.url.removesuffix("/mcp").rpartition(":")[2])
        self.allow(f"{name or HOST}:{port}")
        return server, port

    def allow(self, *rules: str, **more: bool) -> None:
        """Adds to what the environment allows."""
        policy = self.visit.policy
        self.visit = replace(self.visit, policy=replace(policy, allow=(*policy.allow, *rules), **more))

    async def credential(
        self, value: str = VALUE, hosts: str = HOST, variable: str = "API_KEY", places: str = "headers", **facts: str
    ) -> Credential:
        """Adds a credential to the session's vault."""
        said = {"variable": variable, "allowed_hosts": hosts, **facts}
        said |= {f"in_{place}": "1" for place in places.split()}
        draft = Draft(kinds.ENVIRONMENT_VARIABLE, Secret({"value": value}), said)
        return await self.credentials.add("default", self.visit.access.vault_ids[0], "its key", "", draft)

    def placeholder(self, credential: Credential, session_id: str | None = None) -> str:
        """Returns what stands for a credential in the session."""
        return placeholder_of(session_id or self.visit.access.session_id, credential.credential_id)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Comes to the door as a sandbox does."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.stack.callback(writer.close)
        return reader, writer

    async def raw(self, data: bytes) -> bytes:
        """Says something to the door, and returns all that it answers until it ends the connection."""
        reader, writer = await self.connect()
        writer.write(data)
        return await reader.read()

    async def connect_status(self, target: str) -> int:
        """Asks for a tunnel. Returns the status of the answer."""
        reader, writer = await self.connect()
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("utf-8", "surrogateescape"))
        return int((await reader.readline()).split(b" ")[1])

    async def tunnel(
        self, port: int, host: str = HOST, name: str | None = HOST
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Makes a tunnel, and speaks TLS in it that names `name`."""
        reader, writer = await self.connect()
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        context = ssl.create_default_context(cafile=self.trusted)
        context.check_hostname = False
        await writer.start_tls(context, server_hostname=name)
        return reader, writer

    async def curl(self, *arguments: str) -> str:
        """Runs curl as in a sandbox, and returns what it prints, or `curl: ` and its exit code."""
        need("curl")
        return await self.run("curl", "-sS", "--cacert", str(self.trusted), *arguments)

    async def run(self, *command: str, **variables: str) -> str:
        """Runs a program as in a sandbox. Returns what it prints; a failure begins with its name and exit code."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**self.variables, **variables},
            cwd=self.directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            return f"{command[0]}: {process.returncode} {out.decode()} {err.decode()}"
        return out.decode()

    def refused(self) -> list[tuple[str, str]]:
        """Returns target and reason of what the session was told of."""
        return [(refusal.target, refusal.reason) for _, refusal in self.said.refusals]


@asynccontextmanager
async def egress_world(
    directory: Path,
    allowed: Allowed | None = None,
    limits: Limits = LIMITS,
    package_hosts: tuple[str, ...] = (),
    connections: int = 64,
    intercepts: bool = True,
) -> AsyncIterator[World]:
    """Opens a door, for one session that has one vault and may reach nothing yet."""
    signer, names, said, store = authority(directory / "world"), Names(), Said(), MemoryStore()
    credentials = Credentials(store, lambda: "2026-11-30T00:00:00Z")
    purse, uses = Purse(store, credentials), Uses(said)
    door = EgressDoor(
        lambda: Dialler(Everywhere() if allowed is None else allowed, directory / "world/ca/ca.pem", names),
        purse,
        authority(directory / "door") if intercepts else None,
        uses,
        Refusals(said),
        package_hosts,
        limits,
        connections,
    )
    # The memory store reads for whoever has any pass.
    access = Access(ids.mint("sess"), "default", 2, vault_ids=(ids.mint("vault"),), secrets=object())  # type: ignore[arg-type]
    world = World(
        directory, door, uses, purse, store, credentials, names, said, Visit(access, SANDBOX, Policy()), signer
    )

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        world.serving.add(task)
        try:
            await door.serve(world.visit, reader, writer)
        except ConnectionError:
            pass
        finally:
            world.serving.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        async with world.stack:
            yield world
    finally:
        server.close()
        for task in tuple(world.serving):
            task.cancel()
        await asyncio.gather(*world.serving, return_exceptions=True)

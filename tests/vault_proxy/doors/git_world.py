"""A sandbox's git in front of a real git door: a client that knows no credential, and a host that wants one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import GitRule
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit import ids
from tests.support.git_host import GitHost
from tests.vault_proxy.conftest import Proxy
from tests.vault_proxy.doors.dialling import dial, forwarder
from tests.vault_proxy.session_peer import GRANT_KEY

AGENT = ("refs/heads/agent/*",)
AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a"}


@dataclass(frozen=True)
class Said:
    """What git said, all of it, and how it ended."""

    code: int
    text: str


@dataclass
class Sandbox:
    """A sandbox's side: git that finds hosts through the port of a door."""

    proxy: Proxy
    grant: str
    folder: Path
    port: int
    sandbox_id: str
    environment: dict[str, str] = field(default_factory=dict)

    async def git(self, *arguments: str, cwd: str = "", **environment: str) -> Said:
        """Runs git."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1", **AUTHOR}
        env |= {"GIT_CONFIG_GLOBAL": str(self.folder / "gitconfig"), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        git = await asyncio.create_subprocess_exec(
            "git",
            *arguments,
            cwd=self.folder / cwd,
            env={**env, **self.environment, **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await git.communicate()
        assert git.returncode is not None
        return Said(git.returncode, said.decode(errors="replace"))

    async def ok(self, *arguments: str, cwd: str = "", **environment: str) -> str:
        """Runs git, which must succeed."""
        said = await self.git(*arguments, cwd=cwd, **environment)
        assert said.code == 0, said.text
        return said.text.strip()

    async def commit(self, cwd: str, name: str, content: bytes | str) -> str:
        """Commits a file, and returns the commit."""
        file = self.folder / cwd / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        await self.ok("add", "--all", cwd=cwd)
        await self.ok("commit", "--quiet", "--message", name, cwd=cwd)
        return await self.ok("rev-parse", "HEAD", cwd=cwd)

    async def raw(self, data: bytes, end: bool = False) -> bytes:
        """Says bytes to the door, and returns all that it says."""
        ticket, address = await self.ticket()
        reader, writer = await dial(address, self.proxy.tls / "sandbox", ticket)
        writer.write(data)
        try:
            said = await reader.read()
        except ConnectionError:
            said = b""
        writer.close()
        return said

    async def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> tuple[int, bytes]:
        """Makes a plain request, and returns status and the rest of the answer."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:8417", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        said = await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return (int(said.split(b" ", 2)[1]), said.partition(b"\r\n\r\n")[2]) if said else (0, b"")

    async def ticket(self) -> tuple[str, str]:
        """Asks for a ticket, as the sandbox service does."""
        return await ticket(self.proxy, self.grant, self.sandbox_id)

    def refused(self) -> list[tuple[str, str]]:
        """Returns what the session was told of refusals so far: target and reason."""
        return [(e.door_refused.target, e.door_refused.reason) for e in self._told("door_refused")]

    def used(self) -> list[str]:
        """Returns what the session was told of uses of its credential so far: how each ended."""
        return [e.credential_used.result for e in self._told("credential_used")]

    def _told(self, kind: str) -> list[Event]:
        session = self.proxy.peer.session_of(self.grant)
        return [event for its, event in self.proxy.peer.events if its == session and event.WhichOneof("kind") == kind]


async def ticket(proxy: Proxy, grant: str, sandbox_id: str) -> tuple[str, str]:
    """Asks for a ticket of the git door with the sandbox service's certificate."""
    from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
    from services.kit.channels import connect

    async with connect(proxy.address, proxy.tls / "sandbox") as channel:
        request = pb.OpenDoorRequest(sandbox_id=sandbox_id, kind=pb.DOOR_KIND_GIT)
        opened = await VaultProxyServiceStub(channel).OpenDoor(request, metadata=((GRANT_KEY, grant),))  # type: ignore[misc]
    return opened.ticket, opened.address


@asynccontextmanager
async def sandbox(proxy: Proxy, grant: str, folder: Path, *hosts: GitHost) -> AsyncIterator[Sandbox]:
    """Makes a sandbox whose git finds the hosts through its door."""
    await asyncio.to_thread(folder.mkdir)
    sandbox_id = ids.mint("sbx")
    async with forwarder(lambda: ticket(proxy, grant, sandbox_id), proxy.tls / "sandbox") as port:
        lines = ["[init]", "defaultBranch = main", "[http]", "followRedirects = false", "[credential]", "helper ="]
        for host in hosts:
            lines += [f'[url "http://127.0.0.1:{port}/{host.authority}/"]', f"insteadOf = {host.origin}/"]
        (folder / "gitconfig").write_text("\n".join(lines) + "\n")
        yield Sandbox(proxy, grant, folder, port, sandbox_id)


def rule(url: str, patterns: Sequence[str] = AGENT) -> GitRule:
    """Makes a rule."""
    return GitRule(repository=url, push_patterns=patterns)


async def add_login(proxy: Proxy, origin: str, value: str, **fields: str) -> tuple[str, str]:
    """Adds a git credential by the API. Returns the vault's id and its own."""
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest(name="git"))).vault.vault_id  # type: ignore[misc]
    secret = pb.CredentialSecret(git=pb.GitAccess(value=value, **fields))
    request = pb.AddCredentialRequest(vault_id=vault, name="login", origin=origin, secret=secret)
    added = await proxy.client.AddCredential(request)  # type: ignore[misc]
    return vault, added.credential.credential_id


async def rotate(proxy: Proxy, credential_id: str, value: str) -> None:
    """Replaces a credential's value by the API."""
    secret = pb.CredentialSecret(git=pb.GitAccess(value=value))
    await proxy.client.UpdateCredential(pb.UpdateCredentialRequest(credential_id=credential_id, secret=secret))  # type: ignore[misc]

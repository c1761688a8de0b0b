"""The egress door as a sandbox has it: behind OpenDoor and its ticket, with secrets in a real OpenBao."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from handmesh.launcher.ca import ensure_door_authority
from handmesh.session.v1.event_pb2 import CredentialUsed, Event
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import connect
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Start, vault_settings
from tests.vault_proxy.doors.dialling import forwarder
from tests.vault_proxy.doors.egress_world import authority, need, tls_of
from tests.vault_proxy.session_peer import GRANT_KEY
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server

pytestmark = pytest.mark.vault

SANDBOX = "sbx_00000000000000000000000001"
VALUE = "canary-of-the-mesh"


@dataclass
class Mesh:
    """A vault_proxy with its vault, a host on loopback, and a session whose vault has a credential for it."""

    proxy: Proxy
    bao: OpenBaoServer
    host: StrangeServer
    directory: Path
    grant: str
    vault_id: str
    credential_id: str
    stub: VaultProxyServiceStub

    @property
    def target(self) -> str:
        """`host:port` of the host."""
        return self.host.url.removesuffix("/mcp").removeprefix("https://").replace("127.0.0.1", "localhost")

    @property
    def network(self) -> pb.NetworkPolicy:
        return pb.NetworkPolicy(allow=[self.target])

    async def prepared(self, grant: str | None = None) -> pb.PrepareDoorsResponse:
        """Asks what a sandbox is told, as the sandbox service does."""
        request = pb.PrepareDoorsRequest(sandbox_id=SANDBOX, network=self.network)
        return await self.stub.PrepareDoors(request, metadata=((GRANT_KEY, grant or self.grant),))

    async def ticket(self) -> tuple[str, str]:
        """Asks for a ticket, as the sandbox service does."""
        request = pb.OpenDoorRequest(sandbox_id=SANDBOX, kind=pb.DOOR_KIND_EGRESS, network=self.network)
        opened = await self.stub.OpenDoor(request, metadata=((GRANT_KEY, self.grant),))
        return opened.ticket, opened.address

    async def curl(self, *arguments: str) -> str:
        """Runs curl behind a forwarder, as in a sandbox. Returns what it prints, and `curl: CODE` when it fails."""
        need("curl")
        bundle = self.directory / "bundle.pem"
        bundle.write_text((await self.prepared()).ca_certificate)
        async with forwarder(self.ticket, self.proxy.tls / "sandbox") as port:
            command = ("curl", "-sS", "-i", "-x", f"http://127.0.0.1:{port}", "--cacert", str(bundle), *arguments)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.environ["PATH"]},
            )
            out, err = await process.communicate()
        return out.decode() + (f"curl: {process.returncode} {err.decode()}" if process.returncode else "")

    def another_session(self) -> str:
        """Makes a grant of a session of which nothing is kept anywhere, with the same vault. Returns it."""
        self.grant = self.proxy.peer.grant(vault_ids=(self.vault_id,))
        return self.grant


@asynccontextmanager
async def a_mesh(start: Start, bao: OpenBaoServer, directory: Path) -> AsyncIterator[Mesh]:
    signer = authority(directory / "world")
    ensure_door_authority(directory, datetime.datetime.now(datetime.UTC))
    variables = {
        "HANDMESH_OUTBOUND_ALLOW": "localhost",
        "HANDMESH_OUTBOUND_CA_FILE": str(directory / "world/ca/ca.pem"),
        "HANDMESH_VAULT_PROXY_DOOR_CA_CERT_FILE": str(directory / "doors/ca.pem"),
        "HANDMESH_VAULT_PROXY_DOOR_CA_KEY_FILE": str(directory / "doors/key.pem"),
    }
    answer = lambda request: Reply(200, b"fine", {"Content-Type": "text/plain"})  # noqa: E731
    async with (
        strange_server(tls=tls_of(signer, "localhost"), answer=answer) as host,
        start(**vault_settings(bao), **variables) as proxy,
        connect(proxy.address, proxy.tls / "sandbox") as channel,
    ):
        vault = (await proxy.client.CreateVault(pb.CreateVaultRequest(name="mine"))).vault
        variable = pb.EnvironmentVariable(variable="API_KEY", value=VALUE, allowed_hosts=["localhost"], in_headers=True)
        secret = pb.CredentialSecret(environment_variable=variable)
        request = pb.AddCredentialRequest(vault_id=vault.vault_id, name="key", secret=secret)
        added = (await proxy.client.AddCredential(request)).credential
        stub = VaultProxyServiceStub(channel)
        grant = proxy.peer.grant(vault_ids=(vault.vault_id,))
        yield Mesh(proxy, bao, host, directory, grant, vault.vault_id, added.credential_id, stub)  # type: ignore[arg-type]


@pytest.fixture
async def mesh(start: Start, openbao: OpenBaoServer, tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(start, openbao, tmp_path) as started:
        yield started


async def test_a_placeholder_of_prepare_doors_becomes_the_credential(mesh: Mesh) -> None:
    """Read from the vault by the session's own right; the use is in the session's log; updates reach it at once."""
    prepared = await mesh.prepared()
    [placeholder] = prepared.placeholders
    assert placeholder.variable == "API_KEY" and VALUE not in repr(prepared)
    key = f"X-Key: {placeholder.value}"
    assert (await mesh.curl("-H", key, f"https://{mesh.target}/")).endswith("fine")
    assert mesh.host.requests[-1].headers["x-key"] == VALUE
    [event] = await mesh.proxy.peer.uses(mesh.proxy.peer.session_of(mesh.grant), 1)
    assert event.credential_used == CredentialUsed(
        credential_id=mesh.credential_id, vault_id=mesh.vault_id, server="localhost", result="ok"
    )
    newer = pb.CredentialSecret(environment_variable=pb.EnvironmentVariable(value="canary-two"))
    await mesh.proxy.client.UpdateCredential(pb.UpdateCredentialRequest(credential_id=mesh.credential_id, secret=newer))
    assert (await mesh.curl("-H", key, f"https://{mesh.target}/")).endswith("fine")
    assert mesh.host.requests[-1].headers["x-key"] == "canary-two"


async def test_a_refusal_is_in_the_log_of_the_session(mesh: Mesh) -> None:
    """As an event of its own, which the model and the operator can read."""
    assert "HTTP/1.1 403" in await mesh.curl("https://evil.example/")
    [event] = await mesh.proxy.peer.uses(mesh.proxy.peer.session_of(mesh.grant), 1)
    refused: Event = event
    assert (refused.door_refused.target, refused.door_refused.reason) == ("evil.example:443", "HOST_DENIED")
    assert refused.door_refused.sandbox_id == SANDBOX and mesh.target in refused.door_refused.message


async def test_a_connection_ends_with_its_session(mesh: Mesh) -> None:
    """A tunnel that stands open is cut when the session service revokes the grant."""
    async with forwarder(mesh.ticket, mesh.proxy.tls / "sandbox") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {mesh.target} HTTP/1.1\r\nHost: {mesh.target}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        mesh.proxy.peer.revoke(mesh.grant)
        assert await reader.read() == b""
        writer.close()


async def test_a_sealed_vault_is_a_503_and_nothing_has_to_be_restarted(
    start: Start, own_openbao: OpenBaoServer, tmp_path: Path
) -> None:
    """For a session whose credentials are not at hand; the door works again when the vault does."""
    async with a_mesh(start, own_openbao, tmp_path) as mesh:
        await sealed_and_back(mesh)


async def sealed_and_back(mesh: Mesh) -> None:
    await asyncio.to_thread(operator.seal, mesh.bao)
    try:
        mesh.another_session()
        async with forwarder(mesh.ticket, mesh.proxy.tls / "sandbox") as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT {mesh.target} HTTP/1.1\r\nHost: {mesh.target}\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
        assert answer.startswith(b"HTTP/1.1 503 ") and b"VAULT_UNAVAILABLE" in answer
    finally:
        await asyncio.to_thread(operator.unseal, mesh.bao)
    stands = (await mesh.prepared()).placeholders[0].value
    assert (await mesh.curl("-H", f"X-Key: {stands}", f"https://{mesh.target}/")).endswith("fine")
    assert mesh.host.requests[-1].headers["x-key"] == VALUE

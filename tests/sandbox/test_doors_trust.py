"""What tools in a sandbox trust: the clients that people use reach a host whose certificate our authority signed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.sandbox.doors_core import Prepared, outfit
from services.sandbox.hand import Doors, Limits
from services.sandbox.runner import trust
from tests.sandbox.test_doors import GRANT, World
from tests.support.doors import Door, fake_vault_proxy
from tests.support.git import GitServer, Upstream

URL = "https://example.test/"
_GO = f"GOPROXY={URL} GOTOOLCHAIN=local GOCACHE=/tmp/go /usr/local/go/bin/go list -m {URL[8:]}x@latest"
CLIENTS = {  # program -> a command that asks for something over TLS
    "/usr/bin/curl": f"curl -sS {URL}",
    "/usr/bin/git": f"git ls-remote {URL}owner/name",
    "/usr/bin/python3": f"python3 -c \"import urllib.request as it; it.urlopen('{URL}')\"",
    "/usr/bin/pip3": f"pip3 download --no-cache-dir --retries 0 --index-url {URL} thing",
    "/usr/bin/npm": f"npm view --cache /tmp/npm --fetch-retries 0 --registry {URL} thing",  # which is node
    "/usr/local/go/bin/go": _GO,
}
_JAVA = f"""
public class Get {{
    public static void main(String[] arguments) throws Exception {{
        new java.net.URL("{URL}").openStream().read();
    }}
}}
"""


class Authority:
    """A root, and one host's certificate."""

    def __init__(self, folder: Path, host: str = "example.test") -> None:
        """Makes both. A host is a name, or an IPv4 address."""
        now = datetime.datetime.now(datetime.UTC)
        key, self.root_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        root = self._signed("our authority", self.root_key, None, now)
        leaf = self._signed(host, key, root, now)
        self.pem = root.public_bytes(serialization.Encoding.PEM).decode()
        chain = folder / "leaf.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + private)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.load_cert_chain(chain)

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: x509.Certificate | None,
        now: datetime.datetime,
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if issuer is not None:
            numbers = name.replace(".", "").isdigit()
            known = x509.IPAddress(ipaddress.ip_address(name)) if numbers else x509.DNSName(name)
            builder = builder.add_extension(x509.SubjectAlternativeName([known]), critical=False)
        return builder.sign(self.root_key, hashes.SHA256())


def intercepting(authority: Authority, seen: list[str]) -> Door:
    """Is a door that answers CONNECT as the host itself would; `seen` are the requests that came inside of TLS."""

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await writer.start_tls(authority.context)
            seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()

    return door


def _needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not Path(program).exists(), reason=f"this machine has no {program}")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Sandboxes that see this machine's programs."""
    upstream = Upstream(tmp_path / "upstream" / "team" / "app")
    git = GitServer(tmp_path / "upstream")
    async with fake_vault_proxy(tmp_path) as (fake, served):
        fake.grants = {GRANT: ()}
        it = World(fake, served, tmp_path, "bubblewrap", git, upstream, limits=Limits())
        it.note()
        try:
            yield it
            for sandbox_id in it.made:
                await it.sandboxes.release(sandbox_id)
            await it.close()
        finally:
            git.close()


@pytest.mark.bwrap
@pytest.mark.parametrize("program", [pytest.param(program, marks=_needs(program)) for program in CLIENTS])
async def test_clients_trust_our_authority_in_a_sandbox(world: World, tmp_path: Path, program: str) -> None:
    """Each finds proxy and authority by what the sandbox was given, without an option; without it, none connects."""
    authority, seen = Authority(tmp_path), list[str]()
    world.fake.doors[pb.DOOR_KIND_EGRESS] = intercepting(authority, seen)
    world.fake.ca_certificate = authority.pem
    said = await world.bash(await world.provision("open"), f"{CLIENTS[program]} 2>&1")
    assert seen and all(line.startswith("GET ") for line in seen), said
    seen.clear()
    world.fake.ca_certificate = ""
    said = await world.bash(await world.provision("open"), f"{CLIENTS[program]} 2>&1")
    assert not seen, said


@pytest.mark.skipif(shutil.which("java") is None, reason="this machine has no java")
async def test_java_trusts_our_authority(tmp_path: Path) -> None:
    """By the store that the runner writes and the variable that tools get; not in a sandbox, as Debian's needs /etc."""
    authority, seen = Authority(tmp_path), list[str]()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve() -> None:
            await intercepting(authority, seen)(reader, writer)
            writer.close()

        tasks.add(asyncio.create_task(serve()))

    (tmp_path / "Get.java").write_text(_JAVA)
    async with await asyncio.start_server(connected, "127.0.0.1", 0) as proxy:
        doors = Doors({"egress": proxy.sockets[0].getsockname()[1]}, str(tmp_path / "trust"))
        env = {"PATH": "/usr/bin:/bin", **outfit(Prepared(ca_certificate=authority.pem), doors)}
        for own in (authority.pem, ""):
            trust.write(doors.folder, "", own)
            process = await asyncio.create_subprocess_exec(
                "java", "-XX:TieredStopAtLevel=1", str(tmp_path / "Get.java"), env=env, stderr=asyncio.subprocess.PIPE
            )
            _, said = await process.communicate()
            assert len(seen) == 1, said.decode()
        assert b"unable to find valid certification path" in said
    await asyncio.gather(*tasks)

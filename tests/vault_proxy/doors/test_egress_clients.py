"""Programs that people use work through the egress door as they are, also where a placeholder is replaced."""

from __future__ import annotations

import functools
import io
import json
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.vault_proxy.doors.egress_world import HOST, World, egress_world, need
from tests.vault_proxy.strange_server import Reply, Request, StrangeServer

NODE = """
const http = require('http'), https = require('https');
const [proxy, host, key] = [new URL(process.env.https_proxy), process.argv[1], process.argv[2]];
http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: host}).on('connect', (_, socket) =>
  https.get({socket, agent: false, host: host.split(':')[0], path: '/', headers: {Host: host, 'X-Key': key}},
    answer => { answer.pipe(process.stdout); answer.on('end', () => process.exit(0)); })).end();
"""
PYTHON = """
import sys, urllib.request
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], headers={'X-Key': sys.argv[2]})).read().decode())
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with egress_world(tmp_path) as opened:
        yield opened


async def keyed(world: World, answers: dict[str, Reply]) -> tuple[str, str, StrangeServer]:
    """Starts a host at which a placeholder is replaced. Returns its `host:port`, the placeholder, and the host."""

    def answer(request: Request) -> Reply:
        return answers.get(request.path.partition("?")[0], Reply(404, b"no"))

    server, port = await world.host(answer=answer)
    return f"{HOST}:{port}", world.placeholder(await world.credential("canary-of-clients")), server


async def test_git(world: World) -> None:
    """With the key in a header of its own."""
    need("git")
    refs = Reply(200, b"a" * 40 + b"\trefs/heads/main\n", {"Content-Type": "text/plain"})
    host, stands, server = await keyed(world, {"/repo/info/refs": refs})
    command = ("git", "-c", f"http.extraHeader=X-Key: {stands}", "ls-remote", f"https://{host}/repo")
    shown = await world.run(*command, GIT_SSL_CAINFO=str(world.trusted), GIT_CONFIG_NOSYSTEM="1")
    assert shown == f"{'a' * 40}\trefs/heads/main\n"
    assert server.requests[0].headers["x-key"] == "canary-of-clients"


@functools.cache  # it says when it was made
def wheel() -> bytes:
    """Returns the smallest package that pip takes."""
    data, info = io.BytesIO(), "probe-1.0.dist-info"
    with zipfile.ZipFile(data, "w") as files:
        files.writestr("probe.py", "")
        files.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n")
        files.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        files.writestr(f"{info}/RECORD", "")
    return data.getvalue()


async def test_pip(world: World) -> None:
    """With the key as the index's password: it is inside of Basic."""
    name, content = "probe-1.0-py3-none-any.whl", wheel()
    answers = {
        "/simple/probe/": Reply(200, f'<a href="/files/{name}">{name}</a>'.encode(), {"Content-Type": "text/html"}),
        f"/files/{name}": Reply(200, content, {"Content-Type": "application/octet-stream"}),
    }
    host, stands, server = await keyed(world, answers)
    index = f"https://user:{stands}@{host}/simple"
    command = (sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-i", index)
    shown = await world.run(*command, "probe", PIP_CERT=str(world.trusted), PIP_CONFIG_FILE="/dev/null")
    assert (world.directory / name).read_bytes() == content, shown
    assert {request.headers.get("authorization") for request in server.requests} <= {
        None,
        "Basic dXNlcjpjYW5hcnktb2YtY2xpZW50cw==",
    }
    assert server.requests[-1].headers["authorization"]


async def test_npm(world: World) -> None:
    """With the key as the registry's token."""
    need("npm")
    version = {"name": "probe", "version": "1.0.0"}
    body = json.dumps({"name": "probe", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}).encode()
    host, stands, server = await keyed(world, {"/probe": Reply(200, body, {"Content-Type": "application/json"})})
    lines = f"registry=https://{host}/", f"//{host}/:_authToken={stands}", "fetch-retries=0", "update-notifier=false"
    (world.directory / ".npmrc").write_text("\n".join(lines))
    variables = {"NODE_EXTRA_CA_CERTS": str(world.trusted), "NPM_CONFIG_GLOBALCONFIG": str(world.directory / "none")}
    shown = await world.run("npm", "view", "probe", "version", **variables)
    assert shown == "1.0.0\n"
    assert server.requests[0].headers["authorization"] == "Bearer canary-of-clients"


async def test_node(world: World) -> None:
    """With https of its own."""
    need("node")
    host, stands, server = await keyed(world, {"/": Reply(200, b"fine", {"Content-Type": "text/plain"})})
    shown = await world.run("node", "-e", NODE, host, stands, NODE_EXTRA_CA_CERTS=str(world.trusted))
    assert (shown, server.requests[0].headers["x-key"]) == ("fine", "canary-of-clients")


async def test_python(world: World) -> None:
    """With urllib, which takes the proxy from the environment; certificates are checked to the letter from 3.13 on."""
    host, stands, server = await keyed(world, {"/": Reply(200, b"fine", {"Content-Type": "text/plain"})})
    shown = await world.run(sys.executable, "-c", PYTHON, f"https://{host}/", stands, SSL_CERT_FILE=str(world.trusted))
    assert (shown, server.requests[0].headers["x-key"]) == ("fine\n", "canary-of-clients")


async def test_certificates_pass_openssl_to_the_letter(world: World) -> None:
    """What newer clients ask of a chain: no key usage, identifier or constraint is missing."""
    need("openssl")
    host, _, _ = await keyed(world, {})
    reader, writer = await world.tunnel(int(host.rpartition(":")[2]))
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    leaf, authority = world.directory / "leaf.der", world.directory / "authority.pem"
    leaf.write_bytes(der)
    authority.write_text(world.door.ca_certificate)
    shown = await world.run(
        "openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", HOST,
        "-CAfile", str(authority), str(leaf),
    )  # fmt: skip
    assert shown.endswith("OK\n") and not reader.at_eof()

"""What a sandbox might say to its git door that is not git, and what a host might answer: refused, and forgotten."""

from __future__ import annotations

import asyncio
import gzip
import os
from pathlib import Path

import pytest

from services.vault_proxy.doors import git as git_doors
from services.vault_proxy.doors import http
from tests.support.git_host import Request
from tests.vault_proxy.doors.conftest import NAME, VALUE, World
from tests.vault_proxy.doors.dialling import dial
from tests.vault_proxy.doors.git_world import rule, sandbox

ZERO = "0" * 40


def path(world: World, rest: str, name: str = NAME) -> str:
    return f"/{world.host.authority}/{name}{rest}"


REFERENCES = "/info/refs?service=git-upload-pack"


async def test_an_honest_request(small_world: World) -> None:
    """The control of all that follows."""
    status, said = await small_world.box.ask("GET", path(small_world, REFERENCES))
    assert status == 200 and b"# service=git-upload-pack" in said


@pytest.mark.parametrize(
    ("status", "head"),
    [
        (400, "GET {ref} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (400, "GET {ref} HTTP/1.0\r\nHost: a\r\n\r\n"),
        (400, "GET {ref}\r\n\r\n"),
        (400, "GET http://{authority}/{name}/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: a\r\n\r\n"),
        (405, "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
        (400, "GET {ref} HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "GET {ref} HTTP/1.1\r\nHost: a\r\nX: " + "x" * 40_000 + "\r\n\r\n"),
        (413, "GET {ref} HTTP/1.1\r\nHost: a\r\nX: " + "x" * 1_000_000 + "\r\n\r\n"),
        (400, "GET /{authority}/acme/../other/app/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: a\r\n\r\n"),
        (403, "GET /{authority}/{name}/HEAD HTTP/1.1\r\nHost: a\r\n\r\n"),
        (403, "GET /{authority}/acme/other/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: a\r\n\r\n"),
        (403, "GET /169.254.169.254/latest/x/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: a\r\n\r\n"),
        (413, "{fetch}Content-Length: 10000000000\r\n\r\n"),
        (413, "{push}Content-Length: 10000000000\r\n\r\n"),
        (400, "{fetch}Transfer-Encoding: chunked\r\n\r\n4;x=y\r\n0000\r\n0\r\n\r\n"),
        (400, "{fetch}Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n"),
        (400, "{fetch}Transfer-Encoding: chunked\r\n\r\n4\r\n00000\r\n0\r\n\r\n"),
        (400, "{fetch}Content-Encoding: br\r\nContent-Length: 4\r\n\r\n0000"),
        (400, "{fetch}Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n0000"),
        (400, "{push}Content-Length: 4\r\n\r\nnoxx"),
    ],
)  # fmt: skip
async def test_what_is_not_gits_is_refused(small_world: World, status: int, head: str) -> None:
    """With a status and one line; the host hears nothing of it, and the connection ends."""
    world = small_world
    ref = path(world, REFERENCES)
    said = await world.box.raw(
        head.replace("{ref}", ref)
        .replace("{fetch}", f"POST {path(world, '/git-upload-pack')} HTTP/1.1\r\nHost: a\r\n")
        .replace("{push}", f"POST {path(world, '/git-receive-pack')} HTTP/1.1\r\nHost: a\r\n")
        .replace("{authority}", world.host.authority)
        .replace("{name}", NAME)
        .encode()
    )
    assert said.startswith(f"HTTP/1.1 {status} ".encode()), said[:200]
    assert b"\r\n\r\nhandmesh: " in said and said.count(b"\n", said.index(b"\r\n\r\n") + 4) == 1
    assert world.host.requests == []
    assert (await world.box.ask("GET", ref))[0] == 200  # the next connection is served


async def test_pipelined_requests_are_not_answered(small_world: World) -> None:
    """One request for each connection: what comes behind it is nobody's."""
    request = f"GET {path(small_world, REFERENCES)} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    said = await small_world.box.raw(request * 3)
    assert said.count(b"HTTP/1.1 ") == 1
    assert len(small_world.host.requests) == 1


async def test_who_is_slow_is_told_so(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head, and a body, that do not come."""
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(http, "BODY_SECONDS", 0.1)
    assert (await small_world.box.raw(b"GET / HT")).startswith(b"HTTP/1.1 408 ")
    head = f"POST {path(small_world, '/git-upload-pack')} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n0"
    assert (await small_world.box.raw(head.encode())).startswith(b"HTTP/1.1 408 ")


async def test_a_gzip_bomb_is_stopped(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it unpacks to; an honest gzipped body goes through."""
    monkeypatch.setattr(git_doors, "FETCH_BYTES", 1 << 20)
    at, gzipped = path(small_world, "/git-upload-pack"), "Content-Encoding: gzip"
    bomb = gzip.compress(bytes(50 << 20))
    assert len(bomb) < 1 << 20
    assert (await small_world.box.ask("POST", at, bomb, gzipped))[0] == 413
    assert small_world.host.requests == []
    honest = gzip.compress(b"0014command=ls-refs\n0001" + b"0000")
    assert (await small_world.box.ask("POST", at, honest, gzipped, "Git-Protocol: version=2"))[0] == 200
    sent = small_world.host.requests[-1].headers
    assert "content-encoding" not in sent and sent["git-protocol"] == "version=2"


async def test_a_client_that_waits_to_be_asked_on(small_world: World) -> None:
    """`Expect: 100-continue` is answered before the body is read."""
    head = f"POST {path(small_world, '/git-upload-pack')} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n"
    said = await small_world.box.raw(f"{head}Expect: 100-continue\r\n\r\n0000".encode())
    assert said.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")


async def test_a_clients_headers_do_not_reach_the_host(small_world: World) -> None:
    """Only git's name and version do; the credential is the session's, whatever the client says of itself."""
    status, _ = await small_world.box.ask(
        "GET",
        path(small_world, REFERENCES),
        b"",
        "Authorization: Basic eDp5",
        "Cookie: a=b",
        "X-Forwarded-For: 1.2.3.4",
        "Proxy-Authorization: Basic eDp5",
        "User-Agent: git/2.39.5",
        "Git-Protocol: version=2",
        "Accept-Encoding: gzip",
        "X-Git-Sudo: root",
    )
    assert status == 200
    headers = small_world.host.requests[0].headers
    assert headers.pop("authorization").startswith("Basic ")
    assert headers == {
        "host": small_world.host.authority,
        "user-agent": "git/2.39.5",
        "git-protocol": "version=2",
        "accept-encoding": "identity",
    }


def reflected(request: Request) -> bytes:
    return request.headers["authorization"].encode()


@pytest.mark.parametrize("where", ["header", "page", "side band", "redirect", "realm", "packed"])
async def test_what_a_host_says_back_is_kept_outside(small_world: World, where: str) -> None:
    """A host that reflects the credential: no header, no page, no redirect comes through; in git's own words it is
    overwritten, and the session is told."""
    world = small_world
    kind = ("Content-Type", "application/x-git-upload-pack-advertisement")

    def strange(request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        secret = reflected(request)
        told = b"001e# service=git-upload-pack\n0000" + secret + b" " + VALUE.encode()
        match where:
            case "header":
                return 200, [kind, ("X-Secret", secret.decode())], b"001e# service=git-upload-pack\n0000"
            case "page":
                return 200, [("Content-Type", "text/html")], secret
            case "redirect":
                return 302, [("Location", f"http://127.0.0.1:9/{VALUE}")], secret
            case "realm":
                return 401, [("WWW-Authenticate", f'Basic realm="{secret.decode()}"')], secret
            case "packed":
                return 200, [kind, ("Content-Encoding", "gzip")], gzip.compress(told)
            case _:
                return 200, [kind], told

    world.host.strange = strange
    said = await world.box.raw(f"GET {path(world, REFERENCES)} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert len(world.host.requests) == 1
    assert said.startswith(b"HTTP/1.1 200 " if where in ("header", "side band") else b"HTTP/1.1 "), said
    assert (b"redirect, which is not followed" in said) == (where == "redirect")
    encoded = reflected(world.host.requests[0]).removeprefix(b"Basic ")
    assert VALUE.encode() not in said and encoded not in said and b"X-Secret" not in said
    while not (told := world.box.used()):  # it is told behind the answer
        await asyncio.sleep(0.01)
    assert told == [{"side band": "CREDENTIAL_REFLECTED", "realm": "CREDENTIAL_REVOKED"}.get(where, "ok")]


async def test_nothing_of_the_credential_is_left_in_the_sandbox(small_world: World) -> None:
    """After clone and push, with all that git and curl can be made to print; the control finds it when planted."""
    world = small_world
    world.box.environment |= {"GIT_TRACE": "1", "GIT_TRACE_CURL": "1", "GIT_TRACE_PACKET": "1", "GIT_CURL_VERBOSE": "1"}
    said = [await world.box.ok("clone", world.host.url(NAME), "app")]
    await world.box.commit("app", "file", "x\n")
    said.append(await world.box.ok("push", "origin", "HEAD:refs/heads/agent/x", cwd="app"))
    encoded = reflected(world.host.requests[0]).decode().removeprefix("Basic ")

    def found() -> bool:
        files = [file for file in world.box.folder.rglob("*") if file.is_file()]
        text = "\n".join(said).encode() + b"".join(file.read_bytes() for file in files)
        return VALUE.encode() in text or encoded.encode() in text or b"uthorization" in text

    assert not found()
    (world.box.folder / "planted").write_text(VALUE)
    assert found()


async def test_another_sessions_door_is_another(small_world: World, tmp_path: Path) -> None:
    """A session whose rules do not name the repository gets nothing of it, nor of its credential."""
    world = small_world
    grant = world.proxy.peer.grant(vault_ids=(world.vault_id,), git_rules=(rule(world.host.url("acme/other")),))
    async with sandbox(world.proxy, grant, tmp_path / "other", world.host) as other:
        assert (await other.ask("GET", path(world, REFERENCES)))[0] == 403
    assert world.host.requests == []


async def test_idle_connections_of_one_session_do_not_hold_up_another(small_world: World, tmp_path: Path) -> None:
    """It has so many and no more; the other one clones meanwhile."""
    world = small_world
    idle = []
    while True:
        try:
            ticket, address = await world.box.ticket()
        except Exception as full:
            assert "FULL" in str(full)
            break
        idle.append(await dial(address, world.proxy.tls / "sandbox", ticket))
    grant = world.proxy.peer.grant(vault_ids=(world.vault_id,), git_rules=(rule(world.host.url(NAME)),))
    async with sandbox(world.proxy, grant, tmp_path / "other", world.host) as other:
        await other.ok("clone", "--quiet", world.host.url(NAME), "app")
    for _, writer in idle:
        writer.close()


async def test_a_push_that_breaks_off_changes_nothing(small_world: World) -> None:
    """The host has got the half of it, and takes nothing."""
    world = small_world
    await world.box.ok("clone", "--quiet", world.host.url(NAME), "app")
    made = await world.box.commit("app", "large", os.urandom(3 << 20))
    old = await world.box.ok("rev-parse", "HEAD~1", cwd="app")
    packed = await asyncio.create_subprocess_exec(
        *("git", "pack-objects", "--revs", "--stdout", "-q"),
        cwd=world.box.folder / "app",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    pack, _ = await packed.communicate(f"{made}\n^{old}\n".encode())
    command = f"{ZERO} {made} refs/heads/agent/x\0report-status\n".encode()
    body = b"%04x%b0000%b" % (len(command) + 4, command, pack)
    at = path(world, "/git-receive-pack")
    head = f"POST {at} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    before = len(world.host.requests)
    ticket, address = await world.box.ticket()
    _, writer = await dial(address, world.proxy.tls / "sandbox", ticket)
    writer.write(head + body[: len(body) // 2])
    await writer.drain()
    while len(world.host.requests) == before:
        await asyncio.sleep(0.01)
    writer.transport.abort()
    await world.results(4)
    assert "refs/heads/agent/x" not in world.host.references(NAME)
    status, said = await world.box.ask("POST", at, body)
    assert status == 200 and b"ok refs/heads/agent/x" in said
    assert world.host.references(NAME)["refs/heads/agent/x"] == made


async def test_what_a_push_says_besides_is_refused(small_world: World) -> None:
    """Push options in the capabilities, a certificate, a gzipped body with a bad reference, 40 references."""
    world = small_world
    at, one = path(world, "/git-receive-pack"), "1" * 40

    def line(text: str) -> bytes:
        return b"%04x%b" % (len(text) + 4, text.encode())

    command = f"{ZERO} {one} refs/heads/agent/x"
    for body in (
        line(f"{command}\0report-status push-options\n") + b"0000",
        line("push-cert\0report-status\n") + line("certificate version 0.1\n") + line(command + "\n") + b"0000",
        gzip.compress(line(f"{ZERO} {one} refs/heads/main\0report-status\n") + b"0000"),
    ):
        coding = ("Content-Encoding: gzip",) if body[:2] == b"\x1f\x8b" else ()
        status, said = await world.box.ask("POST", at, body, *coding)
        assert status == 200 and b"ng refs/heads/" in said, said
    many = b"".join(line(f"{ZERO} {one} refs/heads/agent/{number}\n") for number in range(40))
    assert (await world.box.ask("POST", at, many + b"0000"))[0] == 400
    assert world.host.requests == []

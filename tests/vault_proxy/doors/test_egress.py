"""The egress door lets a sandbox reach what its environment allows, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.kit.origin import Allowed
from services.vault_proxy.doors.wires import Limits
from services.vault_proxy.grants import Server
from tests.kit.test_origin import REFUSED_ADDRESSES
from tests.support.heard import SOCKETS
from tests.vault_proxy.doors.egress_world import HOST, LIMITS, SANDBOX, World, egress_world
from tests.vault_proxy.strange_server import Reply

PLAIN = {"Content-Type": "text/plain"}

# 32 spellings of places inside, as a host; each is asked for by CONNECT and by URL.
SPELLINGS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f000001",
    "0x7f.1",
    "0X7F.0.0.1",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "127.000.000.001",
    "0",
    "0.0.0.0",
    "①②⑦.⓪.⓪.①",
    "１２７.0.0.1",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:7f00:1::]",
    "[::127.0.0.1]",
    "[fe80::1%25eth0]",
    "169.254.169.254",
    "10.0.0.1",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "good.example@127.0.0.1",
    "127.0.0.1#good.example",
    "good.example\\@127.0.0.1",
    "good.example%00.127.0.0.1",
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with egress_world(tmp_path) as opened:
        yield opened


def says(text: str) -> Reply:
    return Reply(200, text.encode(), PLAIN)


async def test_an_allowed_host_is_reached_and_another_one_is_not(world: World) -> None:
    """By curl: over TLS that ends at the host. Refused with 403, said why and what would be allowed, and told."""
    server, port = await world.host(answer=lambda request: says(f"{request.method} {request.path}"))
    assert await world.curl(f"https://{HOST}:{port}/a?b=c") == "GET /a?b=c"
    assert "curl: 56" in await world.curl(f"https://evil.example:{port}/")
    answer = await world.raw(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    allowed = f"handmesh: HOST_DENIED: this sandbox may not reach evil.example:443; allowed: {HOST}:{port}\n"
    assert answer.endswith(allowed.encode())
    [(session_id, first), (_, second)] = world.said.refusals
    assert (session_id, first.sandbox_id, first.door) == (world.visit.access.session_id, SANDBOX, "egress")
    assert (first.target, first.reason) == (f"evil.example:{port}", "HOST_DENIED")
    assert second.message == f"this sandbox may not reach evil.example:443; allowed: {HOST}:{port}"
    assert world.names.asked == [HOST] and len(server.requests) == 1


async def test_plain_http_obeys_the_same_rules(world: World) -> None:
    """By its URL, whatever the Host header says."""
    server, port = await world.host(None, answer=lambda request: says("never"))
    for url in (f"http://evil.example:{port}/", "http://evil.example/", f"http://{HOST}/"):
        answer = await world.raw(f"GET {url} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ") and b"HOST_DENIED" in answer
    refused = [f"evil.example:{port}", "evil.example:80", f"{HOST}:80"]
    assert world.refused() == [(target, "HOST_DENIED") for target in refused]
    assert server.connections == 0 and world.names.asked == []


async def test_plain_http_is_sent_on(world: World) -> None:
    """By curl: the host gets the path, its own Host header, and none of the proxy's headers."""
    server, port = await world.host(None, answer=lambda request: says(f"got {len(request.body)}"))
    url = f"http://{HOST}:{port}/a?b=c"
    headers = ("-H", "Proxy-Authorization: Basic eA==", "-H", "Connection: X-Hop", "-H", "X-Hop: 1", "-H", "X-Own: 2")
    assert await world.curl(*headers, "-d", "x" * 100_000, url) == "got 100000"
    assert await world.curl("-H", "Transfer-Encoding: chunked", "-d", "x" * 5000, url) == "got 5000"
    first, second = server.requests
    assert (first.method, first.path, first.headers["host"]) == ("POST", "/a?b=c", f"{HOST}:{port}")
    assert first.headers["x-own"] == "2" and first.headers["connection"] == "close"
    assert not {"proxy-authorization", "proxy-connection", "x-hop"} & first.headers.keys()
    assert second.headers["transfer-encoding"] == "chunked"


async def test_a_plain_connection_serves_one_request(world: World) -> None:
    """What is pipelined behind it is dropped: no second request can hide behind the first one's host."""
    server, port = await world.host(None, answer=lambda request: says("one"))
    one = f"GET http://{HOST}:{port}/1 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    answer = await world.raw(one + b"GET http://evil.example/2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.count(b"HTTP/1.1") == 1 and b"connection: close" in answer.lower() and answer.endswith(b"one")
    assert [request.path for request in server.requests] == ["/1"]


@pytest.mark.parametrize(
    ("rule", "target", "allowed"),
    [
        ("a.example", "a.example:443", True),
        ("a.example", "a.example:80", True),
        ("a.example", "A.Example:443", True),
        ("A.Example", "a.example:443", True),
        ("a.example", "a.example:8443", False),
        ("a.example:8443", "a.example:8443", True),
        ("a.example:8443", "a.example:443", False),
        ("a.example", "b.a.example:443", False),
        ("a.example", "xa.example:443", False),
        ("a.example", "a.example.evil.example:443", False),
        ("*.a.example", "b.a.example:443", True),
        ("*.a.example", "c.b.a.example:443", True),
        ("*.a.example", "a.example:443", False),
        ("*.a.example", "xa.example:443", False),
        ("*.a.example", ".a.example:443", False),
        ("*.a.example:8443", "b.a.example:8443", True),
        ("*.a.example:8443", "b.a.example:443", False),
        ("xn--bcher-kva.example", "xn--bcher-kva.example:443", True),
        ("xn--bcher-kva.example", "bücher.example:443", False),
        ("bücher.example", "xn--bcher-kva.example:443", False),
        ("a.example", "а.example:443", False),  # the first letter is Cyrillic
        ("a.example", "a.example.:443", False),
        ("192.0.2.1", "192.0.2.1:443", True),
        ("192.0.2.1", "0xc0000201:443", False),
        ("[2001:db8::1]", "[2001:DB8:0::1]:443", True),
        ("[2001:db8::1]", "[2001:db8::2]:443", False),
        ("*", "a.example:443", False),
        ("*.*", "a.example:443", False),
        ("a.example/path", "a.example:443", False),
        ("", "a.example:443", False),
    ],
)
async def test_a_rule_allows_what_it_names(world: World, rule: str, target: str, allowed: bool) -> None:
    """Names whole, `*.name` below it only, ports as given; what cannot be read allows nothing. 502: nobody answers."""
    world.names.known = {host: [[]] for host in ("a.example", "b.a.example", "c.b.a.example", "xn--bcher-kva.example")}
    world.names.known |= {"192.0.2.1": [[]], "2001:db8::1": [[]]}
    world.allow(rule)
    status = await world.connect_status(target)
    assert status == 502 if allowed else status in (400, 403)
    assert bool(world.names.asked) is allowed


async def test_package_hosts_and_servers_are_allowed_where_the_environment_says_so(tmp_path: Path) -> None:
    """Each only when it is switched on; a server's own port only."""
    async with egress_world(tmp_path, package_hosts=("*.packages.example",)) as world:
        server = Server("s", "https://mcp.example:8443/mcp")
        world.visit = replace(world.visit, access=replace(world.visit.access, servers=(server,)))
        world.names.known = {host: [[]] for host in ("a.packages.example", "mcp.example")}
        targets = ("a.packages.example:443", "mcp.example:8443", "mcp.example:443")
        assert [await world.connect_status(each) for each in targets] == [403, 403, 403]
        world.allow(package_managers=True)
        assert [await world.connect_status(each) for each in targets] == [502, 403, 403]
        world.allow(package_managers=False, mcp_servers=True)
        assert [await world.connect_status(each) for each in targets] == [403, 502, 403]


async def test_package_managers_without_hosts_say_which_setting_to_fill(world: World) -> None:
    """The sandbox and the log are told the setting's name."""
    world.allow(package_managers=True)
    answer = await world.raw(b"CONNECT packages.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HANDMESH_VAULT_PROXY_PACKAGE_HOSTS" in answer
    assert "HANDMESH_VAULT_PROXY_PACKAGE_HOSTS" in world.said.refusals[0][1].message


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_spelling_of_a_place_inside_is_connected_to(tmp_path: Path, spelling: str) -> None:
    """By CONNECT and by URL, although the environment allows the name: no socket leads there."""
    async with egress_world(tmp_path, allowed=Allowed()) as world:
        world.allow(*(f"{each}:{port}" for port in (80, 443) for each in (spelling, spelling.lower())))
        for request in (
            f"CONNECT {spelling}:443 HTTP/1.1\r\nHost: x\r\n\r\n",
            f"GET http://{spelling}/ HTTP/1.1\r\nHost: x\r\n\r\n",
            f"GET http://{spelling}:80/ HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            reader, writer = await world.connect()
            with SOCKETS.watched() as seen:
                writer.write(request.encode())
                answer = await reader.read()
            assert answer.split(b" ")[1] in (b"400", b"403"), answer
            assert [event for event, _ in seen if event == "socket.connect"] == []
        assert world.refused()


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
async def test_a_name_that_leads_inside_is_not_connected_to(tmp_path: Path, address: str) -> None:
    """Alone, and hidden among public addresses: all must pass. Refused, and told."""
    async with egress_world(tmp_path, allowed=Allowed()) as world:
        world.allow("good.example")
        for answers in ([address], ["93.184.216.34", address]):
            world.names.known = {"good.example": [answers]}
            reader, writer = await world.connect()
            with SOCKETS.watched() as seen:
                writer.write(b"CONNECT good.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
            assert [event for event, _ in seen if event == "socket.connect"] == []
        assert world.refused() == [("good.example:443", "HOST_DENIED")]


async def test_a_name_is_looked_up_once_for_a_connection(world: World) -> None:
    """A resolver that answers something else the second time is not asked a second time."""
    _, port = await world.host(answer=lambda request: says("here"))
    world.names.known = {HOST: [["127.0.0.1"], ["192.0.2.1"]]}
    assert await world.curl(f"https://{HOST}:{port}/") == "here"
    assert world.names.asked == [HOST]


async def test_tls_that_names_another_host_is_refused(world: World) -> None:
    """Nothing of it reaches the host; TLS ends with an alert, and the session is told. The right name or none goes."""
    server, port = await world.host(answer=lambda request: says("here"))
    for name in ("hidden.example", f"{HOST}.evil.example", f"x{HOST}"):
        with pytest.raises(ssl.SSLError) as caught:
            await world.tunnel(port, name=name)
        assert "UNRECOGNIZED_NAME" in str(caught.value).upper()
    assert server.connections == 0
    assert world.refused()[0] == ("hidden.example", "HOST_DENIED")
    for good in (HOST, None):
        reader, writer = await world.tunnel(port, name=good)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_a_hello_in_small_pieces_is_read_as_well(world: World) -> None:
    """Cut into single bytes, and into records of a few bytes each."""
    server, port = await world.host()
    hello = client_hello("hidden.example")
    body = hello[5:]
    records = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in cut(body, 7))
    for pieces in (cut(hello, 1), [records], cut(records, 3)):
        reader, writer = await world.connect()
        writer.write(f"CONNECT {HOST}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        assert await reader.read() == bytes((21, 3, 1, 0, 2, 2, 112))
    assert server.connections == 0


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def client_hello(name: str) -> bytes:
    """Returns the first message of a real TLS client."""
    out = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


async def test_other_protocols_go_through_a_tunnel(world: World) -> None:
    """Bytes both ways, also when the host speaks first; what came right behind CONNECT is not lost; ends are told."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.write(b"you said " + await reader.read())
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    world.allow(f"{HOST}:{port}")
    reader, writer = await world.connect()
    writer.write(f"CONNECT {HOST}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode() + b"at once, ")
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readline() == b"hello\n"
    writer.write(b"and later")
    writer.write_eof()
    assert await reader.read() == b"you said at once, and later"
    server.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET https://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET ftp://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://u:p@a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example/#x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example\\@b.example/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example:99999/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example/\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/0.9\r\n\r\n", 400),
        ("GET http://a.example/\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a\r\nX y: 1\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
        ("POST http://a.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("POST http://a.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        ("POST http://a.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST http://a.example/ HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("POST http://a.example/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        ("CONNECT a.example HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT a.example: HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT https://a.example:443/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT a.example:443/x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 400),
        ("CONNECT a.example:443 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("CONNECT :443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("CONNECT a.example:0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        ("GET http://a.example/ HTTP/1.1\r\nHost: a\r\nX: " + "x" * 70_000 + "\r\n\r\n", 431),
        ("x" * 70_000, 431),
    ],
)
async def test_what_is_no_proper_request_is_refused(world: World, request_text: str, status: int) -> None:
    """With one answer, told once, and nothing is looked up."""
    world.allow("a.example", "b.example")
    answer = await world.raw(request_text.encode("latin-1"))
    assert int(answer.split(b" ")[1]) == status and answer.count(b"HTTP/1.1 ") == 1
    assert [reason for _, reason in world.refused()] == ["DOOR_REQUEST_INVALID"]
    assert world.names.asked == []


async def test_a_body_that_is_no_proper_one_is_refused(world: World) -> None:
    """A chunk without a size ends the request with 400 and the connection to the host."""
    _, port = await world.host(None, answer=lambda request: says("never"))
    head = f"POST http://{HOST}:{port}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await world.raw(head.encode() + b"3\r\nabc\r\nzz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


async def test_a_host_that_is_away_is_a_502_and_no_refusal(world: World) -> None:
    """Without an address, without a listener, and one that breaks off."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        world.allow(f"{HOST}:{port}", "nowhere.example")
        world.names.known = {"nowhere.example": [[]]}
        assert await world.connect_status(f"{HOST}:{port}") == 502
        assert await world.connect_status("nowhere.example:443") == 502
    _, port = await world.host(None, answer=lambda request: Reply(hang_up=True, status=0, headers={"\r\n": ""}))
    answer = await world.raw(f"GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert world.refused() == []


async def test_a_session_has_so_many_connections_at_once(tmp_path: Path) -> None:
    """One more is refused and told; another session has its own, and one that ends makes room."""
    async with egress_world(tmp_path, connections=3) as world:
        _, port = await world.host(answer=lambda request: says("here"))
        held = [await world.connect() for _ in range(3)]
        for reader, writer in held:
            writer.write(f"CONNECT {HOST}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        assert await world.connect_status(f"{HOST}:{port}") == 429
        assert world.refused() == [("one more connection", "FULL")]
        mine, world.visit = world.visit, replace(world.visit, access=replace(world.visit.access, session_id="sess_x"))
        assert await world.connect_status(f"{HOST}:{port}") == 200
        world.visit = mine
        held[0][1].close()
        while len(world.serving) > 3:
            await asyncio.sleep(0.01)
        assert await world.connect_status(f"{HOST}:{port}") == 200


async def test_a_connection_carries_so_many_bytes(tmp_path: Path) -> None:
    """Past that it is cut, and the session is told."""
    async with egress_world(tmp_path, limits=Limits(30, 60, 300_000)) as world:
        _, port = await world.host(None, answer=lambda request: Reply(200, b"x" * 1_000_000, PLAIN))
        answer = await world.raw(f"GET http://{HOST}:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert 100_000 < len(answer) < 400_000
        assert world.refused() == [("one connection", "DOOR_REQUEST_INVALID")]


@pytest.mark.parametrize("limits", [replace(LIMITS, idle_seconds=0.6), replace(LIMITS, seconds=0.6)])
async def test_a_connection_ends_that_stands_still_or_takes_too_long(tmp_path: Path, limits: Limits) -> None:
    """In whatever state it is: a tunnel here."""
    async with egress_world(tmp_path, limits=limits) as world:
        _, port = await world.host()
        reader, writer = await world.connect()
        writer.write(f"CONNECT {HOST}:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""


async def test_a_cut_visit_ends_on_both_sides(world: World) -> None:
    """When the session ends the caller cancels: the sandbox and the host see the end."""
    _, port = await world.host(answer=lambda request: Reply(200, b"", PLAIN, hold=True))
    reader, writer = await world.tunnel(port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    [task] = world.serving
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await reader.read() == b""

"""The one module that opens outbound HTTP: what it refuses before a socket is opened, and what it lets through."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.ca import ensure_certificates
from services.kit.origin import Allowed, UrlRefused, parse_allowed
from services.vault_proxy.outbound import BODY_BYTES, BodyRefused, Exchange, Failure, Outbound, observe
from services.vault_proxy.outbound.transport import STANDING_STREAMS
from services.vault_proxy.secret import Secret
from tests.kit.test_origin import REFUSED_ADDRESSES, REFUSED_URLS
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server

KEY = "canary-outbound"


class Sockets:
    """Counts what this process connects to and looks up, by an audit hook: it sees every socket of Python's."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            self.seen.append((event, arguments[1] if event == "socket.connect" else arguments[0]))

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[tuple[str, Any]]]:
        """Records while the context lasts."""
        self.seen, self.on = [], True
        try:
            yield self.seen
        finally:
            self.on = False


SOCKETS = Sockets()  # a hook cannot be taken away again: one for the run


def bearer() -> Secret[str]:
    return Secret(KEY)


def resolving(*answers: Sequence[str]) -> Any:
    """Returns a resolver that gives these answers, one after the other, then the last for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


@pytest.fixture
async def strange() -> AsyncIterator[StrangeServer]:
    """A server on loopback that answers anything with JSON."""
    async with strange_server(
        answer=lambda request: Reply(200, b"{}", {"Content-Type": "application/json"})
    ) as started:
        yield started


async def post(outbound: Outbound, url: str, **more: Any) -> tuple[Any, Exchange]:
    """Sends a request as a call does. Returns the answer and what happened on the wire."""
    exchange = observe()
    async with outbound.client(url, bearer) as client:
        answer = await client.post(url, json={"a": 1}, **more)
    return answer, exchange


@pytest.mark.parametrize("url", REFUSED_URLS)
async def test_a_refused_url_opens_no_socket(url: str) -> None:
    """No name is looked up and nothing is connected to."""
    with SOCKETS.watched() as seen, pytest.raises(UrlRefused):
        await post(Outbound(Allowed()), url)
    assert seen == []


@pytest.mark.parametrize("address", REFUSED_ADDRESSES)
async def test_a_name_that_leads_inside_opens_no_socket(address: str) -> None:
    """Alone, and hidden among public addresses: all must pass."""
    for answer in ([address], ["93.184.216.34", address]):
        with SOCKETS.watched() as seen:
            told, exchange = await post(Outbound(Allowed(), resolve=resolving(answer)), "https://good.example/mcp")
        assert (told.status_code, exchange.failure, exchange.sent) == (502, Failure.DENIED, False)
        assert seen == []


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost.localdomain", "ip6-localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1"],
)
async def test_loopback_by_name_or_number_is_not_connected_to(host: str) -> None:
    """The system's resolver may be asked; nothing is connected to, however the listener is spelled."""
    with SOCKETS.watched() as seen:
        _, exchange = await post(Outbound(Allowed()), f"https://{host}/mcp")
    assert exchange.failure in (Failure.DENIED, Failure.UNREACHABLE)
    assert exchange.failure is Failure.DENIED or "localdomain" in host or "ip6" in host  # names not every system has
    assert [event for event, _ in seen if event == "socket.connect"] == []


async def test_the_audit_sees_a_connection(strange: StrangeServer) -> None:
    """The control: an allowed call is connected to, and seen."""
    with SOCKETS.watched() as seen:
        answer, exchange = await post(Outbound(parse_allowed("127.0.0.1")), strange.url)
    assert (answer.status_code, exchange.status, exchange.failure) == (200, 200, None)
    assert [event for event, _ in seen if event == "socket.connect"] == ["socket.connect"]


async def test_a_name_that_changes_its_mind_is_judged_anew(strange: StrangeServer) -> None:
    """DNS rebinding: a name is looked up once for a connection, what was checked is what is dialled, and the next
    connection is checked again."""
    port = int(strange.url.split(":")[2].split("/")[0])
    asked = 0

    async def resolve(host: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked == 1 else ["169.254.169.254"]

    strange.answer = lambda request: Reply(200, b"{}", hang_up=True)  # each request needs a new connection
    outbound = Outbound(parse_allowed("rebind.example"), resolve=resolve)
    exchange = observe()
    url = f"http://rebind.example:{port}/mcp"
    async with outbound.client(url, bearer) as client:
        with pytest.raises(BodyRefused):
            await client.post(url, json={})
        assert (asked, len(strange.requests)) == (1, 1)
        assert strange.requests[0].headers["host"] == f"rebind.example:{port}"
        with SOCKETS.watched() as seen:
            assert (await client.post(url, json={})).status_code == 502
    assert (asked, exchange.failure, seen) == (2, Failure.DENIED, [])


async def test_an_allowed_port_opens_no_other(strange: StrangeServer) -> None:
    """`host:port` is that port."""
    with pytest.raises(UrlRefused):
        await post(Outbound(parse_allowed("127.0.0.1:1")), strange.url)
    assert strange.requests == []


REDIRECTS = [301, 302, 303, 307, 308]


@pytest.mark.parametrize("status", REDIRECTS)
async def test_no_redirect_is_followed(strange: StrangeServer, status: int) -> None:
    """Not to another origin, not within the same one; and where it leads is not told."""
    async with strange_server() as other:
        for location in (other.url, "/elsewhere", "https://user:pw@evil.example/"):
            strange.requests.clear()
            strange.answer = lambda request, to=location: Reply(status, b"", {"Location": to})  # type: ignore[misc]
            answer, exchange = await post(Outbound(parse_allowed("127.0.0.1")), strange.url)
            assert (answer.status_code, exchange.status) == (status, status)
            assert "location" not in answer.headers
            assert len(strange.requests) == 1
        assert other.requests == []


async def test_a_client_calls_its_own_origin_only(strange: StrangeServer) -> None:
    """Whatever asks it to, the credential goes nowhere else."""
    async with strange_server() as other:
        outbound = Outbound(parse_allowed("127.0.0.1"))
        exchange = observe()
        async with outbound.client(strange.url, bearer) as client:
            for url in (
                other.url,
                strange.url.replace("http:", "https:"),
                strange.url.replace("127.0.0.1", "localhost"),
            ):
                answer = await client.post(url, json={})
                assert (answer.status_code, exchange.failure) == (502, Failure.DENIED)
        assert other.requests == []
        assert strange.requests == []


async def test_only_known_headers_pass(strange: StrangeServer) -> None:
    """Ours to the server, and the server's to us; the credential is the service's alone."""
    sent = {
        "Authorization": "Bearer of-the-caller",
        "Cookie": "a=b",
        "X-Api-Key": "k",
        "Mcp-Session-Id": "s",
        "X-Forwarded-For": "1.2.3.4",
        "Accept": "application/json",
    }
    strange.answer = lambda request: Reply(
        200, b"{}", {"Content-Type": "application/json", "Set-Cookie": "c=d", "Mcp-Session-Id": "t", "X-Evil": KEY}
    )
    answer, exchange = await post(Outbound(parse_allowed("127.0.0.1")), strange.url, headers=sent)
    [request] = strange.requests
    names = {"host", "accept", "user-agent", "content-length", "content-type", "mcp-session-id"}
    assert set(request.headers) == {*names, "authorization", "accept-encoding"}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["accept-encoding"] == "identity"
    assert set(answer.headers) == {"content-type", "content-length", "mcp-session-id"}
    assert exchange.in_session
    # The library never has the credential: what it logs or raises cannot hold it.
    assert KEY not in repr(answer.request.headers.raw)


async def test_without_a_credential_none_is_sent(strange: StrangeServer) -> None:
    """A server without one in the vaults is called plainly."""
    outbound = Outbound(parse_allowed("127.0.0.1"))
    async with outbound.client(strange.url, lambda: None) as client:
        await client.post(strange.url, json={}, headers={"Authorization": "Bearer of-the-caller"})
    assert "authorization" not in strange.requests[0].headers


async def test_an_answer_without_end_is_cut(strange: StrangeServer) -> None:
    """Past the limit the answer is refused, and the connection is not used again."""
    strange.answer = lambda request: Reply(200, b"x" * (BODY_BYTES + 1), {"Content-Type": "application/json"})
    exchange = observe()
    async with Outbound(parse_allowed("127.0.0.1")).client(strange.url, bearer) as client:
        with pytest.raises(BodyRefused):
            await client.post(strange.url, json={})
        assert exchange.failure is Failure.TOO_LARGE
        strange.answer = lambda request: Reply(200, b"x" * BODY_BYTES, {"Content-Type": "application/json"})
        assert len((await client.post(strange.url, json={})).content) == BODY_BYTES
    assert strange.connections == 2


async def test_a_packed_answer_is_refused(strange: StrangeServer) -> None:
    """Compression was not offered: what is small on the wire may be huge."""
    strange.answer = lambda request: Reply(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
    with pytest.raises(BodyRefused):
        await post(Outbound(parse_allowed("127.0.0.1")), strange.url)


async def test_a_standing_stream_is_opened_a_few_times_only(strange: StrangeServer) -> None:
    """MCP's standing GET stream: a server that ends each at once is not asked for ever; resuming is something else."""
    async with Outbound(parse_allowed("127.0.0.1")).client(strange.url, bearer) as client:
        found = [(await client.get(strange.url)).status_code for _ in range(STANDING_STREAMS + 1)]
        assert found == [200] * STANDING_STREAMS + [405]
        assert len(strange.requests) == STANDING_STREAMS
        assert (await client.get(strange.url, headers={"Last-Event-ID": "7"})).status_code == 200


async def test_environment_proxies_are_not_used(strange: StrangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the environment would see the credential."""
    async with strange_server() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        answer, _ = await post(Outbound(parse_allowed("127.0.0.1")), strange.url)
        assert answer.status_code == 200
        assert proxy.requests == []


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Makes a server's TLS context for the names that development certificates have, and its authority."""
    ensure_certificates(directory, ("session",), datetime.datetime.now(datetime.UTC))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "session" / "cert.pem", directory / "session" / "key.pem")
    return context, directory / "ca" / "ca.pem"


async def test_tls_is_checked_for_the_name_and_not_for_the_address(tmp_path: Path) -> None:
    """The pinned address is dialled, the certificate must be for the URL's host; an unknown authority is refused."""
    context, authority = certificate(tmp_path)
    async with strange_server(tls=context, answer=lambda request: Reply(200, b"{}")) as strange:
        port = int(strange.url.split(":")[2].split("/")[0])
        allowed, resolve = parse_allowed("localhost, other.example"), resolving(["127.0.0.1"])
        trusting = Outbound(allowed, authority, resolve)
        answer, _ = await post(trusting, f"https://localhost:{port}/mcp")
        assert answer.status_code == 200
        _, exchange = await post(trusting, f"https://other.example:{port}/mcp")
        assert exchange.failure is Failure.UNREACHABLE
        _, exchange = await post(Outbound(allowed, None, resolve), f"https://localhost:{port}/mcp")
        assert exchange.failure is Failure.UNREACHABLE
        assert len(strange.requests) == 1


async def test_exchanges_belong_to_their_calls(strange: StrangeServer) -> None:
    """Calls at once on one client each learn what happened to themselves."""
    strange.answer = lambda request: Reply(int(request.body), b"{}")
    async with Outbound(parse_allowed("127.0.0.1")).client(strange.url, bearer) as client:

        async def one(status: int) -> Exchange:
            exchange = observe()
            await client.post(strange.url, content=str(status))
            return exchange

        found = await asyncio.gather(*(one(status) for status in (200, 401, 404, 500)))
    assert [exchange.status for exchange in found] == [200, 401, 404, 500]

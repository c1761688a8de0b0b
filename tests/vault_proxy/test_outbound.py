"""The one module that opens outbound HTTP: what it refuses before a socket is opened, and what it lets through."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.ca import ensure_certificates
from services.kit.origin import UrlRefused, parse_allowed
from services.vault_proxy.outbound import BODY_BYTES, BodyRefused, Exchange, Failure, Outbound, observe
from services.vault_proxy.outbound.transport import STANDING_STREAMS
from services.vault_proxy.secret import Secret
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server

KEY = "canary-outbound"


def bearer() -> Secret[str]:
    return Secret(KEY)


def resolving(*answers: Sequence[str]) -> Any:
    """Returns a resolver that gives these answers, one after the other, then the last for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


async def post(outbound: Outbound, url: str, **more: Any) -> tuple[Any, Exchange]:
    """Sends a request as a call does. Returns the answer and what happened on the wire."""
    exchange = observe()
    async with outbound.client(url, bearer) as client:
        answer = await client.post(url, json={"a": 1}, **more)
    return answer, exchange


async def test_an_allowed_port_opens_no_other(strange: StrangeServer) -> None:
    """`host:port` is that port."""
    with pytest.raises(UrlRefused):
        await post(Outbound(parse_allowed("127.0.0.1:1")), strange.url)
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

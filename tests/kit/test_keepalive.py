"""Long calls that are quiet: they are kept alive by pings, which no server of ours takes amiss.

A gRPC server by default allows a ping in 5 minutes where no data is sent, and closes the connection (`too_many_pings`)
of whoever pings more often; a client by default stops after two pings without data.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.client.channels import Link
from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.ports import SERVICES
from services.kit import channels
from tests.support.http2 import ENHANCE_YOUR_CALM, ping, silent
from tests.support.mesh_server import served

PINGS = 30
DEFAULT_PINGS = 2  # that a client sends without data before it stops
STEADY = 5
MOST_SECONDS = 20.0


async def test_our_servers_answer_any_number_of_pings(tmp_path: Path) -> None:
    """Pings that come faster than any policy allows are answered, all of them, and the connection stays."""
    async with served(tmp_path, "session", lambda _: None) as ours, asyncio.timeout(MOST_SECONDS):
        port = int(ours.client_address.rpartition(":")[2])
        assert await ping(port, PINGS) == (PINGS, None)


async def test_a_server_without_our_settings_closes() -> None:
    """The test above can fail: a server with gRPC's own settings tells the same peer to calm down."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(MOST_SECONDS):
        answered, code = await ping(port, PINGS)
    await server.stop(None)
    assert answered < PINGS
    assert code == ENHANCE_YOUR_CALM


def quickly(options: Iterable[tuple[str, Any]], without: str = "") -> list[tuple[str, Any]]:
    """Returns a channel's options with its pings as close as gRPC allows, and without one of the options."""
    quick = {"grpc.keepalive_time_ms": 1_000}
    return [(name, quick.get(name, value)) for name, value in options if name != without]


@asynccontextmanager
async def silent_call(channel: grpc.aio.Channel) -> AsyncIterator[None]:
    """Has a call under way to which no answer comes."""
    call = channel.unary_stream("/test.Silent/Watch")(b"")
    reading = asyncio.create_task(call.read())
    try:
        yield
    finally:
        reading.cancel()
        call.cancel()
        await asyncio.wait({reading})
        await channel.close()


async def test_our_channels_go_on_pinging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call without data is pinged on and on, by services and by the client library. Without the setting that says
    so, a channel that pings as often has stopped by then."""
    ensure_certificates(tmp_path, SERVICES, datetime.datetime.now(datetime.UTC))
    monkeypatch.setattr(channels, "KEEPALIVE_OPTIONS", quickly(channels.KEEPALIVE_OPTIONS))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "session" / "cert.pem", tmp_path / "session" / "key.pem")
    tls.set_alpn_protocols(["h2"])
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(silent(given)) for given in (tls, None, None)]
        mesh, plain, control = [f"127.0.0.1:{peer.port}" for peer in peers]
        stopping = quickly(channels.KEEPALIVE_OPTIONS, without="grpc.http2.max_pings_without_data")
        for channel in (
            channels.connect(mesh, tmp_path / "harness"),
            Link(plain, None, None, keepalive_ms=1_000).channel,
            grpc.aio.insecure_channel(control, stopping),
        ):
            await stack.enter_async_context(silent_call(channel))
        async with asyncio.timeout(MOST_SECONDS):
            await asyncio.gather(*(peer.until(STEADY) for peer in peers[:2]))
        assert peers[2].pings <= DEFAULT_PINGS

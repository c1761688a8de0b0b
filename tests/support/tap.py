"""A tap on a connection between two services: it ends their mutual TLS on both sides and keeps what is said in clear.

It has what only a test has: both services' keys. To the caller it is the callee, to the callee it is the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_BYTES = 64 * 1024
MOST_BYTES = 64 * 1024 * 1024  # kept of one direction of a tap; more is an error of the test


@dataclass
class Tap:
    """What passed between a caller and a callee: `said` by the caller, `answered` by the callee."""

    caller: str
    callee: str
    address: str = ""
    said: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Who calls whom."""
        return f"{self.caller} to {self.callee}"


def _side(folder: Path, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    if purpose is ssl.Purpose.CLIENT_AUTH:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def tapped(tls: Path, caller: str, callee: str, address: str) -> AsyncIterator[Tap]:
    """Listens for a caller of the service at `address`. `tls` has a folder for each service, as the launcher has."""
    tap = Tap(caller, callee)
    to_callee = _side(tls / caller, ssl.Purpose.SERVER_AUTH)
    host, _, port = address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tap.serving.add(task)
        task.add_done_callback(tap.serving.discard)
        try:
            above = await asyncio.open_connection(host, int(port), ssl=to_callee)
        except OSError:
            writer.close()  # as if nobody listened: the caller tries again
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, above[1], tap.said))
                both.create_task(_pump(above[0], writer, tap.answered))
        finally:
            for each in (writer, above[1]):
                each.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=_side(tls / callee, ssl.Purpose.CLIENT_AUTH))
    tap.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in tap.serving:
            task.cancel()
        if tap.serving:
            await asyncio.wait(tap.serving)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    with contextlib.suppress(OSError):  # ssl.SSLError too: one that ends while the other still says something
        while part := await source.read(CHUNK_BYTES):
            kept += part
            assert len(kept) <= MOST_BYTES, "a tap heard more than a test says"
            sink.write(part)
            await sink.drain()
    with contextlib.suppress(OSError, RuntimeError):
        sink.close()

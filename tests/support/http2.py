"""HTTP/2 by hand, as far as connections that are silent but for PING frames go."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """Makes a frame of the connection itself."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, 0) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Returns the kind, flags and payload of the next frame. Raises IncompleteReadError at the connection's end."""
    head = await reader.readexactly(9)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))


async def ping(port: int, times: int) -> tuple[int, int | None]:
    """Pings a server without a call and without a pause, each time after the answer.

    Returns how many pings were answered, and the error code with which the server closed the connection, if it did.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = 0
    try:
        writer.write(PREFACE + frame(SETTINGS) + frame(PING, payload=bytes(8)))
        while answered < times:
            kind, flags, payload = await read_frame(reader)
            if kind == GOAWAY:
                return answered, struct.unpack(">I", payload[4:8])[0]
            if (kind, flags) == (PING, ACK):
                answered += 1
                writer.write(frame(PING, payload=bytes(8)))
        return answered, None
    finally:
        writer.close()


class Silent:
    """A server that takes any call, says nothing, and counts the pings that it answers."""

    def __init__(self) -> None:
        self.port = 0
        self.pings = 0
        self._news = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def until(self, pings: int) -> None:
        """Waits until so many pings came."""
        while self.pings < pings:
            self._news.clear()
            await self._news.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keeps one connection until the peer ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await reader.readexactly(len(PREFACE))
            writer.write(frame(SETTINGS))
            while True:
                kind, flags, payload = await read_frame(reader)
                if (kind, flags) == (SETTINGS, 0):
                    writer.write(frame(SETTINGS, ACK))
                elif (kind, flags) == (PING, 0):
                    writer.write(frame(PING, ACK, payload))
                    self.pings += 1
                    self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def ended(self) -> None:
        """Waits until all peers have ended their connections."""
        if self._serving:
            await asyncio.wait(self._serving)


@asynccontextmanager
async def silent(tls: ssl.SSLContext | None = None) -> AsyncIterator[Silent]:
    """Runs such a server on a free loopback port, in plain text or with TLS."""
    peer = Silent()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield peer
    finally:
        server.close()
        await peer.ended()

"""Bytes both ways: of a connection, and of TLS inside of one, within the limits of a visit."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Protocol

READ_BYTES = 64 * 1024
TLS_SECONDS = 10.0  # for a handshake


@dataclass(frozen=True)
class Limits:
    """Of one connection through a door: seconds without a byte, seconds in all, bytes both ways."""

    idle_seconds: float
    seconds: float
    bytes: int


class TooMuch(Exception):
    """A limit of the visit is reached. Its text says which one."""


class WireBroken(ConnectionError):
    """The other side is gone, or does not speak TLS as it should."""


class Meter:
    """Counts what goes through a door, and ends what stands still: `timeout` is the one that the visit runs in."""

    def __init__(self, limits: Limits, timeout: asyncio.Timeout) -> None:
        self._limits = limits
        self._timeout = timeout
        self._now = asyncio.get_running_loop().time
        self._end = self._now() + limits.seconds
        self._left = limits.bytes
        self._moved = 0.0
        self.moved()

    def moved(self) -> None:
        """Takes note that something moves."""
        now = self._now()
        if now - self._moved > 0.5:  # a timer for each part would cost more than the part
            self._moved = now
            self._timeout.reschedule(min(now + self._limits.idle_seconds, self._end))

    def count(self, number: int) -> None:
        """Counts bytes from either side. Raises TooMuch."""
        self._left -= number
        if self._left < 0:
            raise TooMuch(f"more than {self._limits.bytes} bytes went through one connection")
        self.moved()


class Wire(Protocol):
    """One side of a connection."""

    async def read(self) -> bytes:
        """Returns what came, nothing at its end. Raises WireBroken or TooMuch."""
        ...

    async def write(self, data: bytes) -> None:
        """Sends, and waits while the other side takes nothing. Raises WireBroken."""
        ...

    async def end(self) -> bool:
        """Says that nothing more is sent. False when that can be said by closing only."""
        ...


class StreamWire:
    """A connection of asyncio's. Who made it closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter) -> None:
        self._reader = reader
        self._writer = writer
        self._meter = meter

    async def read(self) -> bytes:
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError:  # SSLError is one: of the TLS between services
            raise WireBroken from None
        self._meter.count(len(data))
        return data

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError):  # uvloop's for a transport that is closing
            raise WireBroken from None
        self._meter.moved()

    async def end(self) -> bool:
        if not self._writer.can_write_eof():
            return False
        try:
            self._writer.write_eof()
        except (OSError, RuntimeError):
            return False
        return True


class TlsWire:
    """TLS inside of another wire, as its server, or as a client that checks the server for `name`."""

    def __init__(self, inner: Wire, context: ssl.SSLContext, first: bytes = b"", name: str | None = None) -> None:
        self._inner = inner
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._coming.write(first)
        self._tls = context.wrap_bio(self._coming, self._going, server_side=name is None, server_hostname=name)

    async def handshake(self) -> None:
        """Agrees on keys. Raises WireBroken, also when that takes too long."""
        try:
            async with asyncio.timeout(TLS_SECONDS):
                while True:
                    try:
                        self._tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        await self._more()
        except (TimeoutError, ssl.SSLError, ValueError):
            await self._flush()  # the alert that says why
            raise WireBroken("no TLS") from None
        await self._flush()

    async def _more(self) -> None:
        await self._flush()
        data = await self._inner.read()
        if data:
            self._coming.write(data)
        else:
            self._coming.write_eof()

    async def _flush(self) -> None:
        data = self._going.read()
        if data:
            await self._inner.write(data)

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                await self._more()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError:
                raise WireBroken from None

    async def write(self, data: bytes) -> None:
        try:
            for at in range(0, len(data), READ_BYTES):
                self._tls.write(data[at : at + READ_BYTES])
                await self._flush()
        except ssl.SSLError:
            raise WireBroken from None

    async def end(self) -> bool:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for the other side's farewell, which nobody needs
        await self._flush()
        return False


async def pump(source: Wire, sink: Wire, first: bytes = b"") -> bool:
    """Carries bytes until the source ends. Returns whether the sink could be told so."""
    if first:
        await sink.write(first)
    while data := await source.read():
        await sink.write(data)
    return await sink.end()

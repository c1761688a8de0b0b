"""One TCP connection to NATS, from its greeting to its end: the part of NATS's protocol that the log needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from services.kit.logs import Log as Journal

PING_SECONDS = 5.0
MAX_UNANSWERED_PINGS = 2
LATE_SECONDS = 0.002  # that news to other replicas may wait for something to be sent with
PLAIN = b"NATS/1.0\r\n"  # how headers without a status begin

_journal = Journal("services.session.lane")


class Message:
    """What came: the subject's last word, the headers' bytes and the body."""

    __slots__ = ("data", "header", "subject")

    def __init__(self, subject: bytes, header: bytes, data: bytes) -> None:
        self.subject, self.header, self.data = subject, header, data

    @property
    def status(self) -> str:
        """The three digits of an answer that is none, or nothing."""
        if self.header.startswith(PLAIN) or not self.header:
            return ""
        return self.header[9:12].decode("ascii", "replace")

    def headers(self) -> dict[str, str]:
        """Parses the headers."""
        lines = self.header.decode().split("\r\n")[1:-2]
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


class Link(asyncio.Protocol):
    """One TCP connection, from its greeting to its end."""

    def __init__(self, take: Callable[[int, Message], None], login: Mapping[str, str]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self.transport: asyncio.Transport | None = None
        self.greeting: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._pong: asyncio.Future[None] = loop.create_future()
        self._take, self._login = take, login
        self._left = b""  # what came of a message that is not whole
        self._needed = 0  # bytes of it, as far as they are known
        self._pieces: list[bytes] = []
        self._unanswered = 0

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    async def greet(self) -> dict[str, Any]:
        """Waits for NATS's first word, which says what it is."""
        await self._heard(self.greeting)
        return self.greeting.result()

    async def _heard(self, word: asyncio.Future[Any]) -> None:
        await asyncio.wait({word, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not word.done():
            raise ConnectionError("nats closed the connection")

    async def log_in(self) -> None:
        """Says who we are, and waits for NATS's word."""
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "echo": False,  # what we say on the wire is heard here without NATS, at once
            "lang": "python",
            "version": "1",
            "protocol": 1,
            "name": "handmesh session, lane",
        }
        if self._login:
            hello |= {"user": self._login.get("user", ""), "pass": self._login.get("password", "")}
        self.put(b"CONNECT %s\r\nPING\r\n" % json.dumps(hello).encode())
        await self._heard(self._pong)

    async def run(self) -> None:
        """Asks for signs of life until the connection ends."""
        while not self._ended.done() and self._unanswered < MAX_UNANSWERED_PINGS:
            self._unanswered += 1
            self.put(b"PING\r\n")
            await asyncio.wait({self._ended}, timeout=PING_SECONDS)

    def put(self, data: bytes, soon: bool = True) -> None:
        """Sends, with what was waiting. uvloop writes once for all that is sent while it runs what is ready."""
        self._unsent.append(data)
        if soon:
            self._flush()
        elif len(self._unsent) == 1:
            self._loop.call_later(LATE_SECONDS, self._flush)

    def _flush(self) -> None:
        if self._unsent and self.transport is not None and not self._ended.done():
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one, but is not derived from it

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._needed or self._left:
            self._pieces.append(data)
            self._needed -= len(data)
            if self._needed > 0:
                return
            data = b"".join((self._left, *self._pieces))
            self._pieces.clear()
        self._left, self._needed = self._parse(data)

    def _parse(self, data: bytes) -> tuple[bytes, int]:
        """Takes whole messages. Returns what is left, and how many bytes are missing to its end (at least)."""
        start, size = 0, len(data)
        while start < size:
            end = data.find(b"\r\n", start)
            if end < 0:
                return data[start:], 1
            first = data[start]
            if first == 0x48:  # HMSG subject number [reply] headers-size size
                words = data[start:end].split(b" ")
                head, total = int(words[-2]), int(words[-1])
            elif first == 0x4D:  # MSG subject number [reply] size
                words = data[start:end].split(b" ")
                head, total = 0, int(words[-1])
            else:
                self._control(data[start:end])
                start = end + 2
                continue
            body = end + 2
            stop = body + total
            if stop + 2 > size:
                return data[start:], stop + 2 - size
            message = Message(words[1], data[body : body + head], data[body + head : stop])
            self._take(int(words[2]), message)
            start = stop + 2
        return b"", 0

    def _control(self, line: bytes) -> None:
        if line == b"PING":
            self.put(b"PONG\r\n")
        elif line == b"PONG":
            self._unanswered = 0
            if not self._pong.done():
                self._pong.set_result(None)
        elif line.startswith(b"INFO ") and not self.greeting.done():
            self.greeting.set_result(json.loads(line[5:]))
        elif line.startswith(b"-ERR"):
            _journal.warning("nats says", error=line[5:].decode("utf-8", "replace"))

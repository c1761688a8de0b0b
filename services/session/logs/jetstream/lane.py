"""A connection to NATS of the log's own, for what is hot: requests, answers in many messages, and the wire.

nats-py costs 40 us a message and a task for each subscription; this costs 3 us and a dictionary's entry. It speaks the
part of NATS's protocol that the log needs, and nothing more. What it sends and gets is bytes; nobody here waits but
for the connection. It connects again for ever: that credentials are refused for good is found out by nats-py's
connection, which lives beside it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from services.kit.logs import Log as Journal

PING_SECONDS = 5.0
MAX_UNANSWERED_PINGS = 2
CONNECT_SECONDS = 2.0
RECONNECT_SECONDS = 0.1
LATE_SECONDS = 0.001  # that news to other replicas may wait for something to be sent with
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # more waits for the kernel only when NATS does not read
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


Hear = Callable[[Message], None]


@dataclass(eq=False)
class _Subscription:
    number: int
    subject: str
    ears: list[Hear] = field(default_factory=list)


class Lane:
    """The connection. `gaps` are called when messages may have been missed, `lost` when answers will not come."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.gaps: set[Callable[[], None]] = set()
        self._lost = lost
        self._link: _Link | None = None
        self._up = asyncio.Event()
        self._subscriptions: dict[str, _Subscription] = {}
        self._by_number: dict[int, _Subscription] = {}
        self._count = 0
        self._addresses: list[str] = []
        self._login: Mapping[str, str] = {}
        self._keeping: asyncio.Task[None] | None = None

    async def open(self, address: str, login: Mapping[str, str]) -> None:
        """Connects, for as long as it takes."""
        self._addresses, self._login = [address], login
        self._keeping = asyncio.create_task(self._keep())
        await self._up.wait()

    def abandon(self) -> None:
        """Gives the connection up for good."""
        if self._keeping is not None:
            self._keeping.cancel()

    async def close(self) -> None:
        """Closes the connection for good."""
        self.abandon()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    @property
    def connected(self) -> bool:
        """Whether NATS can hear us, and takes what we say."""
        return self._link is not None and self._link.unsent < MAX_UNSENT_BYTES

    async def ready(self) -> None:
        """Waits until NATS can hear us."""
        await self._up.wait()

    def send(self, subject: str, data: bytes, reply: str = "", header: bytes = b"", *, soon: bool = True) -> None:
        """Sends a message. Without a connection it is lost. What need not be sent soon waits for others, a little."""
        if self._link is None:
            return
        if header:
            line = b"HPUB %s %s %d %d\r\n%s%s\r\n"
            self._link.put(
                line % (subject.encode(), reply.encode(), len(header), len(header) + len(data), header, data), soon
            )
        else:
            self._link.put(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(data), data), soon)

    def listen(self, subject: str, hear: Hear) -> Callable[[], None]:
        """Calls `hear` with what comes, over reconnects, until the returned function is called."""
        found = self._subscriptions.get(subject)
        if found is None:
            self._count += 1
            found = self._subscriptions[subject] = self._by_number[self._count] = _Subscription(self._count, subject)
            self._say(b"SUB %s %d\r\n" % (subject.encode(), found.number))
        found.ears.append(hear)

        def stop() -> None:
            found.ears.remove(hear)
            if not found.ears:
                del self._subscriptions[subject], self._by_number[found.number]
                self._say(b"UNSUB %d\r\n" % found.number)

        return stop

    def _say(self, line: bytes) -> None:
        if self._link is not None:
            self._link.put(line)

    def take(self, number: int, message: Message) -> None:
        """Passes a message on to those who listen."""
        found = self._by_number.get(number)
        if found is not None:
            for hear in tuple(found.ears) if len(found.ears) > 1 else found.ears:
                hear(message)

    async def _keep(self) -> None:
        turn = 0
        while True:
            link = _Link(self, self._login)
            try:
                await self._connect(link, self._addresses[turn % len(self._addresses)])
                self._begin(link)
                await link.run()
            except (OSError, TimeoutError, ValueError) as problem:
                _journal.debug("nats lane", kind=type(problem).__name__)
            finally:
                self._end(link)
            turn += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _connect(self, link: _Link, address: str) -> None:
        where = urlsplit(address)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            await loop.create_connection(lambda: link, where.hostname or "", where.port or 4222)
            info = await link.greet()
            if where.scheme == "tls" or info.get("tls_required"):
                assert link.transport is not None
                context = ssl.create_default_context()
                secured = await loop.start_tls(link.transport, link, context, server_hostname=where.hostname)
                link.transport = secured
            await link.log_in()
        more = [f"{where.scheme}://{peer}" for peer in info.get("connect_urls", ())]
        self._addresses = list(dict.fromkeys([*self._addresses, *more]))

    def _begin(self, link: _Link) -> None:
        self._link = link
        for found in self._by_number.values():
            link.put(b"SUB %s %d\r\n" % (found.subject.encode(), found.number))
        self._up.set()
        self._tell_gaps()

    def _end(self, link: _Link) -> None:
        if link.transport is not None:
            link.transport.abort()
        if self._link is link:
            self._link = None
            self._up.clear()
            self._lost()
            self._tell_gaps()

    def _tell_gaps(self) -> None:
        for gap in tuple(self.gaps):
            gap()


class _Link(asyncio.Protocol):
    """One TCP connection, from its greeting to its end."""

    def __init__(self, lane: Lane, login: Mapping[str, str]) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._flushing = False
        self.transport: asyncio.Transport | None = None
        self.greeting: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._pong: asyncio.Future[None] = loop.create_future()
        self._lane, self._login = lane, login
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
            "echo": True,
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
        """Sends once what is ready to run has run, with what that sends: a system call costs more than a message."""
        self._unsent.append(data)
        if soon and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif not soon and len(self._unsent) == 1:
            self._loop.call_later(LATE_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = False
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
            self._lane.take(int(words[2]), message)
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

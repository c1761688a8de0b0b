"""A connection to NATS of the log's own, for what is hot: requests, answers in many messages, and the wire.

nats-py costs 40 us a message and a task for each subscription; this costs 3 us and a dictionary's entry. It speaks the
part of NATS's protocol that the log needs, and nothing more. What it sends and gets is bytes; nobody here waits but
for the connection. It connects again for ever: that credentials are refused for good is found out by nats-py's
connection, which lives beside it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from services.kit.logs import Log as Journal
from services.session.logs.jetstream.link import Link, Message

CONNECT_SECONDS = 2.0
RECONNECT_SECONDS = 0.1
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # more waits for the kernel only when NATS does not read

_journal = Journal("services.session.lane")


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
        self._link: Link | None = None
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

    def tell(self, subject: str, data: bytes) -> None:
        """Passes on to those who listen here what is sent from here: NATS does not send it back."""
        found = self._subscriptions.get(subject)
        if found is not None:
            self.take(found.number, Message(subject.encode(), b"", data))

    def take(self, number: int, message: Message) -> None:
        """Passes a message on to those who listen."""
        found = self._by_number.get(number)
        if found is not None:
            for hear in tuple(found.ears) if len(found.ears) > 1 else found.ears:
                hear(message)

    async def _keep(self) -> None:
        turn = 0
        while True:
            link = Link(self.take, self._login)
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

    async def _connect(self, link: Link, address: str) -> None:
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

    def _begin(self, link: Link) -> None:
        self._link = link
        for found in self._by_number.values():
            link.put(b"SUB %s %d\r\n" % (found.subject.encode(), found.number))
        self._up.set()
        self._tell_gaps()

    def _end(self, link: Link) -> None:
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

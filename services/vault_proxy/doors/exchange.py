"""HTTP/1.1 as a proxy speaks it: requests are read strictly, and written anew from what was understood.

`Caller` is the sandbox's side, `Host` the server's. Nothing of a message goes on as it came but its body: so what two
parsers might read differently does not get to a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import h11

from services.vault_proxy.doors.refusal import Refusal, malformed
from services.vault_proxy.doors.wires import Wire, WireBroken

HEAD_BYTES = 64 * 1024  # of a request's or an answer's headers

Headers = list[tuple[bytes, bytes]]
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade", b"alt-svc", b"expect"}  # what is expected, we say ourselves
)


def passed_on(headers: Any) -> Headers:
    """Returns the headers that are not about this connection only."""
    named = b",".join(value for name, value in headers if name.lower() == b"connection")
    dropped = _HOP | {each.strip().lower() for each in named.split(b",")} - {b"content-length", b"host"}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def value_of(headers: Any, name: bytes) -> bytes:
    """Returns a header's value; of several the first, of none nothing."""
    return next((value for key, value in headers if key.lower() == name), b"")


def _size(head: h11.Request | h11.Response) -> int:
    first = len(head.target) if isinstance(head, h11.Request) else len(head.reason)
    return first + sum(len(name) + len(value) for name, value in head.headers)


class _Side:
    """One side of a connection."""

    def __init__(self, wire: Wire, role: Any) -> None:
        self.wire = wire
        self._http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)

    async def send(self, event: Any) -> None:
        """Sends a part of a message. Raises WireBroken, also when the other side has ended what it said."""
        try:
            data = self._http.send(event)
        except h11.LocalProtocolError:
            raise WireBroken from None
        if data:
            await self.wire.write(data)

    async def body(self) -> AsyncIterator[bytes]:
        """Gives the body of what came. Raises WireBroken when it breaks off, and what `_refused` makes of nonsense."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise WireBroken

    def again(self) -> bool:
        """Makes ready for the next request. False when the connection is good for none."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _event(self) -> Any:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as problem:
                raise self._refused(problem) from None
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self.wire.read())

    def _refused(self, problem: h11.RemoteProtocolError) -> Exception:
        return WireBroken()


class Caller(_Side):
    """The sandbox's side of a connection."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire, h11.SERVER)

    async def head(self) -> h11.Request | None:
        """Returns the next request, None when there is none. Raises Refusal for one that has no single reading."""
        event = await self._event()
        if not isinstance(event, h11.Request):
            return None
        if _size(event) > HEAD_BYTES:  # h11 counts what is not whole only
            raise malformed(f"a request has more than {HEAD_BYTES} bytes of headers", 431)
        if event.http_version not in (b"1.0", b"1.1"):
            raise malformed("another version of HTTP than 1.1 or 1.0")
        names = [name.lower() for name, _ in event.headers]
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version != b"1.1"):
            raise malformed("a request has either Content-Length or Transfer-Encoding")
        return event

    def _refused(self, problem: h11.RemoteProtocolError) -> Exception:
        return malformed("no proper HTTP request", problem.error_status_hint)

    async def connected(self) -> bytes:
        """Answers CONNECT. Returns what came behind it."""
        await self.send(h11.Response(status_code=200, headers=[], reason=b"Connected"))
        self._http.next_event()
        return bytes(self._http.trailing_data[0])

    async def refuse(self, refusal: Refusal) -> None:
        """Answers with a refusal, if nothing was answered yet. The connection is good for nothing more then."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"handmesh: {refusal.reason}: {refusal.message}\n".encode("ascii", "replace")
        headers = [
            (b"content-type", b"text/plain; charset=us-ascii"),
            (b"content-length", str(len(text)).encode()),
            (b"connection", b"close"),
        ]
        await self.send(h11.Response(status_code=refusal.status, headers=headers))
        await self.send(h11.Data(data=text))
        await self.send(h11.EndOfMessage())


class Host(_Side):
    """The server's side of a connection. `used` says whether it has answered a request."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire, h11.CLIENT)
        self.used = False

    async def head(self) -> h11.Response:
        """Returns the answer. Raises WireBroken when there is none that is one."""
        while isinstance(event := await self._event(), h11.InformationalResponse):
            continue
        if not isinstance(event, h11.Response) or _size(event) > HEAD_BYTES:
            raise WireBroken
        return event

    async def gone(self) -> None:
        """Waits until the server ends the connection, or says something that nobody asked for. Between two requests."""
        await self.wire.read()

    def again(self) -> bool:
        """Makes ready for the next request. False when the connection is good for none."""
        again = super().again()
        self.used = self.used or again
        return again


class Mender:
    """What is done to an answer on its way to the sandbox: nothing, here."""

    def head(self, answer: h11.Response) -> Headers:
        """Returns the headers for the sandbox."""
        return [(name, self.line(value)) for name, value in passed_on(answer.headers)]

    def line(self, text: bytes) -> bytes:
        """Returns a header's value or a reason phrase."""
        return text

    def feed(self, part: bytes) -> bytes:
        """Takes the next part of the body. Returns what goes on."""
        return part

    def rest(self) -> bytes:
        """Returns what is left at the body's end."""
        return b""


async def relay(
    caller: Caller, host: Host, request: h11.Request, body: AsyncIterator[bytes], mender: Mender, close: bool
) -> int:
    """Sends a request, and the answer back, both at once. Returns the answer's status.

    With `close` the sandbox is told that the connection ends. Raises Refusal for a body that is no proper one, and
    WireBroken when either side is gone; an answer that had not begun by then can still be refused.
    """

    async def send() -> None:
        async for event in _events(request, body):
            try:
                await host.send(event)
            except WireBroken:
                return  # it may have answered before it went

    async def answer() -> int:
        head = await host.head()
        headers = mender.head(head) + ([(b"connection", b"close")] if close else [])
        reason = mender.line(bytes(head.reason))
        await caller.send(h11.Response(status_code=head.status_code, headers=headers, reason=reason))
        async for part in host.body():
            if put := mender.feed(part):
                await caller.send(h11.Data(data=put))
        if put := mender.rest():
            await caller.send(h11.Data(data=put))
        await caller.send(h11.EndOfMessage())
        return head.status_code

    sending, answering = asyncio.create_task(send()), asyncio.create_task(answer())
    try:
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            await sending  # raises what is wrong with the body
        return await answering  # which a server may give early
    finally:
        await stopped(sending, answering)


async def _events(request: h11.Request, body: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    yield request
    async for part in body:
        yield h11.Data(data=part)
    yield h11.EndOfMessage()


async def stopped(*tasks: asyncio.Task[Any]) -> None:
    """Ends tasks, and waits until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

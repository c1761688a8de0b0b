"""What goes on inside of TLS to a host at which placeholders are replaced.

Every request is read, checked to be for that very host, and sent on with the credentials in their places. What the
host answers is searched for them. HTTP/1.1 only; a request to upgrade to something else is answered without doing so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import h11

from services.kit.errors import ServiceError, Unauthenticated
from services.kit.logs import Log
from services.kit.origin import UrlRefused
from services.vault_proxy.core.egress import Target, host_header
from services.vault_proxy.core.masking import Mask
from services.vault_proxy.core.placeholders import Swap, Swapping, is_binary
from services.vault_proxy.doors.exchange import Caller, Headers, Host, Mender, passed_on, relay, stopped, value_of
from services.vault_proxy.doors.purse import Purse
from services.vault_proxy.doors.refusal import Refusal, malformed, unreachable
from services.vault_proxy.doors.uses import Uses
from services.vault_proxy.doors.visit import Visit
from services.vault_proxy.doors.wires import Wire, WireBroken
from services.vault_proxy.grants import Access

BODY_BYTES = 1024 * 1024  # of a request in which placeholders are replaced; a longer one goes as it is
OK, UNREACHABLE, REFUSED = "ok", "SERVER_UNAVAILABLE", "CREDENTIAL_REVOKED"
REFLECTED = "CREDENTIAL_REFLECTED"

_log = Log("services.vault_proxy.doors")
Connect = Callable[[], Awaitable[Wire]]
Tell = Callable[[Refusal], None]


async def swaps_for(purse: Purse, access: Access, host: str) -> list[Swap]:
    """Returns what is replaced for a host. Raises Refusal when that cannot be looked up now."""
    try:
        return await purse.swaps(access, host)
    except Unauthenticated:
        raise Refusal(503, "GRANT_INVALID", "the session is over, or goes on: connect again", host, False) from None
    except ServiceError as problem:
        raise Refusal(503, problem.reason, problem.message, host, told=False) from None


class MaskMender(Mender):
    """Takes credentials out of an answer's headers, and out of its body where that is text."""

    def __init__(self, swaps: list[Swap]) -> None:
        self._mask = Mask(swap.value.reveal() for swap in swaps)
        self._text = False

    @property
    def found(self) -> int:
        """How many times one was taken out."""
        return self._mask.found

    def head(self, answer: h11.Response) -> Headers:
        kind = value_of(answer.headers, b"content-type")
        packed = value_of(answer.headers, b"content-encoding").lower() not in (b"", b"identity")
        self._text = not packed and not is_binary(kind)
        return super().head(answer)

    def line(self, text: bytes) -> bytes:
        return self._mask.line(text)

    def feed(self, part: bytes) -> bytes:
        return self._mask.feed(part) if self._text else part

    def rest(self) -> bytes:
        return self._mask.rest()


class Interception:
    """Serves the inside of intercepted connections."""

    def __init__(self, purse: Purse, uses: Uses) -> None:
        self._purse = purse
        self._uses = uses

    async def serve(self, visit: Visit, target: Target, client: Wire, connect: Connect, tell: Tell) -> None:
        """Serves requests of a sandbox to a host until one of both ends it. `connect` begins TLS with the host.

        What is refused is answered, and told. Raises WireBroken when the sandbox is gone, and TooMuch.
        """
        caller = Caller(client)
        try:
            host: Host | None = None
            while (request := await _next(caller, host)) is not None:
                swaps = await swaps_for(self._purse, visit.access, target.host)
                _check(request, target)
                if host is None:
                    host = Host(await _begun(connect, target))
                if not await self._exchanged(visit, target, caller, host, request, swaps):
                    break
        except Refusal as refusal:
            tell(refusal)
            await caller.refuse(refusal)
        await client.end()

    async def _exchanged(
        self, visit: Visit, target: Target, caller: Caller, host: Host, request: h11.Request, swaps: list[Swap]
    ) -> bool:
        """Does one request. Returns whether there may be another one."""
        swapping, mender, status = Swapping(swaps), MaskMender(swaps), 0
        outgoing, body = await _outgoing(caller, request, swapping)
        try:
            status = await relay(caller, host, outgoing, body, mender, close=False)
        except WireBroken:
            # Unless its answer has begun. A server that tires of a connection may do so while a request is on its way:
            # then the sandbox's connection ends without an answer too, and clients know what to do.
            if not host.used:
                await caller.refuse(unreachable(target, "broke the connection off"))
            return False
        finally:
            self._used(visit, target, swapping, status, mender.found > 0)
        return caller.again() and host.again()

    def _used(self, visit: Visit, target: Target, swapping: Swapping, status: int, reflected: bool) -> None:
        result = {0: UNREACHABLE, 401: REFUSED}.get(status, REFLECTED if reflected else OK)
        if reflected:
            _log.warning("a host said its credential", session_id=visit.access.session_id, host=target.host)
        for swap in swapping.used.values():
            self._uses.note(visit.access.session_id, target.host, swap, result)
        if status == 401 and swapping.used:
            self._purse.forget(visit.access.session_id)


async def _next(caller: Caller, host: Host | None) -> h11.Request | None:
    """Returns the sandbox's next request, None when there is none or the host has ended the connection meanwhile."""
    if host is None:
        return await caller.head()
    asked, gone = asyncio.create_task(caller.head()), asyncio.create_task(host.gone())
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        return None if gone.done() else await asked
    finally:
        await stopped(asked, gone)


def _check(request: h11.Request, target: Target) -> None:
    """Raises Refusal unless a request is for the host that the connection goes to: no other gets its credential."""
    if request.method in (b"CONNECT", b"TRACE"):  # the second one asks for the credential to be said
        raise malformed("that method is not for the inside of a tunnel", 405)
    if not (request.target.startswith(b"/") or request.target == b"*"):
        raise malformed("a request inside of TLS names a path")
    said = value_of(request.headers, b"host").decode("ascii", "replace")
    try:
        if host_header(said, target.port) == target:
            return
    except UrlRefused:
        pass
    raise Refusal(421, "HOST_DENIED", f"the connection goes to {target}, and the request inside to another host", said)


async def _begun(connect: Connect, target: Target) -> Wire:
    try:
        return await connect()
    except WireBroken:
        raise unreachable(target, "does not speak TLS, or its certificate is not good") from None


async def _outgoing(
    caller: Caller, request: h11.Request, swapping: Swapping
) -> tuple[h11.Request, AsyncIterator[bytes]]:
    """Returns the request for the host, with the credentials in their places, and its body."""
    headers = [(name, swapping.header(name, value)) for name, value in passed_on(request.headers)]
    # What is packed cannot be searched.
    headers = [each for each in headers if each[0] != b"accept-encoding"] + [(b"accept-encoding", b"identity")]
    body, chunked = caller.body(), bool(value_of(request.headers, b"transfer-encoding"))
    kind = value_of(request.headers, b"content-type")
    packed = value_of(request.headers, b"content-encoding").lower() not in (b"", b"identity")
    if swapping.wants_body(kind, packed):
        begun, whole = await _read(body)
        if whole:
            begun, chunked = swapping.body(kind, begun), False
            headers = [each for each in headers if each[0] != b"content-length"]
            headers.append((b"content-length", str(len(begun)).encode()))
        body = _joined(begun, body)
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    try:
        return h11.Request(method=request.method, target=request.target, headers=headers), body
    except h11.LocalProtocolError:  # its text would hold the value
        raise malformed("a header has characters that it cannot have") from None


async def _read(body: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """Reads a body up to BODY_BYTES. Returns what was read, and whether that is all."""
    parts, size = [], 0
    async for part in body:
        parts.append(part)
        size += len(part)
        if size > BODY_BYTES:
            return b"".join(parts), False
    return b"".join(parts), True


async def _joined(begun: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if begun:
        yield begun
    async for part in rest:
        yield part

"""Single exchanges whose bodies stream both ways: what git's objects need. Each on a connection of its own."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpcore2

from services.kit.origin import Allowed, check_origin, origin_of
from services.vault_proxy.outbound.bodies import BROKEN
from services.vault_proxy.outbound.client import NoAnswer
from services.vault_proxy.outbound.exchange import Failure
from services.vault_proxy.outbound.network import CONNECT_SECONDS, Pinned, Resolve, system_resolve
from services.vault_proxy.quiet import silence
from services.vault_proxy.secret import Secret

SILENCE_SECONDS = 300.0  # of a server: it may count objects, or run its own checks, for so long
WRITE_SECONDS = 60.0
UNREACHED = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout)

# Never a caller's: the framing and the address are decided here.
_OWN = frozenset({b"accept-encoding", b"connection", b"content-length", b"host", b"transfer-encoding"})


@dataclass(frozen=True)
class Sent:
    """A request. `body` streams in chunks when it is no bytes. `authorization` is the whole value of that header."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None  # of a body that streams, when it is known
    authorization: Secret[str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Received:
    """An answer. Names of headers are in lower case. `parts` raises NoAnswer when it breaks off."""

    status: int
    headers: Mapping[str, str]
    parts: AsyncIterator[bytes]


class Streams:
    """Makes exchanges. `allowed` are the hosts that may be plain http or private."""

    def __init__(self, allowed: Allowed, ca_file: Path | None = None, resolve: Resolve = system_resolve) -> None:
        silence("httpcore2")
        self._allowed = allowed
        self._resolve = resolve
        self._tls = ssl.create_default_context()
        if ca_file is not None:
            self._tls.load_verify_locations(ca_file)

    @asynccontextmanager
    async def exchange(self, sent: Sent) -> AsyncIterator[Received]:
        """Sends a request, and gives its answer as long as the context lasts. A redirect is an answer like any other.

        Raises UrlRefused for a URL that may not be called, NoAnswer, and what the body raises: then the server has got
        a request that breaks off.
        """
        origin = origin_of(sent.url)
        check_origin(origin, self._allowed)
        backend = Pinned(origin, self._allowed.covers(origin), self._resolve)
        async with httpcore2.AsyncConnectionPool(self._tls, max_connections=1, network_backend=backend) as pool:
            request = _request(sent)
            try:
                answer = await pool.handle_async_request(request)
            except UNREACHED:
                raise NoAnswer(Failure.UNREACHABLE, sent=False) from None
            except BROKEN:
                raise NoAnswer(Failure.BROKEN, sent=True) from None
            finally:
                request.headers.clear()  # the pool keeps the request as long as the answer's stream is open
            try:
                headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
                yield Received(answer.status, headers, _parts(answer))
            finally:
                await answer.aclose()


def _request(sent: Sent) -> httpcore2.Request:
    headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in sent.headers]
    headers = [(name, value) for name, value in headers if name.lower() not in _OWN]
    url = httpcore2.URL(sent.url)
    headers.append((b"Host", url.host if url.port is None else b"%b:%d" % (url.host, url.port)))
    headers.append((b"Accept-Encoding", b"identity"))
    if isinstance(sent.body, bytes):
        if sent.method != "GET":
            headers.append((b"Content-Length", b"%d" % len(sent.body)))
    elif sent.length is not None:
        headers.append((b"Content-Length", b"%d" % sent.length))
    else:
        headers.append((b"Transfer-Encoding", b"chunked"))
    if sent.authorization is not None:
        headers.append((b"Authorization", sent.authorization.reveal().encode("ascii")))
    timeouts = {"connect": CONNECT_SECONDS, "read": SILENCE_SECONDS, "write": WRITE_SECONDS, "pool": CONNECT_SECONDS}
    return httpcore2.Request(sent.method, url, headers=headers, content=sent.body, extensions={"timeout": timeouts})


async def _parts(answer: httpcore2.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_stream():
            yield part
    except BROKEN:
        raise NoAnswer(Failure.BROKEN, sent=True) from None

"""The only module that opens outbound HTTP: resolve, check, pin, then send what is allowed to be sent.

One `httpx2.AsyncClient` per server, whose transport

    calls its one origin only, and never follows a redirect (no answer's `location` reaches the client);
    looks the name up itself, refuses if any address may not be called, and connects to an address it has checked;
    adds the credential at the last moment, after everything that could log or raise a request;
    lets only the headers of its lists through, both ways;
    turns every failure into a plain 502 for that one request, and says in the call's `Exchange` what happened.

Imported on first use: httpx2 costs 70 ms and 16 MB.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpcore2
import httpx2

from services.kit.origin import (
    Allowed,
    Origin,
    UrlRefused,
    check_addresses,
    check_origin,
    origin_of,
)
from services.vault_proxy.quiet import silence
from services.vault_proxy.secret import Secret

CONNECT_SECONDS = 5.0  # for the name, the connection and TLS
WRITE_SECONDS = 30.0
REQUEST_SECONDS = 15.0  # for all of a single request
KEEPALIVE_SECONDS = 30.0
CONNECTIONS = 16  # of one session to one server: more calls at once wait for their turn
BODY_BYTES = 8 * 1024 * 1024  # of one answer, however it comes
REST_BYTES = 64 * 1024  # what is read, and for how long, of an answer that has said enough
REST_SECONDS = 1.0

_SENT = frozenset({"accept", "cache-control", "content-length", "content-type", "host", "last-event-id", "user-agent"})
_TAKEN = frozenset({"cache-control", "content-length", "content-type", "mcp-protocol-version", "mcp-session-id"})
_OWN = re.compile(rb"mcp-[a-z0-9-]{1,64}")
_SESSION_HEADER = b"mcp-session-id"

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Failure(enum.Enum):
    """Why there was no answer from the server."""

    DENIED = "denied"  # the address may not be called; nothing was sent
    UNREACHABLE = "unreachable"  # no connection; nothing was sent
    BROKEN = "broken"  # the connection broke; the server may have done something
    TOO_LARGE = "too large"


@dataclass
class Exchange:
    """What happened on the wire for one call. The newest request of the call counts."""

    status: int = 0  # of the answer; 0 before there is one
    readable: bool = False  # the answer is of a type that MCP has
    failure: Failure | None = None
    in_session: bool = False  # the request named a session of the server's
    sent: bool = False  # something may have reached the server


_exchange: contextvars.ContextVar[Exchange] = contextvars.ContextVar("exchange")


def observe() -> Exchange:
    """Returns the Exchange of what this task, and what it starts, calls from now on."""
    exchange = Exchange()
    _exchange.set(exchange)
    return exchange


class BodyRefused(httpx2.StreamError):
    """An answer's body is too large or broke off. A StreamError costs only its own request."""


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Looks a name up as the system does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


@dataclass(frozen=True)
class Answer:
    """What a server answered to a single request, with those of its headers that are let through, in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Secret[bytes]


class NoAnswer(Exception):
    """There was none. `sent` says whether the server may have done something."""

    def __init__(self, failure: Failure, sent: bool) -> None:
        super().__init__(failure.value)
        self.failure = failure
        self.sent = sent


class Outbound:
    """Makes clients. `allowed` are the hosts that may be plain http or private."""

    def __init__(self, allowed: Allowed, ca_file: Path | None = None, resolve: Resolve = system_resolve) -> None:
        silence("httpx2", "httpcore2")
        self._allowed = allowed
        self._resolve = resolve
        self._tls = ssl.create_default_context()
        if ca_file is not None:
            self._tls.load_verify_locations(ca_file)

    def client(self, url: str, bearer: Callable[[], Secret[str] | None]) -> httpx2.AsyncClient:
        """Returns a client for a server, which sends what `bearer` says at each request.

        Raises UrlRefused for a URL that may not be called. The same rules hold again for each request.
        """

        def authorization() -> Secret[str] | None:
            secret = bearer()
            return None if secret is None else Secret(f"Bearer {secret.reveal()}")

        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, write=WRITE_SECONDS)  # each call has its own deadline
        return self._client(url, authorization, timeout)

    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Secret[bytes] | None = None,
        authorization: Secret[str] | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Answer:
        """Makes one request on a connection of its own, and reads all of its answer within so many seconds.

        `authorization` is the whole value of that header. A redirect is an answer like any other.
        Raises UrlRefused for a URL that may not be called, and NoAnswer.
        """
        content = b"" if body is None else body.reveal()
        exchange = observe()
        async with self._client(url, lambda: authorization, httpx2.Timeout(seconds)) as client:
            try:
                async with asyncio.timeout(seconds):
                    answer = await client.request(method, url, headers=headers, content=content)
            except TimeoutError:
                raise NoAnswer(Failure.BROKEN, exchange.sent) from None
            except BodyRefused:
                raise NoAnswer(exchange.failure or Failure.BROKEN, exchange.sent) from None
        if exchange.failure is not None:
            raise NoAnswer(exchange.failure, exchange.sent)
        return Answer(answer.status_code, dict(answer.headers), Secret(answer.content))

    def _client(
        self, url: str, authorization: Callable[[], Secret[str] | None], timeout: httpx2.Timeout
    ) -> httpx2.AsyncClient:
        origin = origin_of(url)
        check_origin(origin, self._allowed)
        backend = _Pinned(origin, self._allowed.covers(origin), self._resolve)
        return httpx2.AsyncClient(
            transport=_Transport(origin, backend, self._tls, authorization),
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            max_redirects=0,
        )


class _Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses of one origin."""

    def __init__(self, origin: Origin, private_ok: bool, resolve: Resolve) -> None:
        self._origin = origin
        self._private_ok = private_ok
        self._resolve = resolve
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        host, port = self._origin.host, self._origin.port  # whatever the pool asks for
        try:
            async with asyncio.timeout(timeout):
                found = await self._resolve(host, port)
        except (OSError, TimeoutError):
            raise httpcore2.ConnectError("no address") from None
        for address in check_addresses(found, self._private_ok):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        raise httpcore2.ConnectError("no address answers")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise UrlRefused("no file is called")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(
        self,
        origin: Origin,
        backend: httpcore2.AsyncNetworkBackend,
        tls: ssl.SSLContext,
        authorization: Callable[[], Secret[str] | None],
    ) -> None:
        self._origin = origin
        self._authorization = authorization
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=CONNECTIONS,
            max_keepalive_connections=CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "last-event-id" not in request.headers:
            return httpx2.Response(405)  # a stream of what nobody asked for: servers may not have one either
        exchange = _exchange.get(None) or Exchange()
        exchange.status, exchange.readable, exchange.failure = 0, False, None
        try:
            outgoing = self._outgoing(request, exchange)
            exchange.sent = True
            answer = await self._pool.handle_async_request(outgoing)
        except UrlRefused:
            exchange.sent, exchange.failure = False, Failure.DENIED
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout):
            exchange.sent, exchange.failure = False, Failure.UNREACHABLE
        except _BROKEN:
            exchange.failure = Failure.BROKEN
        else:
            exchange.status = answer.status
            return _incoming(answer, exchange)
        return httpx2.Response(502)

    def _outgoing(self, request: httpx2.Request, exchange: Exchange) -> httpcore2.Request:
        url = request.url
        if origin_of(str(url)) != self._origin:
            raise UrlRefused("another origin than the server's")
        headers = [
            (name, value) for name, value in request.headers.raw if name.lower().decode() in _SENT or _is_own(name)
        ]
        exchange.in_session = any(name.lower() == _SESSION_HEADER for name, _ in headers)
        headers.append((b"accept-encoding", b"identity"))  # what is packed small may be huge
        secret = self._authorization()
        if secret is not None:
            headers.append((b"authorization", secret.reveal().encode("ascii")))
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        return httpcore2.Request(
            request.method, target, headers=headers, content=request.stream, extensions=request.extensions
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def _is_own(name: bytes) -> bool:
    return _OWN.fullmatch(name.lower()) is not None


def _incoming(answer: httpcore2.Response, exchange: Exchange) -> httpx2.Response:
    headers = [(name, value) for name, value in answer.headers if name.lower().decode("latin-1") in _TAKEN]
    kinds = [value.partition(b";")[0].strip().lower() for name, value in headers if name.lower() == b"content-type"]
    exchange.readable = kinds in ([b"application/json"], [b"text/event-stream"])
    packed = any(
        name.lower() == b"content-encoding" and value.strip().lower() != b"identity" for name, value in answer.headers
    )
    return httpx2.Response(
        answer.status, headers=headers, stream=_Body(answer, exchange, packed), extensions=answer.extensions
    )


class _Body(httpx2.AsyncByteStream):
    """An answer's body, up to BODY_BYTES."""

    def __init__(self, answer: httpcore2.Response, exchange: Exchange, packed: bool) -> None:
        self._answer = answer
        self._parts = answer.aiter_stream()
        self._exchange = exchange
        self._packed = packed
        self._whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            self._exchange.failure = Failure.BROKEN
            raise BodyRefused("the answer is compressed, although that was not offered")
        size = 0
        try:
            async for part in self._parts:
                size += len(part)
                if size > BODY_BYTES:
                    self._exchange.failure = Failure.TOO_LARGE
                    raise BodyRefused("the answer is too large")
                yield part
            self._whole = True
        except _BROKEN:
            self._exchange.failure = Failure.BROKEN
            raise BodyRefused("the answer broke off") from None

    async def aclose(self) -> None:
        """Lets go of the answer. What little is left is read first: then the connection can be used again."""
        try:
            if not self._whole and self._exchange.failure is None:
                async with asyncio.timeout(REST_SECONDS):
                    await self._read_rest()
        except (TimeoutError, *_BROKEN):
            pass
        finally:
            await self._parts.aclose()
            await self._answer.aclose()

    async def _read_rest(self) -> None:
        size = 0
        async for part in self._parts:
            size += len(part)
            if size > REST_BYTES:
                return
        self._whole = True


_BROKEN = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)

"""The connections to one origin: which headers pass, when the credential is added, what a failure becomes."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import httpcore2
import httpx2

from services.kit.origin import Origin, UrlRefused, origin_of
from services.vault_proxy.outbound.bodies import BROKEN, Body
from services.vault_proxy.outbound.exchange import Exchange, Failure, current
from services.vault_proxy.secret import Secret
from services.vault_proxy.traced import requested

KEEPALIVE_SECONDS = 30.0
CONNECTIONS = 16  # of one session to one server: more calls at once wait for their turn
STANDING_STREAMS = 20  # of one client: a server that ends each at once is not asked for ever

_SESSION_HEADER = b"mcp-session-id"
_RESUMED = "last-event-id"


@dataclass(frozen=True)
class Headers:
    """The names of headers that pass, in lower case: to the server, and from it."""

    sent: frozenset[bytes]
    taken: frozenset[bytes]
    own: re.Pattern[bytes] | None = None  # and those of this form, to the server


_BOTH = frozenset({b"cache-control", b"content-length", b"content-type"})
MCP = Headers(
    sent=_BOTH | {b"accept", b"host", b"last-event-id", b"user-agent"},
    taken=_BOTH | {b"mcp-protocol-version", b"mcp-session-id"},
    own=re.compile(rb"mcp-[a-z0-9-]{1,64}"),
)
PLAIN = Headers(
    sent=frozenset({b"accept", b"content-length", b"content-type", b"host", b"user-agent"}),
    taken=_BOTH | {b"retry-after", b"www-authenticate"},
)

Authorization = Callable[[], Secret[str] | None]  # the whole value of the header


class Transport(httpx2.AsyncBaseTransport):
    """Calls one origin. A failure is a plain 502 for that one request, and the call's Exchange says what it was."""

    def __init__(
        self,
        origin: Origin,
        backend: httpcore2.AsyncNetworkBackend,
        tls: ssl.SSLContext,
        headers: Headers,
        authorization: Authorization,
    ) -> None:
        self._origin = origin
        self._headers = headers
        self._authorization = authorization
        self._streams_left = STANDING_STREAMS
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=CONNECTIONS,
            max_keepalive_connections=CONNECTIONS,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=backend,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        standing = self._headers is MCP and request.method == "GET" and _RESUMED not in request.headers
        if standing:
            if not self._streams_left:
                return httpx2.Response(405)  # as servers say that have no such stream
            self._streams_left -= 1
        exchange = current()
        if standing:
            return await self._exchanged(request, exchange, standing)  # no work of anybody's: it waits for news
        with requested(request.method, self._origin) as span:
            answer = await self._exchanged(request, exchange, standing)
            if exchange.failure is not None:
                span.fail(exchange.failure.name)
            else:
                span.set({"http.response.status_code": answer.status_code})
            return answer

    async def _exchanged(self, request: httpx2.Request, exchange: Exchange, standing: bool) -> httpx2.Response:
        exchange.status, exchange.readable, exchange.failure = 0, False, None
        try:
            outgoing = self._outgoing(request, exchange)
            exchange.sent = True
            try:
                answer = await self._pool.handle_async_request(outgoing)
            finally:
                outgoing.headers.clear()  # the pool keeps the request as long as the answer's stream is open
        except UrlRefused:
            exchange.sent, exchange.failure = False, Failure.DENIED
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.PoolTimeout):
            exchange.sent, exchange.failure = False, Failure.UNREACHABLE
        except BROKEN:
            exchange.failure = Failure.BROKEN
        else:
            exchange.status = answer.status
            return self._incoming(answer, exchange, standing)
        return httpx2.Response(502)

    def _outgoing(self, request: httpx2.Request, exchange: Exchange) -> httpcore2.Request:
        url = request.url
        if origin_of(str(url)) != self._origin:
            raise UrlRefused("another origin than the server's")
        headers = [(name, value) for name, value in request.headers.raw if self._passes(name.lower())]
        exchange.in_session = any(name.lower() == _SESSION_HEADER for name, _ in headers)
        headers.append((b"accept-encoding", b"identity"))  # what is packed small may be huge
        secret = self._authorization()
        if secret is not None:
            value = secret.reveal()
            if not value.isascii():  # the error of encoding it would hold it
                raise UrlRefused("the credential is not ASCII")
            headers.append((b"authorization", value.encode()))
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        return httpcore2.Request(
            request.method, target, headers=headers, content=request.stream, extensions=request.extensions
        )

    def _passes(self, name: bytes) -> bool:
        own = self._headers.own
        return name in self._headers.sent or (own is not None and own.fullmatch(name) is not None)

    def _incoming(self, answer: httpcore2.Response, exchange: Exchange, standing: bool) -> httpx2.Response:
        headers = [(name, value) for name, value in answer.headers if name.lower() in self._headers.taken]
        kinds = [value.partition(b";")[0].strip().lower() for name, value in headers if name.lower() == b"content-type"]
        exchange.readable = kinds in ([b"application/json"], [b"text/event-stream"])
        packed = any(
            name.lower() == b"content-encoding" and value.strip().lower() != b"identity"
            for name, value in answer.headers
        )
        body = Body(answer, exchange, packed, standing)
        return httpx2.Response(answer.status, headers=headers, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        await self._pool.aclose()

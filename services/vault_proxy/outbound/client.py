"""Clients for MCP servers, and single requests: to the endpoints of OAuth, for example."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from services.kit.origin import Allowed, check_origin, origin_of
from services.vault_proxy.outbound.bodies import BodyRefused
from services.vault_proxy.outbound.exchange import Failure, observe
from services.vault_proxy.outbound.network import CONNECT_SECONDS, Pinned, Resolve, system_resolve
from services.vault_proxy.outbound.transport import MCP, PLAIN, Authorization, Headers, Transport
from services.vault_proxy.quiet import silence
from services.vault_proxy.secret import Secret

WRITE_SECONDS = 30.0
Client = httpx2.AsyncClient
REQUEST_SECONDS = 15.0  # for all of a single request


@dataclass(frozen=True)
class Answer:
    """What a server answered to a single request. Of its headers only those in `transport.PLAIN`, in lower case."""

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
        """Returns a client for an MCP server, which sends what `bearer` says at each request.

        Raises UrlRefused for a URL that may not be called. The same rules hold again for each request.
        """

        def authorization() -> Secret[str] | None:
            secret = bearer()
            return None if secret is None else Secret(f"Bearer {secret.reveal()}")

        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, write=WRITE_SECONDS)  # each call has its own deadline
        return self._client(url, MCP, authorization, timeout)

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
        async with self._client(url, PLAIN, lambda: authorization, httpx2.Timeout(seconds)) as client:
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
        self, url: str, headers: Headers, authorization: Authorization, timeout: httpx2.Timeout
    ) -> httpx2.AsyncClient:
        origin = origin_of(url)
        check_origin(origin, self._allowed)
        backend = Pinned(origin, self._allowed.covers(origin), self._resolve)
        return httpx2.AsyncClient(
            transport=Transport(origin, backend, self._tls, headers, authorization),
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            max_redirects=0,
        )

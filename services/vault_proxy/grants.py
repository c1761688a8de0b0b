"""Whose a grant is, asked of the session service, and the news of grants that are void.

An answer is kept for at most 5 seconds, and only while the stream of revocations is up: what is revoked is refused from
then on. The stream counts as up from its first message on (a sign of life does).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from handmesh.session.v1 import session_pb2
from services.kit import channels
from services.kit.errors import Unauthenticated
from services.kit.logs import Log
from services.vault_proxy.secret import Secret

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

GRANT_KEY = "x-handmesh-grant"
CACHE_SECONDS = 5.0
CHECK_SECONDS = 5.0  # for one question to the session service, with its retries
RECONNECT_SECONDS = 0.2
MOST_KEPT = 10_000

_log = Log("services.vault_proxy.grants")


@dataclass(frozen=True)
class Server:
    """An MCP server that a session may use. `allowed_tools` are the server's own names; none means all."""

    name: str
    url: str
    allowed_tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Access:
    """What a grant allows."""

    session_id: str
    tenant: str
    epoch: int
    servers: tuple[Server, ...] = ()
    vault_ids: tuple[str, ...] = ()

    def server(self, name: str | None) -> Server | None:
        """Returns the server of a name."""
        return next((server for server in self.servers if server.name == name), None)


@dataclass(frozen=True)
class _Kept:
    access: Access
    until: float


class Grants:
    """Checks grants. `revoked(session_id, below_epoch)` is told of each revocation, below_epoch 0 meaning all."""

    def __init__(self, stub: SessionServiceAsyncStub, revoked: Callable[[str, int], None]) -> None:
        self._stub = stub
        self._revoked = revoked
        self._kept: dict[bytes, _Kept] = {}
        self._watching = False
        self._news = 0  # counts revocations and changes of the stream: an answer that they overtook is not kept

    async def check(self, grant: Secret[str]) -> Access:
        """Says what the grant allows.

        Raises Unauthenticated (`GRANT_INVALID`), or Unavailable (`SESSION_UNAVAILABLE`).
        """
        key = hashlib.sha256(grant.reveal().encode()).digest()
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < kept.until:
            return kept.access
        news = self._news
        answer = await self._ask(grant)
        access = _access(answer)
        if self._watching and news == self._news:
            self._keep(key, _Kept(access, time.monotonic() + _cache_seconds(answer)))
        return access

    async def _ask(self, grant: Secret[str]) -> session_pb2.CheckGrantResponse:
        try:
            return await self._stub.CheckGrant(
                session_pb2.CheckGrantRequest(), metadata=((GRANT_KEY, grant.reveal()),), timeout=CHECK_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            problem = channels.raised(error)
            if isinstance(problem, Unauthenticated):
                raise Unauthenticated("GRANT_INVALID", "the grant is not valid, or not any more") from None
            raise problem from None

    def _keep(self, key: bytes, kept: _Kept) -> None:
        if len(self._kept) >= MOST_KEPT:
            now = time.monotonic()
            self._kept = {key: kept for key, kept in self._kept.items() if kept.until > now}
        if len(self._kept) < MOST_KEPT:
            self._kept[key] = kept

    async def watch(self) -> None:
        """Follows the revocations for ever."""
        while True:
            try:
                async for news in self._stub.WatchRevocations(session_pb2.WatchRevocationsRequest()):
                    self._heard(news)
            except grpc.aio.AioRpcError as error:
                _log.info("the stream of revocations broke", status=error.code().name)
            finally:
                self._watching = False
                self._kept.clear()
                self._news += 1
            await asyncio.sleep(RECONNECT_SECONDS)

    def _heard(self, news: session_pb2.WatchRevocationsResponse) -> None:
        if not self._watching:
            _log.info("revocations are watched")
            self._watching = True
        if not news.session_id:
            return  # a sign of life
        self._news += 1
        self._kept = {
            key: kept
            for key, kept in self._kept.items()
            if kept.access.session_id != news.session_id or 0 < news.below_epoch <= kept.access.epoch
        }
        self._revoked(news.session_id, news.below_epoch)


def _access(answer: session_pb2.CheckGrantResponse) -> Access:
    return Access(
        session_id=answer.session_id,
        tenant=answer.tenant,
        epoch=answer.epoch,
        servers=tuple(Server(each.name, each.url, tuple(each.allowed_tools)) for each in answer.mcp_servers),
        vault_ids=tuple(answer.vault_ids),
    )


def _cache_seconds(answer: session_pb2.CheckGrantResponse) -> float:
    """Returns how long the answer may be kept: what it says itself, 5 s at most, and not past the grant's end."""
    seconds = CACHE_SECONDS
    if answer.HasField("cache_time"):
        seconds = min(seconds, answer.cache_time.ToTimedelta().total_seconds())
    if answer.HasField("expire_time"):
        seconds = min(seconds, answer.expire_time.ToNanoseconds() / 1e9 - time.time())
    return seconds

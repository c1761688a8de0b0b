"""Whose a grant is, asked of the session service, and the news of grants that are void.

An answer is kept for at most 5 seconds, and only while the stream of revocations is up: what is revoked is refused from
then on. The stream counts as up from its first message on (a sign of life does).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from handmesh.session.v1 import event_pb2, session_pb2
from services.kit import channels
from services.kit.errors import Unauthenticated, Unavailable
from services.kit.logs import Log
from services.kit.metrics import Gauge

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

GRANT_KEY = "x-handmesh-grant"
GRANT_CHARACTERS = 512
CACHE_SECONDS = 5.0
CHECK_SECONDS = 5.0  # for one question to the session service, with its retries
RECONNECT_SECONDS = 0.2
MOST_KEPT = 10_000

WATCHED = Gauge(
    "handmesh_revocations_watched",
    "1 while the stream of revocations is up. While it is down, every grant is asked for anew.",
)
_log = Log("services.kit.grants")


@dataclass(frozen=True)
class _Kept:
    answer: session_pb2.CheckGrantResponse
    until: float


def shown(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """Returns the grant that a call shows. Raises Unauthenticated (`GRANT_INVALID`) unless there is one."""
    found = [value for key, value in metadata or () if key == GRANT_KEY]
    if len(found) != 1 or not isinstance(found[0], str) or not 0 < len(found[0]) <= GRANT_CHARACTERS:
        raise Unauthenticated("GRANT_INVALID", f"send the session's grant, once, as metadata {GRANT_KEY}")
    return found[0]


class Grants:
    """Checks grants. `revoked(session_id, below_epoch)` is told of each revocation, below_epoch 0 meaning all.

    With `vouched`, for a vault proxy, an answer that was asked for just now brings the session service's word for the
    vault: a question less for a session's first use of a secret. `resumed()` is told each time that revocations are
    watched anew: some may have been missed. `hand_revoked(hand_token_id)` is told of each hand's token that is void.
    """

    def __init__(
        self,
        stub: SessionServiceAsyncStub,
        revoked: Callable[[str, int], None],
        *,
        vouched: bool = False,
        resumed: Callable[[], None] = lambda: None,
        hand_revoked: Callable[[str], None] = lambda hand_token_id: None,
    ) -> None:
        self._stub = stub
        self._hand_revoked = hand_revoked
        self._revoked = revoked
        self._resumed = resumed
        self._vouched = vouched
        self._kept: dict[bytes, _Kept] = {}
        WATCHED.watch(lambda: self._watching)
        self._watching = False
        self._news = 0  # counts revocations and changes of the stream: an answer that they overtook is not kept

    @property
    def watching(self) -> bool:
        """Whether the stream of revocations is up."""
        return self._watching

    async def check(self, grant: str) -> session_pb2.CheckGrantResponse:
        """Says what the grant allows.

        Raises Unauthenticated (`GRANT_INVALID`), or Unavailable (`SESSION_UNAVAILABLE`).
        """
        key = hashlib.sha256(grant.encode()).digest()
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < kept.until:
            return kept.answer
        news = self._news
        answer = await self._ask(grant, self._vouched)
        if self._watching and news == self._news:
            wordless = session_pb2.CheckGrantResponse()
            wordless.CopyFrom(answer)
            wordless.ClearField("vault_jwt")
            self._keep(key, _Kept(wordless, time.monotonic() + _cache_seconds(answer)))
        return answer

    async def vouched(self, grant: str) -> session_pb2.CheckGrantResponse:
        """Says what the grant allows, with the session service's word for the vault: asked anew, and never kept.

        Raises as `check`.
        """
        return await self._ask(grant, vault_access=True)

    async def fresh(self, grant: str) -> session_pb2.CheckGrantResponse:
        """Says what the grant allows at this moment: a configuration may just have changed. Raises as `check`."""
        return await self._ask(grant, vault_access=False)

    async def offered(self, grant: str, position: int) -> event_pb2.ToolsOffered | None:
        """Returns the ToolsOffered at a position of the grant's session, or None. Raises as `check`."""
        answer = await self._ask(grant, vault_access=False, offered_position=position)
        return answer.tools_offered if answer.HasField("tools_offered") else None

    async def _ask(self, grant: str, vault_access: bool, offered_position: int = 0) -> session_pb2.CheckGrantResponse:
        try:
            request = session_pb2.CheckGrantRequest(vault_access=vault_access, offered_position=offered_position)
            return await self._stub.CheckGrant(request, metadata=((GRANT_KEY, grant),), timeout=CHECK_SECONDS)
        except grpc.aio.AioRpcError as error:
            problem = channels.raised(error)
            if isinstance(problem, Unauthenticated):
                raise Unauthenticated("GRANT_INVALID", "the grant is not valid, or not any more") from None
            raise problem from None

    async def holds(self, grant: str) -> bool:
        """Says whether a grant is good; also True when nobody can be asked."""
        try:
            await self.check(grant)
        except Unauthenticated:
            return False
        except Unavailable:
            return True
        return True

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
            self._resumed()
        if news.hand_token_id:
            self._hand_revoked(news.hand_token_id)
        if not news.session_id:
            return  # a sign of life, or no grant's
        self._news += 1
        self._kept = {
            key: kept
            for key, kept in self._kept.items()
            if kept.answer.session_id != news.session_id or 0 < news.below_epoch <= kept.answer.epoch
        }
        self._revoked(news.session_id, news.below_epoch)


def _cache_seconds(answer: session_pb2.CheckGrantResponse) -> float:
    """Returns how long the answer may be kept: what it says itself, 5 s at most, and not past the grant's end."""
    seconds = CACHE_SECONDS
    if answer.HasField("cache_time"):
        seconds = min(seconds, answer.cache_time.ToTimedelta().total_seconds())
    if answer.HasField("expire_time"):
        seconds = min(seconds, answer.expire_time.ToNanoseconds() / 1e9 - time.time())
    return seconds

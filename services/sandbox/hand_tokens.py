"""Whose a hand's token is, asked of the session service, and the end of links whose token is void.

An answer is kept for 5 seconds, and only while the stream of revocations is up, as it is with grants.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from handmesh.session.v1 import session_pb2
from services.kit import channels
from services.kit.errors import ServiceError, Unauthenticated, Unavailable
from services.kit.identity import HAND_PREFIX
from services.kit.logs import Log

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

CACHE_SECONDS = 5.0
CHECK_SECONDS = 5.0
TOKEN_CHARACTERS = 128
MOST_KEPT = 10_000
_log = Log("services.sandbox.hand_tokens")


@dataclass(frozen=True)
class Checked:
    """Whose a token is."""

    token_id: str
    tenant: str
    name: str


def shown(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """Returns the token that a call shows. Raises Unauthenticated (`GRANT_INVALID`) unless there is one."""
    found = [value for key, value in metadata or () if key == "authorization"]
    token = found[0].partition(" ")[2].strip() if len(found) == 1 and isinstance(found[0], str) else ""
    if not token.startswith(HAND_PREFIX) or len(token) > TOKEN_CHARACTERS:
        raise _invalid()
    return token


class HandTokens:
    """Checks tokens. `void(token_id)` is called for each that is found to be void while it is in use."""

    def __init__(self, stub: SessionServiceAsyncStub, watched: Callable[[], bool], void: Callable[[str], None]) -> None:
        self._stub = stub
        self._watched = watched  # whether revocations are heard
        self._void = void
        self._kept: OrderedDict[bytes, tuple[Checked, float]] = OrderedDict()
        self._revoked: OrderedDict[str, None] = OrderedDict()  # those heard of last
        self._in_use: dict[str, str] = {}  # token id -> token, of those that workers are linked by
        self._links: Counter[str] = Counter()  # token id -> how many
        self._news = 0
        self._checking: set[asyncio.Task[None]] = set()

    async def check(self, token: str) -> Checked:
        """Says whose a token is. Raises Unauthenticated (`GRANT_INVALID`), Unavailable (`SESSION_UNAVAILABLE`)."""
        key = hashlib.sha256(token.encode()).digest()
        kept = self._kept.get(key)
        if kept is not None and self._watched() and time.monotonic() < kept[1]:
            return kept[0]
        news = self._news
        checked = await self._ask(token)
        if news == self._news:
            self._kept[key] = (checked, time.monotonic() + CACHE_SECONDS)
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return checked

    async def _ask(self, token: str) -> Checked:
        try:
            request = session_pb2.CheckHandTokenRequest(token=token)
            answer = await self._stub.CheckHandToken(request, timeout=CHECK_SECONDS)
        except grpc.aio.AioRpcError as error:
            problem = channels.raised(error)
            if isinstance(problem, Unauthenticated):
                raise _invalid() from None
            raise problem from None
        return Checked(answer.hand_token_id, answer.tenant, answer.name)

    @contextmanager
    def link(self, token_id: str, token: str) -> Iterator[Callable[[], None]]:
        """Notes that a worker is linked by a token, for as long as this is entered.

        What it gives raises Unauthenticated for a token that was revoked meanwhile.
        """

        def check() -> None:
            if token_id in self._revoked:
                raise _invalid()

        check()
        self._in_use[token_id] = token
        self._links[token_id] += 1
        try:
            yield check
        finally:
            self._links[token_id] -= 1
            if not self._links[token_id]:
                del self._links[token_id]
                self._in_use.pop(token_id, None)

    def revoked(self, token_id: str) -> None:
        """Takes the news that a token is void."""
        self._news += 1
        self._kept = OrderedDict((key, kept) for key, kept in self._kept.items() if kept[0].token_id != token_id)
        self._revoked[token_id] = None
        if len(self._revoked) > MOST_KEPT:
            self._revoked.popitem(last=False)
        self._in_use.pop(token_id, None)
        self._void(token_id)

    def resumed(self) -> None:
        """Looks at all that are in use: news may have been missed."""
        self._news += 1
        self._kept.clear()
        task = asyncio.create_task(self._check_all())
        self._checking.add(task)
        task.add_done_callback(self._checking.discard)

    async def _check_all(self) -> None:
        for token_id, token in list(self._in_use.items()):
            try:
                await self._ask(token)
            except Unauthenticated:
                self.revoked(token_id)
            except Unavailable:
                return  # then the stream will break, and be resumed
            except ServiceError as error:
                _log.warning("token not checked", hand_token_id=token_id, reason=error.reason)


class NoTokens:
    """Stands for a service that has nobody to ask: no worker gets in."""

    async def check(self, token: str) -> Checked:
        """Raises Unavailable (`SESSION_UNAVAILABLE`)."""
        raise Unavailable("SESSION_UNAVAILABLE", "hands need HANDMESH_SESSION_ADDRESS: nobody can check their tokens")

    @contextmanager
    def link(self, token_id: str, token: str) -> Iterator[Callable[[], None]]:
        """Never comes to that."""
        yield lambda: None


def _invalid() -> Unauthenticated:
    return Unauthenticated("GRANT_INVALID", "the hand's token is not valid, or not any more")

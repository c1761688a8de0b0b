"""Whose a client's credential is: asked, kept for 5 seconds at most, and dropped at once when it becomes void.

The session service alone knows credentials (services/session/credentials.py); the others ask it. A service that has
nobody to ask reads the operator's file of keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from services.kit.errors import ServiceError, Unauthenticated
from services.kit.identity import Caller, unknown
from services.kit.logs import Log

CACHE_SECONDS = 5.0
CREDENTIAL_CHARACTERS = 6 * 1024
MOST_KEPT = 10_000
AGAIN_SECONDS = 0.2  # before news that broke off are asked for again

_log = Log("services.kit.callers")


class Source(Protocol):
    """Knows credentials."""

    async def ask(self, credential: str) -> Caller:
        """Says who shows it. Raises Unauthenticated (`IDENTITY_UNKNOWN`), or Unavailable when nobody can say."""

    def news(self) -> AsyncIterator[str]:
        """Yields the ids of credentials that are void, as it happens; an empty one when some may have been missed.

        May end, or raise a ServiceError, when the news break off: then it is asked for them again.
        """


@dataclass
class _Open:
    caller_id: str
    limits: set[asyncio.Timeout]


class Callers:
    """Tells who shows a credential. `follow` has to run."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Caller]] = {}
        self._void: OrderedDict[str, float] = OrderedDict()  # id -> when that was heard, of those heard of last
        self._open: dict[str, _Open] = {}  # credential -> streams that it has open

    def kept(self, credential: str) -> Caller | None:
        """Returns who shows it, if that is known."""
        found = self._kept.get(_key(credential))
        return found[0] if found is not None and time.monotonic() < found[1] else None

    async def check(self, credential: str) -> Caller:
        """Says who shows it. Raises Unauthenticated (`IDENTITY_UNKNOWN`), or Unavailable when nobody can say."""
        if len(credential) > CREDENTIAL_CHARACTERS or not credential.isascii():
            raise unknown()
        return self.kept(credential) or await self._ask(credential)

    async def _ask(self, credential: str) -> Caller:
        """Asks once for all who want to know at a time."""
        key = _key(credential)
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._answer(key, credential))
            asking.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(asking)

    def _answered(self, key: bytes, done: asyncio.Task[Caller]) -> None:
        self._asking.pop(key, None)
        if not done.cancelled():
            done.exception()  # whoever asked has it, and may have left

    async def _answer(self, key: bytes, credential: str) -> Caller:
        asked = time.monotonic()
        caller = replace(await self._source.ask(credential), asked=asked)
        if self._is_void(caller):
            raise unknown()
        seconds = min(CACHE_SECONDS, caller.expires - time.time()) if caller.expires else CACHE_SECONDS
        self._kept[key] = (caller, asked + seconds)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return caller

    def _is_void(self, caller: Caller) -> bool:
        """Says whether news overtook the answer."""
        return self._void.get(caller.id, -1.0) >= caller.asked

    @asynccontextmanager
    async def stream(self, caller: Caller, credential: str) -> AsyncIterator[None]:
        """Lets a stream be open for as long as its credential is good, then raises Unauthenticated in it."""
        if self._is_void(caller):
            raise unknown()
        now = asyncio.get_running_loop().time()
        until = now + caller.expires - time.time() if caller.expires else None
        there = self._open.setdefault(credential, _Open(caller.id, set()))
        limit = asyncio.timeout_at(until)
        try:
            async with limit:
                there.limits.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise unknown() from None
            raise
        finally:
            there.limits.discard(limit)
            if not there.limits:
                self._open.pop(credential, None)

    async def follow(self) -> None:
        """Hears which credentials are void, for ever."""
        while True:
            try:
                async for caller_id in self._source.news():
                    if caller_id:
                        self.end(caller_id)
                    else:
                        await self._doubt()
            except ServiceError as error:
                _log.info("the news of credentials broke off", reason=error.reason)
            await asyncio.sleep(AGAIN_SECONDS)

    def end(self, caller_id: str) -> None:
        """Takes the news that a credential is void."""
        self._void[caller_id] = time.monotonic()
        self._void.move_to_end(caller_id)
        if len(self._void) > MOST_KEPT:
            self._void.popitem(last=False)
        self._kept = OrderedDict((key, kept) for key, kept in self._kept.items() if kept[0].id != caller_id)
        now = asyncio.get_running_loop().time()
        for open in self._open.values():
            if open.caller_id == caller_id:
                for limit in open.limits:
                    if not limit.expired():
                        limit.reschedule(now)

    async def _doubt(self) -> None:
        """Looks at all credentials that have streams open: news may have been missed."""
        self._kept.clear()
        for credential, open in list(self._open.items()):
            try:
                await self._source.ask(credential)
            except Unauthenticated:
                self.end(open.caller_id)
            except ServiceError as error:
                _log.info("credential not looked at", reason=error.reason)
                return  # then the news break off, too


def _key(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()

"""Answers' bodies, up to a number of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpcore2
import httpx2

from services.vault_proxy.outbound.exchange import Exchange, Failure

BODY_BYTES = 8 * 1024 * 1024  # of one answer, however it comes
STREAM_BYTES = 64 * 1024 * 1024  # of a stream that stays open for many answers; then it has to be opened anew
REST_BYTES = 64 * 1024  # what is read, and for how long, of an answer that has said enough
REST_SECONDS = 1.0

BROKEN = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)


class BodyRefused(httpx2.StreamError):
    """An answer's body is too large or broke off. A StreamError costs only its own request."""


class Body(httpx2.AsyncByteStream):
    """An answer's body: up to BODY_BYTES, or up to STREAM_BYTES of a stream that stands for many answers."""

    def __init__(self, answer: httpcore2.Response, exchange: Exchange, packed: bool, standing: bool) -> None:
        self._answer = answer
        self._parts = answer.aiter_stream()
        self._exchange = exchange
        self._packed = packed
        self._standing = standing
        self._most = STREAM_BYTES if standing else BODY_BYTES
        self._whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            self._exchange.failure = Failure.BROKEN
            raise BodyRefused("the answer is compressed, although that was not offered")
        size = 0
        try:
            async for part in self._parts:
                size += len(part)
                if size > self._most:
                    self._exchange.failure = Failure.TOO_LARGE
                    raise BodyRefused("the answer is too large")
                yield part
            self._whole = True
        except BROKEN:
            self._exchange.failure = Failure.BROKEN
            raise BodyRefused("the answer broke off") from None

    async def aclose(self) -> None:
        """Lets go of the answer. What little is left is read first: then the connection can be used again."""
        try:
            if not (self._whole or self._standing) and self._exchange.failure is None:
                async with asyncio.timeout(REST_SECONDS):
                    await self._read_rest()
        except (TimeoutError, *BROKEN):
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

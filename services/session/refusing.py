"""Refuses a stream of requests so that its caller hears why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import Message

from services.kit.errors import ServiceError

DRAIN_BYTES = 64 * 1024 * 1024  # of a stream that was refused
DRAIN_SECONDS = 10.0


async def drain(requests: AsyncIterator[Message]) -> None:
    """Reads on for a while what is refused: a caller that is still sending may not hear the reason otherwise."""
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for message in requests:
                left -= message.ByteSize()
                if left < 0:
                    return
    except (TimeoutError, ServiceError):
        return

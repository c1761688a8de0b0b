"""Looks into streams and empties parts of them, in small steps: what the janitor does, as NATS's user `janitor`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from services.session.operator import NOT_FOUND, Operator, StoreError

STEP = 256  # messages in one purge: NATS appends nothing meanwhile
REST = 4.0  # pauses are so many times as long as the step before them
LEAST_REST = 0.01  # seconds


async def purge(operator: Operator, stream: str, subject: str) -> int:
    """Purges what a stream has on a subject, oldest first, a step at a time; returns how many messages that were."""
    loop = asyncio.get_running_loop()
    total = left = sum([1 async for _ in subjects(operator, stream, subject)])
    while left > 0:
        left = max(0, left - STEP)
        began = loop.time()
        question = {"filter": subject} | ({"keep": left} if left else {})
        answer = await operator.ask(f"STREAM.PURGE.{stream}", question)
        if "error" in answer:
            raise StoreError(f"NATS refuses to purge {stream}: {answer['error'].get('description')}")
        await asyncio.sleep(max(LEAST_REST, REST * (loop.time() - began)))
    return total


async def subjects(operator: Operator, stream: str, subject: str) -> AsyncIterator[str]:
    """Lists the subjects of a stream, each of which has one message. A stream that is not there has none."""
    seen = 0
    while True:
        question = {"subjects_filter": subject, "offset": seen}
        answer = await operator.ask(f"STREAM.INFO.{stream}", question)
        if answer.get("error", {}).get("err_code") == NOT_FOUND:
            return
        if "error" in answer:
            raise StoreError(f"NATS does not show {stream}: {answer['error'].get('description')}")
        found = answer["state"].get("subjects") or {}
        for each in found:
            yield each
        seen += len(found)
        if not found or seen >= answer.get("total", 0):
            return

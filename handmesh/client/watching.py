"""Following a log through broken connections: each position once, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

import grpc

from handmesh.client.channels import Link
from handmesh.client.errors import HandmeshError, raised
from handmesh.session.v1 import event_pb2, session_pb2

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two tries: doubled from the first to the longest."""

PATIENCE = 60.0
"""Seconds that a watcher tries to go on before it gives up."""

HEALTHY_AFTER = 5.0
"""A stream that stood for so many seconds was a good one, even if it had nothing to say."""

# What a server that goes away, or a network that breaks, looks like. A service that refuses says so in other words.
_BROKEN = frozenset({"UNAVAILABLE", "CANCELLED"})


async def watch(
    link: Link,
    stub: SessionServiceAsyncStub,
    request: session_pb2.WatchEventsRequest,
    patience: float | None = PATIENCE,
) -> AsyncIterator[event_pb2.Event | session_pb2.Preview]:
    """Yields the events from `request.start_position` on, each once and in order, and previews when asked for.

    Connects again after a break and goes on behind the last event seen; previews of the meantime are lost. Raises
    HandmeshError when the service refuses, or when watching fails for `patience` seconds on end (None: tries for ever).
    """
    loop = asyncio.get_running_loop()
    endurance = _Endurance(patience)
    following = session_pb2.WatchEventsRequest()
    following.CopyFrom(request)
    following.start_position = max(1, request.start_position)
    while True:
        problem = HandmeshError("UNAVAILABLE", "the stream of events ended", code="UNAVAILABLE")
        opened = loop.time()
        call = stub.WatchEvents(following, metadata=link.metadata)
        try:
            async for response in call:
                endurance.renew()
                for event in _news(response.events, following.start_position):
                    following.start_position = event.position + 1
                    yield event
                for preview in response.previews:
                    yield preview
        except grpc.aio.AioRpcError as error:
            problem = raised(error)
        finally:
            call.cancel()
        if problem.reason == "READER_SLOW":
            continue  # the service is well: it only let this reader go
        if problem.code not in _BROKEN:
            raise problem
        if loop.time() - opened > HEALTHY_AFTER:
            endurance.renew()
        await endurance.wait(link.channel, problem)


def _news(events: Iterable[event_pb2.Event], next_position: int) -> Iterator[event_pb2.Event]:
    """Yields what was not seen yet. Raises HandmeshError when an event is missing: a log has no gaps."""
    for event in events:
        if event.position > next_position:
            message = f"the log's event {next_position} is missing: {event.position} came instead"
            raise HandmeshError("LOG_INVALID", message, {"position": str(next_position)}, code="DATA_LOSS")
        if event.position == next_position:
            next_position += 1
            yield event


class _Endurance:
    """How long to go on trying, and when to try next."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE

    def renew(self) -> None:
        """Forgets the failures: something worked."""
        self._failing_since, self._pause = None, FIRST_PAUSE

    async def wait(self, channel: grpc.aio.Channel, problem: HandmeshError) -> None:
        """Waits until it is worth another try. Raises `problem` when the time is up."""
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        left = None if self._seconds is None else self._failing_since + self._seconds - now
        try:
            async with asyncio.timeout(left):
                await asyncio.sleep(self._pause * random.uniform(0.5, 1))
                await channel.channel_ready()
        except TimeoutError:
            raise problem from None
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

"""The wire between replicas: NATS's own messages, which are kept nowhere."""

from __future__ import annotations

from collections.abc import Callable

import nats.errors
from nats.aio.msg import Msg

from services.kit.errors import Unavailable
from services.session.log import Stop
from services.session.logs.jetstream.connection import Connection


class NatsWire:
    """Topics and keys as subjects `<topic>.<key>`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def send(self, topic: str, key: str, data: bytes) -> None:
        if not self._connection.connected:
            return  # nobody hears, and nobody should hear it late
        try:
            await self._connection.client.publish(f"{topic}.{key}", data)
        except (OSError, nats.errors.Error):
            return  # the same, found out a moment later

    async def listen(
        self, topic: str, key: str, hear: Callable[[bytes], None], gap: Callable[[], None] | None = None
    ) -> Stop:
        async def take(message: Msg) -> None:
            hear(message.data)

        try:
            subscription = await self._connection.client.subscribe(f"{topic}.{key}", cb=take)
        except (OSError, nats.errors.Error) as problem:
            raise Unavailable("LOG_UNAVAILABLE", "the log's store does not answer", retry_after=0.2) from problem
        if gap is not None:
            self._connection.gaps.add(gap)

        async def stop() -> None:
            if gap is not None:
                self._connection.gaps.discard(gap)
            try:
                await subscription.unsubscribe()
            except (OSError, nats.errors.Error):
                return  # the connection is gone, and the subscription with it

        return stop

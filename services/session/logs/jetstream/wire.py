"""The wire between replicas: NATS's own messages, which are kept nowhere. Whoever listens here hears at once."""

from __future__ import annotations

from collections.abc import Callable

from services.session.log import Stop
from services.session.logs.jetstream.connection import Connection


class NatsWire:
    """Topics and keys as subjects `<topic>.<key>`."""

    def __init__(self, connection: Connection) -> None:
        self._lane = connection.lane

    async def send(self, topic: str, key: str, data: bytes) -> None:
        self._lane.tell(f"{topic}.{key}", data)
        if self._lane.connected:  # else nobody hears, and nobody should hear it late
            self._lane.send(f"{topic}.{key}", data, soon=False)

    async def listen(
        self, topic: str, key: str, hear: Callable[[bytes], None], gap: Callable[[], None] | None = None
    ) -> Stop:
        deaf = self._lane.listen(f"{topic}.{key}", lambda message: hear(message.data))
        if gap is not None:
            self._lane.gaps.add(gap)

        async def stop() -> None:
            if gap is not None:
                self._lane.gaps.discard(gap)
            deaf()

        return stop

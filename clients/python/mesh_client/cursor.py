"""Where a reader is in a log. Positions are dense, from 1: what comes twice is dropped, and a gap is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from handmesh.session.v1.event_pb2 import Event
from mesh_client.errors import MeshError


class Cursor:
    """The next position to read: what a broken stream is resumed from."""

    def __init__(self, start: int = 1) -> None:
        self.next_position = max(1, start)

    def news(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yields what was not seen yet, and moves on behind it. Raises MeshError (`LOG_INVALID`) at a gap."""
        for event in events:
            if event.position > self.next_position:
                text = f"event {self.next_position} is missing: {event.position} came instead"
                raise MeshError("DATA_LOSS", "LOG_INVALID", text, {"position": str(self.next_position)})
            if event.position == self.next_position:
                self.next_position += 1
                yield event

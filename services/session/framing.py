"""Stored batches taken apart and put together again, byte for byte: no event is ever encoded a second time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from services.session.admission import MAX_BATCH_BYTES, MAX_BATCH_EVENTS
from services.session.log import StoredBatch

_EVENT_TAG = 0x0A  # field 1, length-delimited: `repeated Event events = 1`


@dataclass(frozen=True)
class Frame:
    """One event as it lies in a stored batch, with what surrounds it there."""

    position: int
    data: bytes


def frames(batch: StoredBatch) -> Iterator[Frame]:
    """Yields a batch's events in order. Raises ValueError for bytes that are none."""
    data, at = batch.data, 0
    for position in range(batch.first_position, batch.last_position + 1):
        if at >= len(data) or data[at] != _EVENT_TAG:
            raise ValueError(f"no event at byte {at}")
        size, body = _varint(data, at + 1)
        if body + size > len(data):
            raise ValueError(f"the event at byte {at} is cut off")
        yield Frame(position, data[at : body + size])
        at = body + size
    if at != len(data):
        raise ValueError(f"more than {batch.count} events")


class Packer:
    """Packs events that follow each other into as few batches as may be, each linked to the one before it."""

    def __init__(self, prev_digest: str = "") -> None:
        self._digest = prev_digest
        self._part: list[Frame] = []
        self._size = 0

    def add(self, event: Frame) -> StoredBatch | None:
        """Takes the next event. Returns the batch before it, when that is full."""
        full = len(self._part) == MAX_BATCH_EVENTS or self._size + len(event.data) > MAX_BATCH_BYTES
        batch = self.rest() if full else None
        self._part.append(event)
        self._size += len(event.data)
        return batch

    def rest(self) -> StoredBatch | None:
        """Returns what is left as a batch, if anything is."""
        if not self._part:
            return None
        data = b"".join(event.data for event in self._part)
        batch = StoredBatch(self._part[0].position, len(self._part), self._digest, data)
        self._part, self._size, self._digest = [], 0, batch.digest
        return batch


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a length is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7

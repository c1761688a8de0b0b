"""Names of a log's events and tool calls, hashed to 64 bits, with the position that each stands for.

A log has up to 100,000 of them and they are never taken back. The newest are in a dictionary; each 8,192 of them become
two sorted arrays, which take 12 bytes for a name where a dictionary takes 100, and are read from a store in no time.
Which names are in which segment follows from the log alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, MutableMapping
from typing import Any

SEGMENT = 8_192  # names
_HASH, _POSITION = "Q", "I"  # 8 and 4 bytes


class Segment:
    """Names that do not change any more, sorted."""

    __slots__ = ("hashes", "positions")

    def __init__(self, hashes: array[int], positions: array[int]) -> None:
        self.hashes, self.positions = hashes, positions

    @classmethod
    def of(cls, names: dict[int, int]) -> Segment:
        """Sorts names."""
        hashes = sorted(names)
        return cls(array(_HASH, hashes), array(_POSITION, map(names.__getitem__, hashes)))

    @classmethod
    def unsorted(cls, names: dict[int, int]) -> Segment:
        """Takes names as they come: to be written, not to be asked."""
        return cls(array(_HASH, names), array(_POSITION, names.values()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Segment:
        """Reads what `to_bytes` has written. Raises ValueError for anything else."""
        count, rest = divmod(len(data), 12)
        if rest:
            raise ValueError("no segment")
        hashes, positions = array(_HASH, data[: count * 8]), array(_POSITION, data[count * 8 :])
        return cls(hashes, positions)

    def to_bytes(self) -> bytes:
        """Writes the names, in this machine's byte order."""
        return self.hashes.tobytes() + self.positions.tobytes()

    def get(self, name: int) -> int:
        """Returns a name's position, or 0."""
        at = bisect_left(self.hashes, name)
        found: int = self.positions[at] if at < len(self.hashes) and self.hashes[at] == name else 0
        return found


class Names(MutableMapping[int, int]):
    """Name -> position. Nothing is ever removed."""

    def __init__(self, segments: tuple[Segment, ...] = (), fresh: dict[int, int] | None = None) -> None:
        self.segments = segments
        self.fresh = {} if fresh is None else fresh

    def __getitem__(self, name: int) -> int:
        found = self.get(name)
        if not found:
            raise KeyError(name)
        return int(found)

    def get(self, name: int, default: Any = 0) -> Any:
        found = self.fresh.get(name)
        if found is not None:
            return found
        for segment in self.segments:
            if at := segment.get(name):
                return at
        return default

    def __contains__(self, name: object) -> bool:
        return isinstance(name, int) and bool(self.get(name))

    def __setitem__(self, name: int, position: int) -> None:
        self.fresh[name] = position
        if len(self.fresh) >= SEGMENT:
            self.segments = (*self.segments, Segment.of(self.fresh))
            self.fresh = {}

    def __delitem__(self, name: int) -> None:
        raise TypeError("a log's names are never taken back")

    def __iter__(self) -> Iterator[int]:
        for segment in self.segments:
            yield from segment.hashes
        yield from self.fresh

    def __len__(self) -> int:
        return SEGMENT * len(self.segments) + len(self.fresh)

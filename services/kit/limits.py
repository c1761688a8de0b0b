"""What one caller may have at once, so that it cannot stall or starve its neighbours.

Only clients and hands are limited: the mesh's own services share an identity for each kind, and limit themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.kit.errors import Full
from services.kit.identity import Caller

CALLER_STREAMS = 4_096
CALLER_BYTES = 64 * 1024 * 1024
CALL_SECONDS = 600
CALL_BYTES = 16 * 1024  # what a call costs beside its request, so that many small ones are bounded too
RETRY_SECONDS = 0.5
_LIMITED = frozenset({"client", "hand"})

Key = tuple[str | None, str]


@dataclass(frozen=True)
class Limits:
    """The limits of a server: streams of one caller, bytes of its requests that are being worked on (each counts
    `CALL_BYTES` more), and seconds for a unary call that brings no deadline."""

    streams: int = CALLER_STREAMS
    bytes: int = CALLER_BYTES
    seconds: float = CALL_SECONDS


class Shares:
    """What each caller has at the moment. A caller that has nothing takes no room."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bytes: dict[Key, int] = {}
        self._streams: dict[Key, int] = {}

    def take(self, caller: Caller, size: int) -> int:
        """Takes room for a request of so many bytes; returns what `give` gets back. Raises Full (`FULL`)."""
        if caller.kind not in _LIMITED:
            return 0
        key, taken = (caller.tenant, caller.name), size + CALL_BYTES
        there = self._bytes.get(key, 0)
        if there and there + taken > self.limits.bytes:
            message = f"a caller has at most {self.limits.bytes} bytes of requests at once"
            raise Full("FULL", message, retry_after=RETRY_SECONDS, limit=self.limits.bytes)
        self._bytes[key] = there + taken
        return taken

    def give(self, caller: Caller, taken: int) -> None:
        """Gives back what `take` took."""
        if taken:
            _lower(self._bytes, (caller.tenant, caller.name), taken)

    def open(self, caller: Caller) -> None:
        """Takes a stream. Raises Full (`FULL`)."""
        if caller.kind not in _LIMITED:
            return
        key = caller.tenant, caller.name
        there = self._streams.get(key, 0)
        if there >= self.limits.streams:
            message = f"a caller has at most {self.limits.streams} streams at once"
            raise Full("FULL", message, retry_after=RETRY_SECONDS, limit=self.limits.streams)
        self._streams[key] = there + 1

    def close(self, caller: Caller) -> None:
        """Gives back a stream."""
        if caller.kind in _LIMITED:
            _lower(self._streams, (caller.tenant, caller.name), 1)


def _lower(kept: dict[Key, int], key: Key, by: int) -> None:
    left = kept[key] - by
    if left:
        kept[key] = left
    else:
        del kept[key]

"""What one caller may have at once and in a second, so that it cannot stall or starve its neighbours.

Only clients and hands are limited: the mesh's own services share an identity for each kind, and limit themselves.
Each process counts for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.kit.access import CLIENT
from services.kit.errors import Full
from services.kit.identity import Caller

CALLER_STREAMS = 4_096
CALLER_BYTES = 64 * 1024 * 1024
CALLER_CALLS = 4_096
CALLS_PER_SECOND = 2_000
BURST = 4_000
CALL_SECONDS = 600
CALL_BYTES = 16 * 1024  # what a call costs beside its request, so that many small ones are bounded too
RETRY_SECONDS = 0.5
REST_SECONDS = 600.0  # after so long without a call a client may make a burst again, whatever its rate
_LIMITED = frozenset({"client", "hand"})

Key = tuple[str | None, str]


@dataclass(frozen=True)
class Limits:
    """The limits of a server for each caller that has none of its own: streams, bytes of its requests that are being
    worked on (each counts `CALL_BYTES` more), seconds for a unary call that brings no deadline, unary calls at once,
    calls in a second, and calls that come at once after a rest."""

    streams: int = CALLER_STREAMS
    bytes: int = CALLER_BYTES
    seconds: float = CALL_SECONDS
    calls: int = CALLER_CALLS
    calls_per_second: int = CALLS_PER_SECOND
    burst: int = BURST


class Shares:
    """What each caller has at the moment. A caller that has nothing takes no room."""

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is in seconds."""
        self.limits = limits
        self._now = now
        self._bytes: dict[Key, int] = {}
        self._calls: dict[Key, int] = {}
        self._streams: dict[Key, int] = {}
        self._rates: dict[Key, tuple[float, float]] = {}  # calls left, and when that was so
        self._tidy = now() + REST_SECONDS

    def count(self, caller: Caller) -> None:
        """Counts a client's call or stream that begins. Raises Full (`RATE_LIMITED`) when they come too fast.

        A replica that hands a call on has counted it, and may say several for one. A hand's id is only what it shows:
        whoever makes ids up would have a rate for each.
        """
        if caller.kind not in CLIENT or caller.handed_on:
            return
        own, usual = caller.limits, self.limits
        rate = own.calls_per_second or usual.calls_per_second
        burst = own.burst or (rate if own.calls_per_second else usual.burst)
        key, now = (caller.tenant, caller.id), self._now()
        left, then = self._rates.get(key, (float(burst), now))
        left = min(float(burst), left + (now - then) * rate)
        if left < 1:
            message = f"the credential allows {rate} calls a second, and {burst} at once"
            wait = max((1 - left) / rate, 0.001)
            raise Full("RATE_LIMITED", message, retry_after=wait, calls_per_second=rate, burst=burst)
        self._rates[key] = (left - 1, now)
        if now >= self._tidy:
            self._tidy = now + REST_SECONDS
            self._rates = {key: kept for key, kept in self._rates.items() if now - kept[1] < REST_SECONDS}

    def take(self, caller: Caller, size: int) -> int:
        """Takes room for a request of so many bytes; returns what `give` gets back. Raises Full (`FULL`)."""
        if caller.kind not in _LIMITED:
            return 0
        key, taken = (caller.tenant, caller.id), size + CALL_BYTES
        there = self._bytes.get(key, 0)
        if there and there + taken > self.limits.bytes:
            message = f"a caller has at most {self.limits.bytes} bytes of requests at once"
            raise Full("FULL", message, retry_after=RETRY_SECONDS, limit=self.limits.bytes)
        self._bytes[key] = there + taken
        return taken

    def give(self, caller: Caller, taken: int) -> None:
        """Gives back what `take` took."""
        if taken:
            _lower(self._bytes, (caller.tenant, caller.id), taken)

    def begin(self, caller: Caller) -> None:
        """Takes room for a unary call. Raises Full (`FULL`)."""
        if caller.kind in _LIMITED:
            most = caller.limits.calls or self.limits.calls
            _raise(self._calls, (caller.tenant, caller.id), most, "calls")

    def end(self, caller: Caller) -> None:
        """Gives back a unary call."""
        if caller.kind in _LIMITED:
            _lower(self._calls, (caller.tenant, caller.id), 1)

    def open(self, caller: Caller) -> None:
        """Takes a stream. Raises Full (`FULL`)."""
        if caller.kind in _LIMITED:
            most = caller.limits.streams or self.limits.streams
            _raise(self._streams, (caller.tenant, caller.id), most, "streams")

    def close(self, caller: Caller) -> None:
        """Gives back a stream."""
        if caller.kind in _LIMITED:
            _lower(self._streams, (caller.tenant, caller.id), 1)


def _raise(kept: dict[Key, int], key: Key, most: int, what: str) -> None:
    there = kept.get(key, 0)
    if there >= most:
        raise Full("FULL", f"the caller has at most {most} {what} at once", retry_after=RETRY_SECONDS, limit=most)
    kept[key] = there + 1


def _lower(kept: dict[Key, int], key: Key, by: int) -> None:
    left = kept[key] - by
    if left:
        kept[key] = left
    else:
        del kept[key]

"""Cuts the bytes of a server-sent event stream into the data of its events. Pure.

Ours and not the SDK's: bytes stay bytes until an event is whole, so a stream that is cut anywhere, even inside a
character, is a cut stream and nothing else; and no event is built as an object and taken apart again.
"""

from __future__ import annotations

MAX_EVENT_BYTES = 64 * 1024 * 1024  # of one event: no answer is as long


class Oversized(Exception):
    """An event has no end."""


class Events:
    """Takes chunks, gives back the data of each event that has become whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def take(self, chunk: bytes) -> list[bytes]:
        """Returns the data of the events that end in this chunk. Raises Oversized."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
                self._size += len(line)
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise Oversized
        return found

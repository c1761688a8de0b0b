"""What files say, read again when they change: nothing is restarted for a new certificate or a new key."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from services.kit.logs import Log

LOOK_SECONDS = 1.0  # between two looks at the files

_log = Log("services.kit.watched")
T = TypeVar("T")
_Sign = tuple[tuple[int, int, int] | None, ...]


class UnreadableError(Exception):
    """A file says nothing that can be used. The text says why, and nothing of what stands in it."""


class Watched(Generic[T]):
    """What some files say together. While they say nothing that can be used, what they said before counts.

    A look costs one `stat` for each file, at most every `every` seconds. May be asked from several threads.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[], T], every: float = LOOK_SECONDS) -> None:
        """Reads at once. Raises what `read` raises: OSError, or UnreadableError."""
        self._files = tuple(files)
        self._read = read
        self._every = every
        self._sign = self._look()
        self._value = read()
        self._due = time.monotonic() + every

    def get(self) -> T:
        """Returns what they say now."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._every
            sign = self._look()
            if sign != self._sign:
                self._renew(sign)
        return self._value

    def _renew(self, sign: _Sign) -> None:
        try:
            value = self._read()
        except (OSError, UnreadableError) as problem:
            self._sign = sign  # it is said once; the next change is looked at again
            _log.warning("files not read again", files=[str(file) for file in self._files], problem=str(problem))
            return
        if self._look() != sign:
            self._due = 0.0  # they changed while they were read: not all may be of one making
            return
        self._sign, self._value = sign, value
        _log.info("files read again", files=[str(file) for file in self._files])

    def _look(self) -> _Sign:
        return tuple(_sign(file) for file in self._files)


def _sign(file: Path) -> tuple[int, int, int] | None:
    """Tells one making of a file from another: where links lead is looked at, so a swapped folder is seen."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size

"""Keeps what a tool prints: all of it in a file up to a limit, head and tail in memory for the result."""

from __future__ import annotations

import os
import re
import stat
from typing import IO

from .config import CHUNK_BYTES

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")


MEMORY_BYTES = 4 << 10  # an output up to this has no file


class Output:
    """The output of one execution. Memory stays under three text limits however much is written."""

    def __init__(self, path: str, text_limit: int, file_limit: int) -> None:
        """Creates nothing yet. A full disk is no error: the file then stays shorter than the output."""
        self.path = path
        self.total = 0
        self.stored = 0
        self._head_limit = text_limit // 2
        self._tail_limit = text_limit - self._head_limit
        self._file_limit = file_limit
        self._memory = min(MEMORY_BYTES, self._head_limit)
        self._head = bytearray()
        self._tail = bytearray()
        self._file: int | None = None  # none yet; -1 when there is no more to be written

    def write(self, data: bytes) -> None:
        """Takes the next bytes."""
        self.total += len(data)
        if self.total > self._memory:
            self._store(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def _store(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._created()
            data = bytes(self._head) + data
        data = data[: self._file_limit - self.stored]
        if self._file < 0 or not data:
            return
        try:
            self.stored += os.write(self._file, data)
        except OSError:  # the disk is full: what is stored stays readable, the result has head and tail
            self.close()

    def _created(self) -> int:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError:
            return -1

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._file is not None and self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def held(self) -> bytes | None:
        """The whole output, as long as it has no file."""
        return bytes(self._head) if self.total <= self._memory else None

    @property
    def truncated(self) -> bool:
        """Whether the result's text lacks the middle."""
        return self.total > self._head_limit + self._tail_limit

    def text(self) -> str:
        """Returns what a model shall read: escape sequences removed, the cut marked."""
        if not self.truncated:
            return readable(bytes(self._head + self._tail))
        head = bytes(self._head)[: len(self._head) - _open_bytes(self._head)]
        tail = bytes(self._tail[-self._tail_limit :]).lstrip(_CONTINUATION)
        left_out = self.total - len(head) - len(tail)
        where = f"; the first {self.stored} bytes are in {self.path}" if self.stored else ""
        if self.stored == self.total:
            where = f"; the whole output is in {self.path}"
        return f"{readable(head)}\n\n[... {left_out} bytes left out{where} ...]\n\n{readable(tail)}"


_CONTINUATION = bytes(range(0x80, 0xC0))


def _open_bytes(data: bytes | bytearray) -> int:
    """Counts the bytes at the end that begin a character whose rest is missing."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if width > back else 0
    return 0


def readable(data: bytes) -> str:
    """Decodes; what is no text becomes U+FFFD."""
    return _ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\x00", "\ufffd")


def clean(text: str) -> str:
    """Replaces what UTF-8 cannot carry, such as the lone surrogates of odd file names."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def open_regular(path: str) -> IO[bytes]:
    """Opens a file that a tool may have replaced by something to wait for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read_chunk(path: str, offset: int, ended: bool) -> tuple[str, int]:
    """Reads on from an offset of a file, see `chunk_of`. A file that is not there has nothing new."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            data = file.read(CHUNK_BYTES)
    except OSError:  # removed to make room: the result still tells head and tail
        return "", offset
    return chunk_of(data, offset, ended)


def chunk_of(data: bytes, offset: int, ended: bool) -> tuple[str, int]:
    """Returns whole characters, at most `CHUNK_BYTES` of what comes at an offset, and where the next chunk starts.

    Nothing new is `("", offset)`. A character that is not complete waits for its rest until the output has ended.
    """
    data = data[:CHUNK_BYTES]
    if len(data) == CHUNK_BYTES or not ended:
        data = data[: len(data) - _open_bytes(data)]
    text = data.decode("utf-8", "replace")
    while len(text.encode("utf-8")) > CHUNK_BYTES:  # U+FFFD is three bytes long
        data = data[: len(data) // 2]
        data = data[: len(data) - _open_bytes(data)]
        text = data.decode("utf-8", "replace")
    return text, offset + len(data)

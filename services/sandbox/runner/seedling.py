"""Takes a directory that the service brings as a stream, where it could not be mounted. For the service alone.

It runs as the user of the tools, in a folder beside the one that it will be: what is cut off is begun anew. The stream
has for each entry a `HEAD`, its path, and its content or, of a link, what it points to.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = struct.Struct(">HIQQ")  # bytes of the path, mode with its kind, time of writing in ns, bytes of the content
_PART = ".handmesh-part"
_MARK = os.path.join(".git", "handmesh-seed")  # which one it is, so that a second time changes nothing


class NotPlanted(Exception):
    """It cannot be put there. The text says why."""


def is_there(path: str, seed: str) -> bool:
    """Tells whether a seed was planted at a path."""
    try:
        with open(os.path.join(path, _MARK)) as file:
            return file.read() == seed
    except OSError:
        return False


def plant(path: str, seed: str, content: Iterator[bytes]) -> None:
    """Makes the directory, whole or not at all. Raises NotPlanted, OSError."""
    if os.path.realpath(path) != path:
        raise NotPlanted("a link is on the way")
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise NotPlanted("something is there")
    part = path + _PART
    if os.path.lexists(part):
        shutil.rmtree(part)
    os.makedirs(part)
    stream = _Stream(content)
    while head := stream.read(HEAD.size, or_none=True):
        length, mode, moment, size = HEAD.unpack(head)
        _enter(os.path.join(part, os.fsdecode(stream.read(length))), mode, moment, stream, size)
    with open(os.path.join(part, _MARK), "x") as file:
        file.write(seed)
    if os.path.isdir(path):
        os.rmdir(path)
    os.rename(part, path)


class _Stream:
    """Reads by length what comes in pieces."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self._content = content
        self._held = memoryview(b"")

    def some(self, most: int) -> bytes:
        """Returns the next bytes, at most so many; none at the end."""
        if not self._held:
            self._held = memoryview(next(self._content, b""))
        taken, self._held = bytes(self._held[:most]), self._held[most:]
        return taken

    def read(self, size: int, or_none: bool = False) -> bytes:
        """Returns so many bytes, or none at the end where that may be. Raises EOFError."""
        taken = bytearray()
        while len(taken) < size:
            piece = self.some(size - len(taken))
            if not piece:
                if or_none and not taken:
                    return b""
                raise EOFError("the caller went away")
            taken += piece
        return bytes(taken)


def _enter(path: str, mode: int, moment: int, stream: _Stream, size: int) -> None:
    if stat.S_ISDIR(mode):
        os.mkdir(path, 0o755)
        return
    if stat.S_ISLNK(mode):
        os.symlink(os.fsdecode(stream.read(size)), path)
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while size:
                piece = stream.some(size)
                if not piece:
                    raise EOFError("the caller went away")
                size -= len(piece)
                while piece:
                    piece = piece[file.write(piece) :]
            os.fchmod(descriptor, stat.S_IMODE(mode))
    os.utime(path, ns=(moment, moment), follow_symlinks=False)

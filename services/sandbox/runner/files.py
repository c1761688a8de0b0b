"""The file tools: read, write, edit, and put, which is for the service alone.

They run in a child of the runner, as the user of the tools, so a path reaches only what the sandbox shows, and a
link can lead nowhere that a command could not go. What is no regular file is refused before a byte is read.
"""

from __future__ import annotations

import base64
import errno
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from . import tree

MAX_READ_BYTES = 256 << 10
MAX_IMAGE_BYTES = (5 << 20) // 4 * 3  # the model's API takes 5 MiB of base64
MAX_DOCUMENT_BYTES = 5 << 20  # base64 of it must fit into one message of the mesh
MAX_EDIT_BYTES = 16 << 20
_SNIFF_BYTES = 8 << 10
_NEW_MODE = 0o644
# Why a directory takes no second file while the first may well be written in place.
_NO_DRAFT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ENOSPC, errno.EDQUOT})


class ToolFailed(Exception):
    """A tool's own failure, with the sentence that the model shall read."""


class Answer(NamedTuple):
    """What a tool that is no command says: text, and content blocks when there is more than text."""

    text: str
    blocks: list[dict[str, Any]] | None = None


@contextmanager
def failures(tool: str, path: str) -> Iterator[None]:
    """Says what the file system says in the tool's words: `read: a.txt: no such file or directory`."""
    try:
        yield
    except OSError as error:
        raise ToolFailed(f"{tool}: {path}: {(error.strerror or 'i/o error').lower()}") from None


def read(workspace: str, given: dict[str, Any]) -> Answer:
    """Returns a text file or a range of its lines; an image or a document as a content block."""
    path = given["file_path"]
    wanted = given.get("view_range")
    with failures("read", path), _open_regular(absolute(workspace, path)) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_SNIFF_BYTES)
        file.seek(0)
        kind = _media_type(start)
        if kind is not None:
            if wanted:
                raise ToolFailed("read: view_range is not supported for image/PDF files")
            return _as_block(file, path, size, kind)
        if b"\0" in start:
            raise ToolFailed(f"read: {path}: not a text file ({size} bytes)")
        if wanted:
            return Answer(_lines(file, path, *wanted))
        data = file.read(MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            what = f"read: {path} is {size} bytes, exceeds {MAX_READ_BYTES}-byte limit. "
            raise ToolFailed(f"{what}Use the view_range parameter to read specific line ranges, e.g. [1, 500].")
        return Answer(data.decode("utf-8", "replace") or "(the file is empty)")


def _as_block(file: IO[bytes], path: str, size: int, media_type: str) -> Answer:
    document = media_type == "application/pdf"
    limit = MAX_DOCUMENT_BYTES if document else MAX_IMAGE_BYTES
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ToolFailed(f"read: {path} is {size} bytes, exceeds {limit}-byte limit for {media_type} files.")
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}
    block = {"type": "document" if document else "image", "source": source}
    return Answer(f"{path}: {media_type}, {len(data)} bytes", [block])


def _lines(file: IO[bytes], path: str, first: int, last: int) -> str:
    """Returns lines `first` to `last`, counted from 1, both inclusive; `last` <= 0 means to the end."""
    first = max(1, first)
    if 0 < last < first:
        raise ToolFailed(f"read: view_range [{first}, {last}] is empty: lines count from 1, both ends are inclusive")
    kept = bytearray()
    number = 1  # of the line that the next piece is of
    seen = 0  # lines of which there was any byte
    while last <= 0 or number <= last:
        piece = file.readline(MAX_READ_BYTES)  # a line, or a part of one that is longer
        if not piece:
            break
        seen = number
        if number >= first:
            kept += piece
        if len(kept) > MAX_READ_BYTES:
            cut = f"\n[... cut in line {number}: {MAX_READ_BYTES} bytes is the most ...]"
            return kept[:MAX_READ_BYTES].decode("utf-8", "replace") + cut
        number += piece.endswith(b"\n")
    if not kept:
        raise ToolFailed(f"read: {path} has only {seen} line{'s' if seen != 1 else ''}")
    if 0 < last < number and kept.endswith(b"\n"):
        del kept[-1:]  # the end of the last line is not part of the range
    return kept.decode("utf-8", "replace") or "(empty line)"


def write(workspace: str, given: dict[str, Any]) -> Answer:
    """Writes a whole file, and makes its directories."""
    path = given["file_path"]
    data = given["content"].encode("utf-8")
    with failures("write", path):
        store(absolute(workspace, path), data)
    return Answer(f"wrote {len(data)} bytes to {path}")


def edit(workspace: str, given: dict[str, Any]) -> Answer:
    """Replaces an exact text, which must be there once unless all of them are meant."""
    path = given["file_path"]
    old, new = given["old_string"].encode("utf-8"), given["new_string"].encode("utf-8")
    if not old or old == new:
        raise ToolFailed(f"edit: {'old_string is empty' if not old else 'old_string and new_string are the same'}")
    with failures("edit", path):
        with _open_regular(absolute(workspace, path)) as file:
            data = file.read(MAX_EDIT_BYTES + 1)
        if len(data) > MAX_EDIT_BYTES:
            raise ToolFailed(f"edit: {path} exceeds {MAX_EDIT_BYTES}-byte limit, the most that edit takes")
        if old not in data and b"\r" not in old and b"\n" in old:  # lines that end as on Windows look the same
            old, new = old.replace(b"\n", b"\r\n"), new.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        count = data.count(old)
        if count == 0:
            raise ToolFailed(f"edit: old_string not found in {path} (it must match exactly, white space included)")
        if count > 1 and not given.get("replace_all"):
            raise ToolFailed(
                f"edit: old_string appears {count} times in {path} (must be unique; or set replace_all to true)"
            )
        store(absolute(workspace, path), data.replace(old, new))
    return Answer(f"edited {path} ({count} replacement{'s' if count > 1 else ''})")


def put(workspace: str, given: dict[str, Any]) -> Answer:
    """Writes bytes that the service brought: in the place of a file, or behind all that it has."""
    path, offset, data = given["path"], given.get("offset", 0), base64.b64decode(given["data"])
    if not offset:
        tree.replace(workspace, path, given["mode"], [data])
        return Answer(path)
    with failures("put", path):
        there = tree.extend(workspace, path, given["mode"], offset, data)
    if there != offset:
        raise ToolFailed(f"{path} has {there} bytes and not {offset}")
    return Answer(path)


def absolute(workspace: str, path: str) -> str:
    """Returns a path that a model has written, from the workspace on."""
    if not path or "\0" in path:
        raise ToolFailed("the path is empty or has a NUL byte in it")
    return os.path.normpath(os.path.join(workspace, path))


def _open_regular(path: str) -> IO[bytes]:
    """Opens for reading; neither waits for a FIFO's writer nor reads a device."""
    return os.fdopen(checked(path, os.O_RDONLY), "rb")


def checked(path: str, flags: int) -> int:
    """Opens a regular file. Raises OSError, also for anything else."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "is a directory; list it with glob or with ls")
    raise OSError(errno.EINVAL, "not a regular file")


def store(path: str, data: bytes) -> None:
    """Makes a file have this content: all of it, or what it had. Keeps its mode, its links, and what links to it.

    Raises OSError, also for a file that may be replaced but not written.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a limit on the size of files is then an error, and no death
    target = os.path.realpath(path)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    try:
        descriptor = checked(path, os.O_WRONLY)
    except FileNotFoundError:
        _replace(target, data, _NEW_MODE)
        return
    with os.fdopen(descriptor, "wb") as file:
        known = os.fstat(descriptor)
        if known.st_nlink == 1:
            try:
                _replace(target, data, stat.S_IMODE(known.st_mode))
                return
            except OSError as error:
                if error.errno not in _NO_DRAFT:
                    raise
        _overwrite(file, data, known.st_size)


def _replace(target: str, data: bytes, mode: int) -> None:
    draft = os.path.join(os.path.dirname(target), f".handmesh-{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _NEW_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
        os.rename(draft, target)
    except BaseException:
        os.unlink(draft)
        raise


def _overwrite(file: IO[bytes], data: bytes, size: int) -> None:
    """Writes in place, once there is room for all of it."""
    try:
        os.posix_fallocate(file.fileno(), 0, max(1, len(data)))
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise
    file.write(data)
    file.truncate(len(data))


def _media_type(start: bytes) -> str | None:
    """Tells by its first bytes whether a file is one that a model can see."""
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    if start.startswith(b"%PDF-"):
        return "application/pdf"
    return None

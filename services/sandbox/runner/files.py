"""The file tools: read, write, edit, and put, which is for the service alone.

They run in a child of the runner, as the user of the tools, so a path reaches only what the sandbox shows, and a
link can lead nowhere that a command could not go. What is no regular file is refused before a byte is read.
"""

from __future__ import annotations

import base64
import os
import stat
from typing import IO, Any, NamedTuple

from . import tree

MAX_READ_BYTES = 256 << 10
MAX_IMAGE_BYTES = 5 << 20
MAX_DOCUMENT_BYTES = 5 << 20  # base64 of it must fit into one message of the mesh
MAX_EDIT_BYTES = 16 << 20
_SNIFF_BYTES = 8 << 10
_MAX_LINE_BYTES = 1 << 20


class ToolFailed(Exception):
    """A tool's own failure, with the sentence that the model shall read."""


class Answer(NamedTuple):
    """What a tool that is no command says: text, and content blocks when there is more than text."""

    text: str
    blocks: list[dict[str, Any]] | None = None


def read(workspace: str, given: dict[str, Any]) -> Answer:
    """Returns a text file or a range of its lines; an image or a document as a content block."""
    path = _absolute(workspace, given["file_path"])
    with _open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_SNIFF_BYTES)
        file.seek(0)
        kind = _media_type(start)
        if kind is not None:
            return _as_block(file, path, size, kind)
        if b"\0" in start:
            raise ToolFailed(f"{path} is not a text file ({size} bytes)")
        if given.get("view_range"):
            return Answer(_lines(file, path, *given["view_range"]))
        data = file.read(MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            raise ToolFailed(f"{path} has {size} bytes; more than {MAX_READ_BYTES} are read only by view_range")
        return Answer(data.decode("utf-8", "replace") or "(the file is empty)")


def _as_block(file: IO[bytes], path: str, size: int, media_type: str) -> Answer:
    document = media_type == "application/pdf"
    limit = MAX_DOCUMENT_BYTES if document else MAX_IMAGE_BYTES
    data = file.read(limit + 1)
    if len(data) > limit:
        raise ToolFailed(f"{path} has {size} bytes; the limit for {media_type} is {limit}")
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode("ascii")}
    block = {"type": "document" if document else "image", "source": source}
    return Answer(f"{path}: {media_type}, {len(data)} bytes", [block])


def _lines(file: IO[bytes], path: str, first: int, last: int) -> str:
    """Returns lines `first` to `last`, counted from 1, both inclusive; `last` <= 0 means to the end."""
    if first < 1 or 0 < last < first:
        raise ToolFailed(f"view_range [{first}, {last}] is no range of lines: they count from 1, the end is inclusive")
    kept: list[bytes] = []
    size = 0
    number = 0
    while True:
        line = file.readline(_MAX_LINE_BYTES)
        if not line or 0 < last <= number:
            break
        number += 1
        if number < first:
            continue
        size += len(line)
        if size > MAX_READ_BYTES:
            kept.append(f"[... cut at line {number}: {MAX_READ_BYTES} bytes is the most ...]".encode())
            break
        kept.append(line)
    if not kept:
        raise ToolFailed(f"{path} has only {number} lines")
    return b"".join(kept).decode("utf-8", "replace")


def write(workspace: str, given: dict[str, Any]) -> Answer:
    """Writes a whole file, and makes its directories."""
    path = _absolute(workspace, given["file_path"])
    data = given["content"].encode("utf-8")
    _store(path, data)
    return Answer(f"wrote {len(data)} bytes to {path}")


def edit(workspace: str, given: dict[str, Any]) -> Answer:
    """Replaces an exact text, which must be there once unless all of them are meant."""
    path = _absolute(workspace, given["file_path"])
    old, new = given["old_string"].encode("utf-8"), given["new_string"].encode("utf-8")
    if not old or old == new:
        raise ToolFailed("old_string must not be empty" if not old else "old_string and new_string are the same")
    with _open_regular(path) as file:
        data = file.read(MAX_EDIT_BYTES + 1)
    if len(data) > MAX_EDIT_BYTES:
        raise ToolFailed(f"{path} is larger than {MAX_EDIT_BYTES} bytes, the most that edit takes")
    count = data.count(old)
    if count == 0:
        raise ToolFailed(f"old_string is not in {path}; it must match exactly, white space included")
    if count > 1 and not given.get("replace_all"):
        raise ToolFailed(f"old_string is in {path} {count} times; make it unique, or set replace_all")
    _store(path, data.replace(old, new))
    return Answer(f"replaced {count} occurrence{'s' if count > 1 else ''} in {path}")


def put(workspace: str, given: dict[str, Any]) -> Answer:
    """Writes bytes that the service brought."""
    tree.replace(workspace, given["path"], given["mode"], [base64.b64decode(given["data"])])
    return Answer(given["path"])


def _absolute(workspace: str, path: str) -> str:
    if not path or "\0" in path:
        raise ToolFailed("the path is empty or has a NUL byte in it")
    return os.path.normpath(os.path.join(workspace, path))


def _open_regular(path: str) -> IO[bytes]:
    """Opens for reading; neither waits for a FIFO's writer nor reads a device."""
    return os.fdopen(_checked(path, os.O_RDONLY), "rb")


def _store(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = _checked(path, os.O_WRONLY | os.O_CREAT)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(0)
        file.write(data)


def _checked(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolFailed(f"{path} is not a regular file")
    return descriptor


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

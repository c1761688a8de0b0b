"""Moves files into and out of the sandbox: a child of the runner with a caller's socket to itself.

It runs as the user of the tools, so it reaches what a command could reach and nothing else; what it makes of the
content of strangers, archives above all, can harm this sandbox only. On the socket, after the request's line:

    child    a line of JSON: {} to go on, or an error
    sender   frames (four bytes of length, big-endian, then so many bytes), and one of no length at the end
    child    a line of JSON with what came of it

The sender is the child for `read` and `pack`, the caller for `store`, `expand`, `unpack` and `plant`; `list` and
`planted` have no frames.
Nothing but that child imports this module: what it needs would cost each sandbox memory.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from . import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FRAME_BYTES = 64 << 10
MAX_FILES = 1_000  # that `list` tells of
SECONDS = 600  # of one transfer
SILENT_SECONDS = 60.0  # of a caller that neither sends nor takes


class Failed(Exception):
    """What the caller is told: a reason of the error contract and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        """Takes both."""
        super().__init__(message)
        self.line = {"error": reason, "message": message}


class Peer:
    """The caller's socket."""

    def __init__(self, caller: socket.socket) -> None:
        """Takes a connected socket whose request was read."""
        caller.settimeout(SILENT_SECONDS)
        self._caller = caller
        self._file = caller.makefile("rb")
        self._sent = bytearray()

    def say(self, line: dict[str, Any]) -> None:
        """Sends a line of JSON."""
        self._caller.sendall(json.dumps(line).encode("ascii") + b"\n")

    def send(self, data: bytes) -> None:
        """Sends content, in whole frames; `end` sends the rest."""
        self._sent += data
        while len(self._sent) >= FRAME_BYTES:
            self._frame(bytes(self._sent[:FRAME_BYTES]))
            del self._sent[:FRAME_BYTES]

    def end(self) -> None:
        """Sends what is left of the content, and its end."""
        if self._sent:
            self._frame(bytes(self._sent))
        self._frame(b"")

    def _frame(self, data: bytes) -> None:
        self._caller.sendall(struct.pack(">I", len(data)) + data)

    def frames(self) -> Iterator[bytes]:
        """Yields the caller's content. Raises EOFError when it goes away before the end."""
        while True:
            (size,) = struct.unpack(">I", self._exactly(4))
            if not size:
                return
            if size > FRAME_BYTES:
                raise EOFError("a frame is too long")
            yield self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("the caller went away")
        return data


class Place(NamedTuple):
    """Where the workspace is."""

    workspace: str

    def full(self, path: str) -> str:
        """Returns a path of this sandbox: the request's is absolute, or relative to the workspace."""
        return os.path.normpath(os.path.join(self.workspace, path))


def load(operation: str) -> None:
    """Imports what an operation needs: tarfile and zipfile take 40 ms, and most operations do without."""
    if operation in ("pack", "expand", "unpack"):
        from . import archives, packing  # noqa: F401 - while the archive that this lies in can still be read
    elif operation in ("plant", "planted"):
        from . import seedling  # noqa: F401 - likewise


def serve(descriptor: int, workspace: str, request: dict[str, Any]) -> None:
    """Answers a request to its end. What the caller must know is said, the rest ends the process."""
    signal.alarm(SECONDS)
    peer = Peer(socket.socket(fileno=descriptor))
    operation, takes = _OPERATIONS[request["do"]]
    content = peer.frames() if takes else iter(())
    if takes:
        peer.say({})
    try:
        answer = operation(Place(workspace), request, peer, content)
    except Failed as failed:
        answer = failed.line
    except OSError as error:
        if error.errno is None and not error.strerror:
            raise  # the caller's socket timed out
        path = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        answer = {"error": "RESOURCE_INVALID", "message": f"{path}{error.strerror}"}
    for _ in content:  # so that a caller that still sends gets to read why not
        pass
    peer.say(answer)


def _list(place: Place, request: dict[str, Any], peer: Peer, _: Iterator[bytes]) -> dict[str, Any]:
    root = place.full(request["path"])
    state = _state(root)
    if stat.S_ISREG(state.st_mode):
        return {"files": [tree.stamp(tree.Found("", state))], "more": False}
    files: list[Any] = []
    for found in tree.walk(root) if stat.S_ISDIR(state.st_mode) else ():
        if not stat.S_ISREG(found.state.st_mode) or not _is_text(found.path):
            continue
        if len(files) == MAX_FILES:
            return {"files": files, "more": True}
        files.append(tree.stamp(found))
    return {"files": files, "more": False}


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:  # no message of the mesh can hold it
        return False
    return True


def _state(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        raise Failed("FILE_NOT_FOUND", "there is no such file") from None


def _read(place: Place, request: dict[str, Any], peer: Peer, _: Iterator[bytes]) -> dict[str, Any]:
    path = place.full(request["path"])
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise Failed("FILE_NOT_FOUND", "there is no such file, or the tools' user may not read it") from None
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise Failed("FILE_NOT_FOUND", "it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        file.seek(request["offset"])
        left = state.st_size - request["offset"]  # of one that grows, what there was
        peer.say({})
        try:
            while left > 0:
                data = file.read(min(left, FRAME_BYTES))
                if not data:
                    break
                left -= len(data)
                peer.send(data)
        finally:
            peer.end()
    return {}


def _pack(place: Place, request: dict[str, Any], peer: Peer, _: Iterator[bytes]) -> dict[str, Any]:
    from . import packing

    peer.say({})
    try:
        packing.pack(place.workspace, frozenset(request["leave_out"]), peer.send)
    finally:
        peer.end()
    return {}


def _store(place: Place, request: dict[str, Any], _: Peer, content: Iterator[bytes]) -> dict[str, Any]:
    tree.replace(place.workspace, request["path"], request["mode"], content)
    return {}


def _expand(place: Place, request: dict[str, Any], _: Peer, content: Iterator[bytes]) -> dict[str, Any]:
    from . import archives

    data = bytearray()
    for piece in content:
        data += piece
        if len(data) > request["archive_bytes"]:
            raise Failed("RESOURCE_INVALID", f"the archive has more than {request['archive_bytes']} bytes")
    limits = archives.Limits(request["size"], request["entries"])
    path = request["path"]
    try:
        archives.check(bytes(data), limits)  # all of it, before a byte is written
        os.close(tree.directory(place.workspace, path))
        for entry in archives.entries(bytes(data), limits):
            if entry.content is None:
                os.close(tree.directory(place.workspace, f"{path}/{entry.path}"))
            else:
                mode = 0o755 if entry.executable else 0o644
                tree.replace(place.workspace, f"{path}/{entry.path}", mode, entry.content)
    except archives.BadArchive as refused:
        raise Failed("RESOURCE_INVALID", f"the archive is refused: {refused}") from None
    return {}


def _unpack(place: Place, request: dict[str, Any], _: Peer, content: Iterator[bytes]) -> dict[str, Any]:
    from . import archives, packing

    try:
        packing.unpack(place.workspace, content, request["size"], request["entries"])
    except archives.BadArchive as refused:
        raise Failed("RESOURCE_INVALID", f"the checkpoint is refused: {refused}") from None
    return {}


def _planted(place: Place, request: dict[str, Any], _: Peer, __: Iterator[bytes]) -> dict[str, Any]:
    from . import seedling

    return {"there": seedling.is_there(place.full(request["path"]), request["seed"])}


def _plant(place: Place, request: dict[str, Any], _: Peer, content: Iterator[bytes]) -> dict[str, Any]:
    from . import seedling

    path = os.path.join(os.path.realpath(place.workspace), request["path"])
    try:
        seedling.plant(path, request["seed"], content)
    except seedling.NotPlanted as refused:
        raise Failed("RESOURCE_INVALID", str(refused)) from None
    return {}


_OPERATIONS: dict[str, tuple[Callable[[Place, dict[str, Any], Peer, Iterator[bytes]], dict[str, Any]], bool]] = {
    # and whether it takes content
    "list": (_list, False),
    "read": (_read, False),
    "pack": (_pack, False),
    "store": (_store, True),
    "expand": (_expand, True),
    "unpack": (_unpack, True),
    "planted": (_planted, False),
    "plant": (_plant, True),
}

"""Files of a sandbox by its runner: content goes through in pieces, and is never held as a whole (see `transfers`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import Any

from services.kit.errors import Gone, Invalid, Unavailable
from services.sandbox.hand import (
    MAX_ARCHIVE_BYTES,
    MAX_ENTRIES,
    MAX_EXPANDED_BYTES,
    MAX_PACKED_ENTRIES,
    WORKSPACE,
    Archive,
    FileInfo,
    Packed,
    Streamed,
)
from services.sandbox.place import SOCKET
from services.sandbox.records import Record
from services.sandbox.runner.transfers import FRAME_BYTES
from services.sandbox.runner_client import MAX_LINE_BYTES, Unreachable, said
from services.sandbox.seeds_copy import packed

BUFFER_BYTES = 4 * FRAME_BYTES  # held of content that nobody has taken yet
STEP_SECONDS = 60.0  # for the next piece; or for what comes of it all, as a checkpoint is unpacked meanwhile


class RunnerFiles:
    """The part of a `Hand` (see there) that moves files, over records whose runners live."""

    async def files(self, sandbox_id: str, path: str) -> tuple[tuple[FileInfo, ...], bool]:
        """See `Hand.files`."""
        async with self._transfer(sandbox_id, {"do": "list", "path": _local(path)}, path) as transfer:
            answer = await transfer.answer()
        above = path.rstrip("/")
        files = [
            FileInfo(f"{above}/{row[0]}" if row[0] else path, int(row[1]), int(row[2]), str(row[3]))
            for row in answer["files"]
        ]
        return tuple(files), bool(answer["more"])

    async def read_file(self, sandbox_id: str, path: str, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """See `Hand.read_file`."""
        request = {"do": "read", "path": _local(path), "offset": offset}
        async with self._transfer(sandbox_id, request, path) as transfer:
            async for piece in transfer.content():
                yield piece

    async def pack(self, sandbox_id: str, leave_out: Sequence[str] = ()) -> AsyncGenerator[bytes, None]:
        """See `Hand.pack`."""
        request = {"do": "pack", "leave_out": [_local(path) for path in leave_out]}
        async with self._transfer(sandbox_id, request, WORKSPACE) as transfer:
            async for piece in transfer.content():
                yield piece

    async def _send(self, record: Record, what: Archive | Streamed | Packed) -> None:
        """Puts content that is not a small file."""
        expanded = {"size": MAX_EXPANDED_BYTES, "entries": MAX_ENTRIES, "archive_bytes": MAX_ARCHIVE_BYTES}
        match what:
            case Archive(path, content):
                request: dict[str, Any] = {"do": "expand", "path": _local(path), **expanded}
                pieces = _pieces(content)
            case Streamed(path, opened, mode):
                request = {"do": "store", "path": _local(path), "mode": mode}
                pieces = opened()
            case Packed(opened, limit_bytes):
                path = WORKSPACE
                request = {"do": "unpack", "size": limit_bytes, "entries": MAX_PACKED_ENTRIES}
                pieces = opened()
        async with aclosing(pieces):
            await self._give(record, request, path, pieces)

    async def _copy(self, record: Record, path: str, tree: Path) -> None:
        """Puts a directory of this machine at a path, whole or not at all, unless it was put there before."""
        request = {"path": _local(path), "seed": tree.name}
        async with self._transfer_of(record, {"do": "planted", **request}, path) as transfer:
            if (await transfer.answer())["there"]:
                return
        async with aclosing(packed(tree)) as pieces:
            await self._give(record, {"do": "plant", **request}, path, pieces)

    async def _give(
        self, record: Record, request: Mapping[str, Any], path: str, pieces: AsyncGenerator[bytes, None]
    ) -> None:
        async with self._transfer_of(record, request, path) as transfer:
            await transfer.answer()
            async for piece in pieces:
                await transfer.send(piece)
            await transfer.end()
            await transfer.answer()

    @contextlib.asynccontextmanager
    async def _transfer(
        self, sandbox_id: str, request: Mapping[str, Any], path: str
    ) -> AsyncGenerator[_Transfer, None]:
        async with self._transfer_of(await self._record(sandbox_id), request, path) as transfer:
            yield transfer

    @contextlib.asynccontextmanager
    async def _transfer_of(
        self, record: Record, request: Mapping[str, Any], path: str
    ) -> AsyncGenerator[_Transfer, None]:
        until = asyncio.get_running_loop().time() + STEP_SECONDS
        buffer = MAX_LINE_BYTES if request["do"] == "list" else BUFFER_BYTES
        try:
            async with _connected(record.door / SOCKET, until, buffer) as (reader, writer):
                writer.write(json.dumps({"op": "transfer", **request}).encode("ascii") + b"\n")
                yield _Transfer(reader, writer, path)
        except Unreachable:
            raise await self._lost(record) from None

    @abstractmethod
    async def _record(self, sandbox_id: str) -> Record:
        """Returns the record of a sandbox that can execute. Raises Gone."""

    @abstractmethod
    async def _lost(self, record: Record) -> Gone | Unavailable:
        """Returns what to raise when a runner has not answered."""


class _Transfer:
    """One transfer's connection. The other side may be a sandbox gone wrong: nothing that it says is trusted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path

    async def answer(self) -> dict[str, Any]:
        """Reads a line. Raises what it refuses with, and Unreachable."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await self._writer.drain()
                line = await self._reader.readline()
            return said(line)
        except (OSError, TimeoutError, ValueError) as error:
            raise Unreachable(type(error).__name__) from None
        except Gone as error:
            raise Gone(error.reason, f"{error.message}: {self._path}", path=self._path) from None
        except Invalid as error:
            raise Invalid(error.reason, f"it cannot be put there: {error.message}", mount_path=self._path) from None

    async def content(self) -> AsyncGenerator[bytes, None]:
        """Yields content and reads the line before it and the one after it."""
        await self.answer()
        while True:
            piece = await self._frame()
            if not piece:
                break
            yield piece
        await self.answer()

    async def _frame(self) -> bytes:
        try:
            async with asyncio.timeout(STEP_SECONDS):
                (size,) = struct.unpack(">I", await self._reader.readexactly(4))
                if size > FRAME_BYTES:
                    raise ValueError("the frame is too long")
                return await self._reader.readexactly(size)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            raise Unreachable(type(error).__name__) from None

    async def send(self, piece: bytes) -> None:
        """Sends content."""
        try:
            for start in range(0, len(piece), FRAME_BYTES):
                part = piece[start : start + FRAME_BYTES]
                self._writer.write(struct.pack(">I", len(part)) + part)
                async with asyncio.timeout(STEP_SECONDS):
                    await self._writer.drain()
        except (OSError, TimeoutError) as error:
            raise Unreachable(type(error).__name__) from None

    async def end(self) -> None:
        """Sends the end of the content."""
        self._writer.write(bytes(4))


@contextlib.asynccontextmanager
async def _connected(
    socket: Path, until: float, buffer_bytes: int
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    reader, writer = await connect(socket, until, buffer_bytes)
    try:
        yield reader, writer
    finally:
        writer.close()


async def connect(socket: Path, until: float, buffer_bytes: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects through the folder's descriptor: a socket's path may have 107 bytes only. Raises Unreachable.

    No line may be longer than `buffer_bytes`; twice as many are held of an answer that nobody reads.
    """
    try:
        folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout_at(until):
                name = f"/proc/self/fd/{folder}/{socket.name}"
                return await asyncio.open_unix_connection(name, limit=buffer_bytes)
        finally:
            os.close(folder)
    except (OSError, TimeoutError) as error:
        raise Unreachable(type(error).__name__) from None


def _local(path: str) -> str:
    """Returns a path as the runner takes it: relative to the workspace when it is in it."""
    whole = PurePosixPath(path)
    return str(whole.relative_to(WORKSPACE)) if whole.is_relative_to(WORKSPACE) else path


async def _pieces(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content

"""Copies a seed into a sandbox through its runner, for places where it cannot be mounted. Slower; see the docs."""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from services.kit.errors import Invalid
from services.kit.ids import mint
from services.sandbox.hand import WORKSPACE, Hand, Order, Outcome

PIECE_BYTES = 4 << 20  # of content in one request; with base64 and the rest it must be below the runner's limit
PIECE_ENTRIES = 2_000
STEP_SECONDS = 30.0

Entry = list[str | int]  # name, kind, mode, time of writing in nanoseconds, content; name and content in base64


async def copy(hand: Hand, sandbox_id: str, path: str, tree: Path) -> None:
    """Copies a directory to a path below the workspace, whole or not at all. Idempotent.

    Raises Invalid (`RESOURCE_INVALID`) when something is at the path, or when it does not fit.
    """

    async def step(**given: Any) -> str:
        where = str(PurePosixPath(path).relative_to(WORKSPACE))
        order = Order(mint("put"), "_plant", {"path": where, "seed": tree.name, **given}, "", STEP_SECONDS)
        said = await hand.run(sandbox_id, order)
        if said.outcome is not Outcome.OK:
            raise Invalid("RESOURCE_INVALID", f"it cannot be put there: {said.text}", mount_path=path)
        return said.text

    if await step(step="begin") == "there":
        return
    pieces = _pieces(tree)
    while piece := await asyncio.to_thread(next, pieces, None):
        await step(step="entries", entries=piece)
    await step(step="end")


def _pieces(tree: Path) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    size = 0
    for entry, length in _entries(tree):
        if piece and (size + length > PIECE_BYTES or len(piece) >= PIECE_ENTRIES):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += length
    if piece:
        yield piece


def _entries(tree: Path) -> Iterator[tuple[Entry, int]]:
    """Yields each directory before what is in it, and a file of more than a piece as several."""
    for parent, folders, names in os.walk(tree):
        for name in sorted(folders + names):
            path = Path(parent, name)
            state = path.lstat()
            kind, parts = _kind(path, state.st_mode)
            for number, data in enumerate(parts):
                shown = _text(os.fsencode(path.relative_to(tree)))
                said = kind if number == 0 else "more"
                yield [shown, said, stat.S_IMODE(state.st_mode), state.st_mtime_ns, _text(data)], len(data)


def _kind(path: Path, mode: int) -> tuple[str, Iterator[bytes]]:
    if stat.S_ISDIR(mode):
        return "directory", iter((b"",))
    if stat.S_ISLNK(mode):
        return "link", iter((os.fsencode(path.readlink()),))
    return "file", _content(path)


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield file.read(PIECE_BYTES)
        while data := file.read(PIECE_BYTES):
            yield data


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

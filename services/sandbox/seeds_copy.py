"""Packs a seed for `runner/seedling.py`, where it must be copied for it cannot be mounted. Slower; see the docs."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from services.sandbox.runner.seedling import HEAD

PIECE_BYTES = 1 << 20  # at least, but for the last


async def packed(tree: Path) -> AsyncGenerator[bytes, None]:
    """Yields a directory as a stream, each folder before what is in it."""
    pieces = _pieces(tree)
    while piece := await asyncio.to_thread(next, pieces, None):
        yield piece


def _pieces(tree: Path) -> Iterator[bytes]:
    held = bytearray()
    for part in _parts(tree):
        held += part
        if len(held) >= PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _parts(tree: Path) -> Iterator[bytes]:
    for parent, folders, names in os.walk(tree):
        for name in sorted(folders + names):
            path = Path(parent, name)
            state = path.lstat()
            shown = os.fsencode(path.relative_to(tree))
            link = os.fsencode(path.readlink()) if stat.S_ISLNK(state.st_mode) else b""
            size = state.st_size if stat.S_ISREG(state.st_mode) else len(link)
            yield HEAD.pack(len(shown), state.st_mode, state.st_mtime_ns, size) + shown + link
            if stat.S_ISREG(state.st_mode):
                with path.open("rb", buffering=0) as file:
                    while data := file.read(PIECE_BYTES):
                        yield data

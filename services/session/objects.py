"""The port for big content: bytes in numbered chunks, by space and object.

A space is a session or a memory store; an object is one upload. What an object is, who may see it and whether it is
whole is written in the registry by whoever keeps it there: here are only bytes. `objects_conformance.py` checks each
promise for every folder of `logs/`. Whatever cannot be reached is Unavailable (`LOG_UNAVAILABLE`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from services.kit import ids
from services.kit.errors import Unavailable

CHUNK_BYTES = 512 * 1024  # of every chunk but an object's last
NAMED_WITHIN_SECONDS = 3_600.0  # of its beginning; an object that has no name long after that is the janitor's


class Objects(Protocol):
    """Chunks of bytes. Spaces and objects are named by minted ids, chunks from 0 up."""

    async def put(self, space: str, object_id: str, number: int, chunk: bytes) -> None:
        """Stores a chunk of 1 to `CHUNK_BYTES` bytes, durably on return. The same chunk may be stored again."""

    async def get(self, space: str, object_id: str, number: int) -> bytes | None:
        """Returns a chunk, or None when there is none. Sees every put that has returned."""

    async def free(self, space: str, object_id: str, chunks: int) -> None:
        """Gives up the bytes of an object's first so many chunks, stored or not: nothing is there any more."""

    async def list(self, space: str) -> dict[str, int]:
        """Says how many chunks the space's objects have. Objects that were freed may or may not be among them."""

    async def remove(self, space: str) -> None:
        """Removes everything in a space. The janitor's: the serving process's identity may not do it (`Refused`)."""


def check_young(object_id: str) -> None:
    """Raises Unavailable for an object that is too old to be given a name: its bytes may be gone in a moment."""
    if object_id and ids.age_seconds(object_id) > NAMED_WITHIN_SECONDS:
        raise Unavailable("LOG_UNAVAILABLE", f"it took longer than {NAMED_WITHIN_SECONDS:.0f} s; begin again")


def chunks_of(size: int) -> int:
    """Says how many chunks so many bytes have."""
    return -(-size // CHUNK_BYTES)


async def write(objects: Objects, space: str, object_id: str, content: bytes) -> None:
    """Stores content that is in memory as an object."""
    for number in range(chunks_of(len(content))):
        start = number * CHUNK_BYTES
        await objects.put(space, object_id, number, content[start : start + CHUNK_BYTES])


async def read(objects: Objects, space: str, object_id: str, start: int, end: int) -> AsyncIterator[bytes]:
    """Yields the bytes [start, end) of an object, a chunk at most at a time. Ends early where a chunk is missing."""
    while start < end:
        number, skipped = divmod(start, CHUNK_BYTES)
        chunk = await objects.get(space, object_id, number)
        piece = chunk[skipped : skipped + end - start] if chunk else b""
        if not piece:
            return
        start += len(piece)
        yield piece

"""What every store of big content must do: the promises of `objects.py`, for every folder of `logs/`.

The checks use ids of their own, so they may all run on one store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.kit import ids
from services.session.objects import CHUNK_BYTES, Objects, chunks_of, read, write


async def objects_01_gives_back_what_was_put(objects: Objects) -> None:
    """Chunks of the smallest and the largest size come back as they went in, and what is not there is None."""
    space, one = ids.mint("sess"), ids.mint("obj")
    big = bytes(range(256)) * (CHUNK_BYTES // 256)
    await objects.put(space, one, 0, big)
    await objects.put(space, one, 1, b"x")
    assert await objects.get(space, one, 0) == big
    assert await objects.get(space, one, 1) == b"x"
    assert await objects.get(space, one, 2) is None
    assert await objects.get(space, ids.mint("obj"), 0) is None
    assert await objects.get(ids.mint("sess"), one, 0) is None


async def objects_02_takes_a_chunk_again(objects: Objects) -> None:
    """A chunk may be put twice: the last one counts, and it is one chunk."""
    space, one = ids.mint("sess"), ids.mint("obj")
    await objects.put(space, one, 0, b"a")
    await objects.put(space, one, 0, b"b")
    assert await objects.get(space, one, 0) == b"b"
    assert await objects.list(space) == {one: 1}


async def objects_03_reads_any_range(objects: Objects) -> None:
    """A range may begin and end anywhere; past the end there is nothing."""
    space, one = ids.mint("sess"), ids.mint("obj")
    content = bytes(number % 251 for number in range(CHUNK_BYTES)) * 2 + b"the end"
    await write(objects, space, one, content)
    size = len(content)
    for start, end in ((0, size), (1, 2), (CHUNK_BYTES - 1, CHUNK_BYTES + 1), (size - 3, size), (size, size + 9)):
        assert b"".join([piece async for piece in read(objects, space, one, start, end)]) == content[start:end]
    assert await objects.list(space) == {one: chunks_of(size)}


async def objects_04_frees(objects: Objects) -> None:
    """After `free` nothing of the object is there, and others are untouched; freeing what is not there is no error."""
    space, one, other = ids.mint("sess"), ids.mint("obj"), ids.mint("obj")
    await objects.put(space, one, 0, b"a")
    await objects.put(space, one, 1, b"b")
    await objects.put(space, other, 0, b"c")
    await objects.free(space, one, 3)
    assert [await objects.get(space, one, number) for number in range(3)] == [None, None, None]
    assert await objects.get(space, other, 0) == b"c"
    await objects.free(space, ids.mint("obj"), 1)


async def objects_05_keeps_many_at_once_apart(objects: Objects) -> None:
    """Writers at the same time do not see each other's chunks."""
    space = ids.mint("sess")
    names = [ids.mint("obj") for _ in range(12)]
    await asyncio.gather(*(write(objects, space, name, name.encode() * 40_000) for name in names))
    for name in names:
        size = len(name) * 40_000
        assert b"".join([piece async for piece in read(objects, space, name, 0, size)]) == name.encode() * 40_000
    assert set(await objects.list(space)) == set(names)


async def objects_06_removes_a_space(objects: Objects) -> None:
    """As the janitor: a space is empty after `remove`, another one is not; removing an empty one is no error."""
    space, other, one = ids.mint("sess"), ids.mint("sess"), ids.mint("obj")
    await objects.put(space, one, 0, b"a")
    await objects.put(other, one, 0, b"b")
    await objects.remove(space)
    await objects.remove(space)
    assert await objects.get(space, one, 0) is None
    assert await objects.list(space) == {}
    assert await objects.get(other, one, 0) == b"b"


Check = Callable[[Objects], Awaitable[None]]

CHECKS: list[Check] = [
    value for name, value in sorted(globals().items()) if name.startswith("objects_") and callable(value)
]

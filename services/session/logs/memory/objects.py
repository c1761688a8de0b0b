"""Objects in a dictionary."""

from __future__ import annotations

from collections import Counter


class MemoryObjects:
    """Chunks by space, object and number (see `Objects`)."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[str, str, int], bytes] = {}

    async def put(self, space: str, object_id: str, number: int, chunk: bytes) -> None:
        self._chunks[space, object_id, number] = chunk

    async def get(self, space: str, object_id: str, number: int) -> bytes | None:
        return self._chunks.get((space, object_id, number))

    async def free(self, space: str, object_id: str, chunks: int) -> None:
        for number in range(chunks):
            self._chunks.pop((space, object_id, number), None)

    async def list(self, space: str) -> dict[str, int]:
        return dict(Counter(key[1] for key in self._chunks if key[0] == space))

    async def remove(self, space: str) -> None:
        for key in [key for key in self._chunks if key[0] == space]:
            del self._chunks[key]

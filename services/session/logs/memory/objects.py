"""Objects in dictionaries."""

from __future__ import annotations

from collections import defaultdict


class MemoryObjects:
    """Chunks by space, object and number (see `Objects`)."""

    def __init__(self) -> None:
        self._spaces: defaultdict[str, defaultdict[str, dict[int, bytes]]] = defaultdict(lambda: defaultdict(dict))

    async def put(self, space: str, object_id: str, number: int, chunk: bytes) -> None:
        self._spaces[space][object_id][number] = chunk

    async def get(self, space: str, object_id: str, number: int) -> bytes | None:
        return self._spaces.get(space, {}).get(object_id, {}).get(number)

    async def free(self, space: str, object_id: str, chunks: int) -> None:
        for number in range(chunks):
            self._spaces[space][object_id].pop(number, None)
        if not self._spaces[space][object_id]:
            del self._spaces[space][object_id]

    async def list(self, space: str) -> dict[str, int]:
        return {object_id: len(chunks) for object_id, chunks in self._spaces.get(space, {}).items()}

    async def remove(self, space: str) -> None:
        self._spaces.pop(space, None)

"""Memory stores for harnesses in tests: the session service's own, in memory and without a wire."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

from services.harness.mesh.memories import Memory
from services.harness.ports import Standing
from services.kit.errors import Gone
from services.session.logs.memory import MemoryRegistry
from services.session.logs.memory.objects import MemoryObjects
from services.session.memories import Memories
from services.session.memories_core import Version

TENANT = "default"


class NearMemories:
    """Implements `Memories` of the harness's ports, for one session. `before_write` runs before each write."""

    def __init__(self, session_id: str, whole: Memories | None = None) -> None:
        clock = itertools.count(1)
        self.whole = whole or Memories(MemoryObjects(), MemoryRegistry(), lambda: next(clock))
        self.session_id = session_id
        self.before_write: Callable[[], Awaitable[object]] | None = None

    async def make(self, name: str = "notes") -> str:
        """Makes a store, and returns its id."""
        return (await self.whole.create(TENANT, name, "")).memory_store_id

    async def list(self, store_id: str, under: Standing) -> Sequence[Memory]:
        return [_memory(each) for each in await self.whole.list_files(store_id, "", TENANT)]

    async def read(self, store_id: str, path: str, under: Standing) -> tuple[Memory, bytes]:
        version, content = await self.whole.read(store_id, path, 0, TENANT)
        return _memory(version), content

    async def write(
        self, store_id: str, path: str, content: bytes, expected: str, request_id: str, under: Standing
    ) -> Memory:
        if self.before_write is not None:
            await self.before_write()
        written = await self.whole.write(store_id, path, content, expected, TENANT, self.session_id, request_id)
        return _memory(written)

    async def delete(self, store_id: str, path: str, expected: str | None, request_id: str, under: Standing) -> None:
        if self.before_write is not None:
            await self.before_write()
        await self.whole.delete(store_id, path, expected, TENANT, self.session_id, request_id)

    async def made(self, store_id: str, request_id: str, under: Standing) -> bool:
        try:
            await self.whole.find(store_id, request_id, TENANT, self.session_id)
        except Gone:
            return False
        return True


def _memory(version: Version) -> Memory:
    return Memory(version.path, version.sha256, version.size, version.session_id, version.request_id)

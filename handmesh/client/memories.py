"""Memory stores: files that outlive sessions, with their versions. What models remember, people can read and mend."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from handmesh.session.v1 import memory_pb2 as pb
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub

if TYPE_CHECKING:
    from handmesh.client.channels import Link
    from handmesh.session.v1.memory_pb2_grpc import MemoryServiceAsyncStub


class Memories:
    """The memory stores of a client's tenant. Methods raise HandmeshError."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stub: MemoryServiceAsyncStub = MemoryServiceStub(link.channel)

    async def create(self, name: str = "", *, request_id: str = "") -> pb.MemoryStore:
        """Makes a store. A `request_id` of your own makes it idempotent across your calls."""
        request = pb.CreateMemoryStoreRequest(name=name, request_id=request_id or f"cli_{secrets.token_hex(13)}")
        return (await self._link.call(self._stub.CreateMemoryStore, request)).memory_store

    async def all(self) -> AsyncIterator[pb.MemoryStore]:
        """Yields the stores, newest first."""
        request = pb.ListMemoryStoresRequest()
        while True:
            page = await self._link.call(self._stub.ListMemoryStores, request)
            for store in page.memory_stores:
                yield store
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def named(self, name: str) -> list[pb.MemoryStore]:
        """Returns the store of an id, or all of a name, newest first."""
        return [store async for store in self.all() if name in (store.memory_store_id, store.name)]

    async def delete_store(self, store_id: str) -> None:
        """Deletes a store and its files. Idempotent."""
        await self._link.call(self._stub.DeleteMemoryStore, pb.DeleteMemoryStoreRequest(memory_store_id=store_id))

    async def files(self, store_id: str, path: str = "") -> list[pb.Memory]:
        """Returns a store's files, or those under a path, by path."""
        request = pb.ListMemoriesRequest(memory_store_id=store_id, path=path)
        return list((await self._link.call(self._stub.ListMemories, request)).memories)

    async def read(self, store_id: str, path: str, version: int = 0) -> tuple[pb.Memory, bytes]:
        """Returns a file and its content, or those of an older version."""
        request = pb.ReadMemoryRequest(memory_store_id=store_id, path=path, version=version)
        answer = await self._link.call(self._stub.ReadMemory, request)
        return answer.memory, answer.content

    async def write(
        self, store_id: str, path: str, content: bytes, *, expected_sha256: str | None = None, request_id: str = ""
    ) -> pb.Memory:
        """Writes a file's next version. With `expected_sha256` only if that is what it holds now; empty: nothing.

        Raises `MEMORY_CONFLICT` if not. A `request_id` of your own makes it idempotent across your calls.
        """
        request = pb.WriteMemoryRequest(
            memory_store_id=store_id,
            path=path,
            content=content,
            expected_sha256=expected_sha256,
            request_id=request_id or f"cli_{secrets.token_hex(13)}",
        )
        return (await self._link.call(self._stub.WriteMemory, request)).memory

    async def versions(self, store_id: str, path: str) -> list[pb.Memory]:
        """Returns a file's versions, newest first; those of a deleted one too."""
        request = pb.ListMemoryVersionsRequest(memory_store_id=store_id, path=path)
        return list((await self._link.call(self._stub.ListMemoryVersions, request)).versions)

    async def delete(self, store_id: str, path: str) -> None:
        """Deletes a file. Its versions stay. Idempotent."""
        await self._link.call(self._stub.DeleteMemory, pb.DeleteMemoryRequest(memory_store_id=store_id, path=path))

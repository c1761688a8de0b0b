"""`MemoryService` on the wire: messages to values and back.

A harness has no tenant of its own: with its session's grant in the metadata it reaches the stores that the session's
configuration names, and what it writes says which session wrote it.
"""

from __future__ import annotations

from typing import Any

import grpc

from handmesh.session.v1 import memory_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceServicer
from services.kit.errors import Denied
from services.kit.identity import current as caller
from services.session import codec
from services.session.grants import Grants
from services.session.memories import Memories
from services.session.memories_core import MemoryStore, Version, missing
from services.session.memory_rules import memory_rules
from services.session.server import grant_of

Context = grpc.aio.ServicerContext[Any, Any]


class MemoryServicer(MemoryServiceServicer):
    """`MemoryService`."""

    def __init__(self, memories: Memories, grants: Grants) -> None:
        self._memories = memories
        self._grants = grants

    async def CreateMemoryStore(
        self, request: pb.CreateMemoryStoreRequest, context: Context
    ) -> pb.CreateMemoryStoreResponse:
        made = await self._memories.create(caller().tenant or "", request.name, request.request_id)
        return pb.CreateMemoryStoreResponse(memory_store=_store(made))

    async def ListMemoryStores(
        self, request: pb.ListMemoryStoresRequest, context: Context
    ) -> pb.ListMemoryStoresResponse:
        tenant = caller().tenant or ""
        found, token = await self._memories.list_stores(tenant, request.page_size, request.page_token)
        return pb.ListMemoryStoresResponse(memory_stores=map(_store, found), next_page_token=token)

    async def DeleteMemoryStore(
        self, request: pb.DeleteMemoryStoreRequest, context: Context
    ) -> pb.DeleteMemoryStoreResponse:
        await self._memories.delete_store(request.memory_store_id, caller().tenant)
        return pb.DeleteMemoryStoreResponse()

    async def WriteMemory(self, request: pb.WriteMemoryRequest, context: Context) -> pb.WriteMemoryResponse:
        tenant, session_id = await self._whose(context, request.memory_store_id, writes=True)
        written = await self._memories.write(
            request.memory_store_id,
            request.path,
            request.content,
            request.expected_sha256 if request.HasField("expected_sha256") else None,
            tenant,
            session_id,
            request.request_id,
        )
        return pb.WriteMemoryResponse(memory=_memory(written))

    async def ReadMemory(self, request: pb.ReadMemoryRequest, context: Context) -> pb.ReadMemoryResponse:
        tenant, _ = await self._whose(context, request.memory_store_id)
        found, content = await self._memories.read(request.memory_store_id, request.path, request.version, tenant)
        return pb.ReadMemoryResponse(memory=_memory(found), content=content)

    async def ListMemories(self, request: pb.ListMemoriesRequest, context: Context) -> pb.ListMemoriesResponse:
        tenant, _ = await self._whose(context, request.memory_store_id)
        found = await self._memories.list_files(request.memory_store_id, request.path, tenant)
        return pb.ListMemoriesResponse(memories=map(_memory, found))

    async def ListMemoryVersions(
        self, request: pb.ListMemoryVersionsRequest, context: Context
    ) -> pb.ListMemoryVersionsResponse:
        tenant, _ = await self._whose(context, request.memory_store_id)
        found = await self._memories.list_versions(request.memory_store_id, request.path, tenant)
        return pb.ListMemoryVersionsResponse(versions=map(_memory, found))

    async def DeleteMemory(self, request: pb.DeleteMemoryRequest, context: Context) -> pb.DeleteMemoryResponse:
        tenant, session_id = await self._whose(context, request.memory_store_id, writes=True)
        expected = request.expected_sha256 if request.HasField("expected_sha256") else None
        await self._memories.delete(
            request.memory_store_id, request.path, expected, tenant, session_id, request.request_id
        )
        return pb.DeleteMemoryResponse()

    async def FindMemory(self, request: pb.FindMemoryRequest, context: Context) -> pb.FindMemoryResponse:
        tenant, session_id = await self._whose(context, request.memory_store_id)
        found = await self._memories.find(request.memory_store_id, request.request_id, tenant, session_id)
        return pb.FindMemoryResponse(memory=_memory(found))

    async def _whose(self, context: Context, store_id: str, *, writes: bool = False) -> tuple[str, str]:
        """Says whose stores the caller reaches, and for which session it acts.

        Raises for a grant that is void, and for a store that the grant's session has not, or may only read.
        """
        if caller().kind == "client":
            return caller().tenant or "", ""
        if caller().kind == "sandbox":  # it says for whom; without, there is nothing that it reaches
            return caller().tenant or "", caller().session_id
        granted = await self._grants.check(grant_of(context))  # whatever a harness says of itself
        _check_access(granted.config, store_id, writes)
        return granted.tenant, granted.session_id


def _check_access(config: SessionConfig, store_id: str, writes: bool) -> None:
    """Raises unless a session may do that to a store: the model's memory, or what is mounted in one of its hands."""
    access = next((rule for rule in memory_rules(config) if rule.memory_store_id == store_id), None)
    if access is None:
        raise missing("memory store")
    if writes and access.read_only:
        raise Denied("MEMORY_READ_ONLY", "the session may only read this memory store")


def _store(store: MemoryStore) -> pb.MemoryStore:
    return pb.MemoryStore(
        memory_store_id=store.memory_store_id, name=store.name, create_time=codec.timestamp(store.create_time)
    )


def _memory(version: Version) -> pb.Memory:
    return pb.Memory(
        path=version.path,
        version=version.version,
        sha256=version.sha256,
        size=version.size,
        write_time=codec.timestamp(version.write_time),
        session_id=version.session_id,
        request_id=version.request_id,
    )

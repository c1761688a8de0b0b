"""A memory store of the crash tests' own: files that sessions write to, and how often they did."""

from __future__ import annotations

from handmesh.client import Client
from handmesh.session.v1 import memory_pb2 as pb
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub


async def make(client: Client) -> str:
    """Makes a store, and returns its id."""
    link = client.session_link
    answer = await link.call(_stub(client).CreateMemoryStore, pb.CreateMemoryStoreRequest(name="crash"))
    return str(answer.memory_store.memory_store_id)


async def write(client: Client, store_id: str, path: str) -> None:
    """Makes a file of one line, once however often it is asked to."""
    request_id = path.replace(" ", "/")
    request = pb.WriteMemoryRequest(memory_store_id=store_id, path=path, content=b"one\n", request_id=request_id)
    await client.session_link.call(_stub(client).WriteMemory, request)


async def versions(client: Client, store_id: str, path: str) -> int:
    """Counts a file's versions; 0 when it never was."""
    files = pb.ListMemoriesRequest(memory_store_id=store_id, path=path)
    if not (await client.session_link.call(_stub(client).ListMemories, files)).memories:
        return 0
    request = pb.ListMemoryVersionsRequest(memory_store_id=store_id, path=path)
    return len((await client.session_link.call(_stub(client).ListMemoryVersions, request)).versions)


def _stub(client: Client) -> MemoryServiceStub:
    return MemoryServiceStub(client.session_link.channel)

"""Hands over `MemoryService`."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

import grpc

from handmesh.session.v1 import memory_pb2 as pb
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub
from services.harness.mesh.memories import Memory
from services.harness.ports import Standing
from services.kit.channels import raised
from services.kit.errors import Gone
from services.kit.grants import GRANT_KEY

CALL_SECONDS = 30.0

Answer = TypeVar("Answer")


class RemoteMemories:
    """Memory stores on the other side of a channel (see `Memories`)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = MemoryServiceStub(channel)

    async def list(self, store_id: str, under: Standing) -> Sequence[Memory]:
        """Lists all files of a store."""
        request = pb.ListMemoriesRequest(memory_store_id=store_id)
        answer = await _asked(self._stub.ListMemories(request, metadata=_shown(under), timeout=CALL_SECONDS))
        return [_memory(each) for each in answer.memories]

    async def read(self, store_id: str, path: str, under: Standing) -> tuple[Memory, bytes]:
        """Reads a file."""
        request = pb.ReadMemoryRequest(memory_store_id=store_id, path=path)
        answer = await _asked(self._stub.ReadMemory(request, metadata=_shown(under), timeout=CALL_SECONDS))
        return _memory(answer.memory), answer.content

    async def write(
        self, store_id: str, path: str, content: bytes, expected: str, request_id: str, under: Standing
    ) -> Memory:
        """Writes a file that is as expected."""
        request = pb.WriteMemoryRequest(
            memory_store_id=store_id, path=path, content=content, expected_sha256=expected, request_id=request_id
        )
        answer = await _asked(self._stub.WriteMemory(request, metadata=_shown(under), timeout=CALL_SECONDS))
        return _memory(answer.memory)

    async def delete(self, store_id: str, path: str, expected: str | None, request_id: str, under: Standing) -> None:
        """Deletes a file, if it is as expected."""
        request = pb.DeleteMemoryRequest(
            memory_store_id=store_id, path=path, expected_sha256=expected, request_id=request_id
        )
        await _asked(self._stub.DeleteMemory(request, metadata=_shown(under), timeout=CALL_SECONDS))

    async def made(self, store_id: str, request_id: str, under: Standing) -> bool:
        """Tells whether a request has made a version."""
        request = pb.FindMemoryRequest(memory_store_id=store_id, request_id=request_id)
        try:
            await _asked(self._stub.FindMemory(request, metadata=_shown(under), timeout=CALL_SECONDS))
        except Gone:
            return False
        return True


async def _asked(call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None


def _shown(under: Standing) -> tuple[tuple[str, str], ...]:
    return ((GRANT_KEY, under.grant),)


def _memory(it: pb.Memory) -> Memory:
    return Memory(it.path, it.sha256, it.size, it.session_id, it.request_id)

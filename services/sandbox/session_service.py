"""The session service over its channel (see `session`)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator

import grpc

from handmesh.session.v1 import memory_pb2, session_pb2
from handmesh.session.v1.event_pb2 import BlobRef
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit.channels import raised
from services.kit.errors import Broken, Gone
from services.kit.identity import SESSION_KEY, TENANT_KEY
from services.sandbox.session import Memory, Whose

CALL_SECONDS = 10.0
TRANSFER_SECONDS = 600.0
CHUNK_BYTES = 512 << 10  # of one message of an upload


class SessionService:
    """A `Session` (see there)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Takes a channel to the session service, as the sandbox service."""
        self._sessions = SessionServiceStub(channel)
        self._memories = MemoryServiceStub(channel)

    async def tenant_of(self, session_id: str) -> str:
        """See `Session.tenant_of`."""
        request = session_pb2.GetSessionRequest(session_id=session_id)
        try:
            answer = await self._sessions.GetSession(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        tenant: str = answer.session.config.tenant
        return tenant

    async def download(self, whose: Whose, blob_id: str) -> AsyncGenerator[bytes, None]:
        """See `Session.download`."""
        request = session_pb2.DownloadBlobRequest(session_id=whose.session_id, blob_id=blob_id)
        call = self._sessions.DownloadBlob(request, metadata=_for(whose), timeout=TRANSFER_SECONDS)
        digest, size, said = hashlib.sha256(), 0, BlobRef()
        try:
            async for answer in call:
                if answer.HasField("blob"):
                    said = answer.blob
                digest.update(answer.chunk)
                size += len(answer.chunk)
                if answer.chunk:
                    yield answer.chunk
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        finally:
            call.cancel()
        if (said.blob_id, said.size, said.sha256) != (blob_id, size, digest.hexdigest()):
            raise Gone("BLOB_NOT_FOUND", f"what came of the blob is not what it was: {blob_id}", blob_id=blob_id)

    async def upload(self, whose: Whose, content: AsyncIterator[bytes], media_type: str) -> str:
        """See `Session.upload`."""
        digest = hashlib.sha256()
        failed: list[Exception] = []

        async def messages() -> AsyncIterator[session_pb2.UploadBlobRequest]:
            yield session_pb2.UploadBlobRequest(session_id=whose.session_id, media_type=media_type)
            try:
                async for piece in content:
                    digest.update(piece)
                    yield session_pb2.UploadBlobRequest(chunk=piece)
            except Exception as error:
                failed.append(error)
                call.cancel()  # what was sent must not be taken for all there is
                raise

        call = self._sessions.UploadBlob(messages(), metadata=_for(whose), timeout=TRANSFER_SECONDS)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            raise failed[0] if failed else raised(error) from None
        except BaseException:
            if failed:
                raise failed[0] from None
            raise
        if answer.blob.sha256 != digest.hexdigest():
            raise Broken("INTERNAL", "the session service keeps something else than was sent")
        blob_id: str = answer.blob.blob_id
        return blob_id

    async def memories(self, whose: Whose, store_id: str) -> list[Memory]:
        """See `Session.memories`."""
        request = memory_pb2.ListMemoriesRequest(memory_store_id=store_id)
        try:
            answer = await self._memories.ListMemories(request, metadata=_for(whose), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        return [Memory(it.path, it.sha256, it.size) for it in answer.memories]

    async def read_memory(self, whose: Whose, store_id: str, path: str) -> tuple[Memory, bytes]:
        """See `Session.read_memory`."""
        request = memory_pb2.ReadMemoryRequest(memory_store_id=store_id, path=path)
        try:
            answer = await self._memories.ReadMemory(request, metadata=_for(whose), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        it = answer.memory
        return Memory(it.path, it.sha256, it.size), answer.content

    async def write_memory(self, whose: Whose, store_id: str, path: str, content: bytes, expected: str) -> str:
        """See `Session.write_memory`."""
        request = memory_pb2.WriteMemoryRequest(
            memory_store_id=store_id, path=path, content=content, expected_sha256=expected
        )
        try:
            answer = await self._memories.WriteMemory(request, metadata=_for(whose), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        sha256: str = answer.memory.sha256
        return sha256

    async def delete_memory(self, whose: Whose, store_id: str, path: str, expected: str) -> None:
        """See `Session.delete_memory`."""
        request = memory_pb2.DeleteMemoryRequest(memory_store_id=store_id, path=path, expected_sha256=expected)
        try:
            await self._memories.DeleteMemory(request, metadata=_for(whose), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None


def _for(whose: Whose) -> tuple[tuple[str, str], ...]:
    """Says for whom the call is made: the session service then shows nothing of others."""
    return ((TENANT_KEY, whose.tenant), *(((SESSION_KEY, whose.session_id),) if whose.session_id else ()))

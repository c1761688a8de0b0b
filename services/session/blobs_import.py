"""The blobs of a session that is being imported: one after the other, each checked against what was said of it."""

from __future__ import annotations

from handmesh.session.v1.event_pb2 import BlobRef
from handmesh.session.v1.session_pb2 import ImportSessionRequest
from services.kit.errors import Invalid
from services.session import blobs_core as core
from services.session.blobs import Blobs, Intake


class Arriving:
    """Takes blobs in. What was begun and not ended has no name, and is the janitor's."""

    def __init__(self, blobs: Blobs, session_id: str) -> None:
        self._blobs = blobs
        self._session_id = session_id
        self._said: BlobRef | None = None
        self._intake: Intake | None = None
        self._size = 0

    async def take(self, request: ImportSessionRequest) -> None:
        """Takes what a message has of blobs. Raises Invalid for bytes that nobody announced, Full over the quota."""
        if request.HasField("blob"):
            await self.end()
            await self._begin(request.blob)
        if not request.chunk:
            return
        if self._said is None:
            raise Invalid("ARGUMENT_INVALID", "a chunk comes before its blob", field="chunk")
        self._size += len(request.chunk)
        if len(request.chunk) > core.MAX_CHUNK_BYTES or self._size > self._said.size:
            raise Invalid("ARGUMENT_INVALID", "a chunk is longer than it may be", field="chunk")
        if self._intake is not None:
            await self._intake.take(request.chunk)

    async def end(self) -> None:
        """Names the blob that was begun last. Raises Invalid when it is not what was said."""
        said, self._said = self._said, None
        if said is None:
            return
        if self._size != said.size:
            raise Invalid("ARGUMENT_INVALID", f"a blob has {self._size} bytes, not {said.size}", field="size")
        if self._intake is None:
            return
        if self._intake.digest.hexdigest() != said.sha256:
            raise Invalid("ARGUMENT_INVALID", "a blob's content is not what was exported", field="sha256")
        await self._blobs.keep(self._session_id, self._intake, said.media_type)

    async def _begin(self, said: BlobRef) -> None:
        core.check_media_type(said.media_type)
        if said.size < 0:
            raise Invalid("ARGUMENT_INVALID", f"size is negative: {said.size}", field="size")
        self._said, self._size = said, 0
        there = core.id_of(said.sha256, said.media_type)  # from an earlier try
        self._intake = await self._blobs.begin(self._session_id, there, said.size)

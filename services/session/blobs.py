"""Keeps what is too big for a log: takes it in pieces, and gives it back in ranges.

An upload first stores its bytes as an object that nobody can see, then writes the blob into the session's catalog.
What fails in between leaves an object without a name: freed at once when this process can, else purged by the janitor
(`leftovers`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from handmesh.session.v1.event_pb2 import BlobRef
from handmesh.session.v1.session_pb2 import UploadBlobRequest
from services.kit import ids
from services.kit.errors import Full, Gone, Invalid, Refused, ServiceError, Unavailable
from services.kit.logs import Log as Journal
from services.session import blobs_core as core
from services.session.blobs_core import Blob, Limits
from services.session.log import Registry
from services.session.objects import CHUNK_BYTES, Objects, check_young, chunks_of, read
from services.session.refusing import drain
from services.session.writer import Writer

BUCKET = "blobs"  # a catalog for each session
SEND_BYTES = 256 * 1024  # of one message of a download
MAX_UPLOADS = 8  # at once into one session, through this process: bounds what is stored before it is counted
MAX_TRIES = 64  # of a compare-and-set

_journal = Journal("services.session.blobs")


class Blobs:
    """The blobs of every session."""

    def __init__(self, objects: Objects, registry: Registry, writer: Writer, limits: Limits) -> None:
        self._objects = objects
        self._registry = registry
        self._writer = writer
        self._limits = limits
        self._uploads: Counter[str] = Counter()
        self._freeing: set[asyncio.Task[None]] = set()

    async def upload(
        self, requests: AsyncIterator[UploadBlobRequest], tenant: str | None, whole: Callable[[], Awaitable[bool]]
    ) -> BlobRef:
        """Takes a blob in (see `UploadBlob`). Holds at most a message and a chunk of it in memory.

        `whole` is asked at the end of the requests: whether the caller ended them, or is gone. To grpc that is the
        same, and now and then the answer comes too late: only a size that was said makes it certain.
        """
        try:
            return await self._upload(requests, tenant, whole)
        except ServiceError:
            await drain(requests)
            raise

    async def _upload(
        self, requests: AsyncIterator[UploadBlobRequest], tenant: str | None, whole: Callable[[], Awaitable[bool]]
    ) -> BlobRef:
        first = await anext(requests, None)
        if first is None:
            raise Invalid("ARGUMENT_INVALID", "an upload begins with a message", field="session_id")
        core.check_media_type(first.media_type)
        session_id = first.session_id
        state = await self._writer.current(session_id, tenant)
        if state.ended:
            raise Refused("SESSION_ENDED", "the session has ended")
        if state.archived:
            raise Refused("SESSION_ARCHIVED", "the session is archived; restore it to write to it")
        if self._uploads[session_id] >= MAX_UPLOADS:
            raise Full("FULL", f"at most {MAX_UPLOADS} uploads into a session at once", retry_after=1.0)
        self._uploads[session_id] += 1
        try:
            return await self._take(first, requests, whole)
        finally:
            self._uploads[session_id] -= 1
            if not self._uploads[session_id]:
                del self._uploads[session_id]

    async def find(self, session_id: str, blob_id: str, tenant: str | None) -> BlobRef:
        """Says what a blob is. Raises Gone (`BLOB_NOT_FOUND`)."""
        await self._writer.current(session_id, tenant)
        return _ref(await self._named(session_id, blob_id))

    async def download(
        self, session_id: str, blob_id: str, offset: int, length: int, tenant: str | None
    ) -> AsyncIterator[bytes]:
        """Yields a range of a blob, in pieces of at most `SEND_BYTES`; a length of 0 means all (see `DownloadBlob`)."""
        core.check_range(offset, length)
        await self._writer.current(session_id, tenant)
        blob = await self._named(session_id, blob_id)
        end = min(blob.size, offset + length) if length else blob.size
        async for piece in read(self._objects, session_id, blob.object_id, offset, end):
            for start in range(0, len(piece), SEND_BYTES):
                yield piece[start : start + SEND_BYTES]
            offset += len(piece)
        if offset < end:
            raise _missing(blob_id, "a part of the blob is missing")

    async def copy(self, source: str, target: str) -> None:
        """Copies every blob of a session to another one, under the same ids. May be called again after a failure."""
        there, _ = await self._catalog(target)
        for blob in (await self._catalog(source))[0].values():
            if blob.blob_id in there:
                continue
            intake = Intake(self._objects, target, ids.mint("obj"))
            async for piece in read(self._objects, source, blob.object_id, 0, blob.size):
                await intake.take(piece)
            await intake.end()
            if intake.digest.hexdigest() != blob.sha256:
                raise _missing(blob.blob_id, "a part of the blob is missing")
            await self._name(target, replace(blob, object_id=intake.object_id))

    async def all_of(self, session_id: str, tenant: str | None) -> list[BlobRef]:
        """Returns all blobs of a session (see `ListBlobs`)."""
        await self._writer.current(session_id, tenant)
        return [_ref(blob) for _, blob in sorted((await self._catalog(session_id))[0].items())]

    async def begin(self, session_id: str, blob_id: str, size: int) -> Intake | None:
        """Begins a blob of a session that nobody sees yet; None when it is there. Raises Full over the quota."""
        catalog, _ = await self._catalog(session_id)
        if blob_id in catalog:
            return None
        core.check_room(catalog, size, self._limits)
        return Intake(self._objects, session_id, ids.mint("obj"))

    async def keep(self, session_id: str, intake: Intake, media_type: str) -> BlobRef:
        """Names what was taken in."""
        await intake.end()
        return _ref(await self._name(session_id, intake.blob(media_type)))

    async def finish(self) -> None:
        """Waits until what failed uploads had stored is freed."""
        if self._freeing:
            await asyncio.wait(self._freeing)

    async def _take(
        self,
        first: UploadBlobRequest,
        requests: AsyncIterator[UploadBlobRequest],
        whole: Callable[[], Awaitable[bool]],
    ) -> BlobRef:
        session_id, media_type = first.session_id, first.media_type
        intake = Intake(self._objects, session_id, ids.mint("obj"))
        catalog, _ = await self._catalog(session_id)
        unnamed = True
        try:
            message: UploadBlobRequest | None = first
            while message is not None:
                _check_message(first, message)
                core.check_growth(catalog, media_type, intake.size + len(message.chunk), self._limits)
                await intake.take(message.chunk)
                message = await anext(requests, None)
            _check_end(first, intake.size, whole=await whole())
            await intake.end()
            unnamed = False  # from here on it may have its name even if the store does not say so
            kept = await self._name(session_id, intake.blob(media_type))
            unnamed = kept.object_id != intake.object_id
        except Full:
            unnamed = True
            raise
        finally:
            if unnamed and intake.size:
                self._free(session_id, intake.object_id, chunks_of(intake.size))
        return _ref(kept)

    async def _name(self, session_id: str, blob: Blob) -> Blob:
        """Writes a blob into the catalog, and returns what is there under its name: it, or the same from before."""
        for _ in range(MAX_TRIES):
            catalog, revision = await self._catalog(session_id)
            if blob.blob_id in catalog:
                return catalog[blob.blob_id]
            core.check_room(catalog, blob.size, self._limits)
            check_young(blob.object_id)
            text = core.spell({**catalog, blob.blob_id: blob})
            if await self._registry.swap(BUCKET, session_id, text, revision):
                return blob
        raise Unavailable("LOG_UNAVAILABLE", "too many others keep blobs in the session", retry_after=0.2)

    async def _named(self, session_id: str, blob_id: str) -> Blob:
        blob = (await self._catalog(session_id))[0].get(blob_id)
        if blob is None:
            raise _missing(blob_id, "no such blob in this session")
        return blob

    async def _catalog(self, session_id: str) -> tuple[dict[str, Blob], int]:
        entry = await self._registry.get(BUCKET, session_id)
        return (core.parse(entry.value), entry.revision) if entry else ({}, 0)

    def _free(self, session_id: str, object_id: str, chunks: int) -> None:
        """Frees in the background: the caller may be gone, and nobody waits."""

        async def free() -> None:
            try:
                await self._objects.free(session_id, object_id, chunks)
            except ServiceError as problem:
                _journal.warning("upload not freed", session_id=session_id, object_id=object_id, reason=problem.reason)

        task = asyncio.create_task(free())
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)


class Intake:
    """An object that is being written: whole chunks go to the store, the rest waits for more."""

    def __init__(self, objects: Objects, space: str, object_id: str) -> None:
        self.object_id = object_id
        self.size = 0
        self.digest = hashlib.sha256()
        self._objects = objects
        self._space = space
        self._rest = bytearray()
        self._chunks = 0

    async def take(self, data: bytes) -> None:
        """Takes the next bytes."""
        self.size += len(data)
        self.digest.update(data)
        self._rest += data
        while len(self._rest) >= CHUNK_BYTES:
            await self._put(CHUNK_BYTES)

    async def end(self) -> None:
        """Stores what is left."""
        if self._rest:
            await self._put(len(self._rest))

    def blob(self, media_type: str) -> Blob:
        """Returns what was taken in, as a blob."""
        sha256 = self.digest.hexdigest()
        return Blob(core.id_of(sha256, media_type), sha256, self.size, media_type, self.object_id)

    async def _put(self, size: int) -> None:
        chunk = bytes(self._rest[:size])
        del self._rest[:size]
        await self._objects.put(self._space, self.object_id, self._chunks, chunk)
        self._chunks += 1


def _check_end(first: UploadBlobRequest, size: int, *, whole: bool) -> None:
    if first.HasField("size") and first.size != size:
        raise Invalid("ARGUMENT_INVALID", f"the upload has {size} bytes, not {first.size}", field="size")
    if not whole:
        raise Unavailable("DRAINING", "the caller went away in the middle")  # nobody hears it


def _check_message(first: UploadBlobRequest, message: UploadBlobRequest) -> None:
    if message.session_id not in ("", first.session_id):
        raise Invalid("ARGUMENT_INVALID", "an upload goes into one session", field="session_id")
    if message.media_type not in ("", first.media_type):
        raise Invalid("ARGUMENT_INVALID", "a blob has one media type", field="media_type")
    if len(message.chunk) > core.MAX_CHUNK_BYTES:
        raise Invalid("ARGUMENT_INVALID", f"a chunk has at most {core.MAX_CHUNK_BYTES} bytes", field="chunk")


def _ref(blob: Blob) -> BlobRef:
    return BlobRef(blob_id=blob.blob_id, size=blob.size, sha256=blob.sha256, media_type=blob.media_type)


def _missing(blob_id: str, what: str) -> Gone:
    return Gone("BLOB_NOT_FOUND", f"{what}: {blob_id}", blob_id=blob_id)

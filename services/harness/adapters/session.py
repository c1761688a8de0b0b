"""SessionLog over `SessionService`: follows over reconnects, appends, and shows previews."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import grpc

from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import (
    DownloadBlobRequest,
    EmitEventsRequest,
    GetEventsRequest,
    GetSessionRequest,
    OfferWorkRequest,
    OfferWorkResponse,
    Preview,
    PublishPreviewsRequest,
    UploadBlobRequest,
    WatchEventsRequest,
)
from services.harness.adapters.codec import fact_of
from services.harness.core import BlobRef, Fact
from services.harness.ports import Appended, Page, Slice
from services.kit import tracing
from services.kit.channels import raised
from services.kit.errors import Conflict, Full, Unavailable
from services.kit.grants import GRANT_KEY
from services.kit.identity import TENANT_KEY
from services.kit.logs import Log

EMIT_SECONDS = 15.0
TRANSFER_SECONDS = 120.0  # of one blob, either way
CHUNK_BYTES = 512 * 1024  # of one message of an upload
RECONNECT_SECONDS = 0.2
PREVIEW_SECONDS = 0.02  # pieces are sent together for this long, but for the first
MAX_WAITING_PREVIEWS = 1_000
FLUSH_SECONDS = 0.1  # for what is left of an answer: the answer itself is about to be said
CLOSE_SECONDS = 1.0  # for what is left to send

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

_log = Log("services.harness.adapters.session")


async def offer(stub: SessionServiceAsyncStub, session_id: str, tenant: str | None) -> OfferWorkResponse:
    """Sees to it that a session which needs a harness is offered to one, if it is the tenant's, or for None anybody's.

    Raises Gone and Unavailable.
    """
    whose = ((TENANT_KEY, tenant),) if tenant is not None else ()
    try:
        return await stub.OfferWork(OfferWorkRequest(session_id=session_id), metadata=whose, timeout=EMIT_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None


async def tenant_of(stub: SessionServiceAsyncStub, session_id: str) -> str:
    """Returns the tenant of a session. Raises Gone and Unavailable."""
    try:
        answer = await stub.GetSession(GetSessionRequest(session_id=session_id), timeout=EMIT_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None
    return answer.session.config.tenant


class RemoteLog:
    """One session's log, on the other side of a channel (see `SessionLog`)."""

    def __init__(self, stub: SessionServiceAsyncStub, session_id: str, newest: Sequence[Event] = ()) -> None:
        self.session_id = session_id
        self.newest: Sequence[Fact] = [fact_of(event) for event in newest]
        self._stub = stub

    async def follow(self, start_position: int) -> AsyncIterator[Page]:
        """Yields the log from a position on (see `SessionLog.follow`)."""
        start = start_position
        while True:
            request = WatchEventsRequest(session_id=self.session_id, start_position=start)
            try:
                async for answer in self._stub.WatchEvents(request):
                    yield Page([fact_of(event) for event in answer.events], answer.last_position)
                    if answer.events:
                        start = answer.events[-1].position + 1
            except grpc.aio.AioRpcError as error:
                problem = raised(error)
                if not isinstance(problem, Unavailable | Full):
                    raise problem from None
                _log.warning("watch broke off", session_id=self.session_id, reason=problem.reason, resume=start)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        """Appends events in one step (see `SessionLog.emit`). They keep which work they belong to."""
        for event in events:
            if not event.traceparent:
                event.traceparent = tracing.current()
        request = EmitEventsRequest(
            session_id=self.session_id, events=events, epoch=epoch, expected_position=expected_position
        )
        call = self._stub.EmitEvents(request, timeout=EMIT_SECONDS)
        try:
            answer = await call
            trailing = await call.trailing_metadata()
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        grant = next((value for key, value in trailing or () if key == GRANT_KEY), "")
        grant = grant if isinstance(grant, str) else grant.decode()
        return Appended(answer.first_position, grant, answer.emit_time.ToNanoseconds())

    async def put_blob(self, data: bytes, media_type: str) -> BlobRef:
        """Keeps something big beside the log (see `SessionLog.put_blob`)."""

        async def messages() -> AsyncIterator[UploadBlobRequest]:
            for start in range(0, max(1, len(data)), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                yield UploadBlobRequest(session_id=self.session_id, media_type=media_type, chunk=chunk, size=len(data))

        try:
            blob = (await self._stub.UploadBlob(messages(), timeout=TRANSFER_SECONDS)).blob
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        return BlobRef(blob.blob_id, blob.media_type, blob.size, blob.sha256)

    async def get_blob(self, blob_id: str, max_bytes: int) -> bytes | None:
        """Returns what a blob holds (see `SessionLog.get_blob`)."""
        request = DownloadBlobRequest(session_id=self.session_id, blob_id=blob_id, length=max_bytes + 1)
        found = bytearray()
        try:
            async for answer in self._stub.DownloadBlob(request, timeout=TRANSFER_SECONDS):
                found += answer.chunk
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        return bytes(found) if len(found) <= max_bytes else None

    async def read(
        self, start: int, end: int, kinds: Sequence[str] = (), *, descending: bool = False, most: int = 0
    ) -> Slice:
        """Reads events (see `SessionLog.read`)."""
        request = GetEventsRequest(
            session_id=self.session_id,
            start_position=start,
            end_position=end,
            page_size=most,
            kinds=kinds,
            descending=descending,
        )
        try:
            answer = await self._stub.GetEvents(request, timeout=EMIT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        return Slice(answer.events, answer.next_position, answer.last_position)

    def previews(self, epoch: int) -> PreviewStream:
        """Opens a way to show previews."""
        return PreviewStream(self._stub, self.session_id, epoch)

    async def watched(self, epoch: int) -> bool:
        """Tells whether anybody is shown previews."""

        async def question() -> AsyncIterator[PublishPreviewsRequest]:
            yield PublishPreviewsRequest(session_id=self.session_id, epoch=epoch, ask_watched=True)

        try:
            return (await self._stub.PublishPreviews(question(), timeout=EMIT_SECONDS)).watched
        except grpc.aio.AioRpcError:
            return False


class PreviewStream:
    """Sends pieces in the background: the first at once, the others together every 20 ms (see `Previews`).

    The stream is opened before there is anything to send, and whose the session is is looked up with it: the first
    piece waits for neither. It is opened again when it breaks off; what was to be sent meanwhile is dropped.
    """

    def __init__(self, stub: SessionServiceAsyncStub, session_id: str, epoch: int) -> None:
        self._stub = stub
        self._first = PublishPreviewsRequest(session_id=session_id, epoch=epoch)
        self._pieces: list[Preview] = []
        self._news = asyncio.Event()
        self._flushed = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent.set()
        self._closed = False
        self._sender = asyncio.create_task(self._send(), name="previews")

    def show(self, preview: Preview) -> None:
        """Takes one piece."""
        if len(self._pieces) < MAX_WAITING_PREVIEWS:
            self._pieces.append(preview)
        self._flushed.clear()
        self._sent.clear()
        self._news.set()

    def drop(self) -> None:
        """Drops what is not on its way."""
        self._pieces.clear()
        self._sent.set()

    async def flush(self) -> None:
        """Sends what is left, and waits until it is on its way."""
        self._flushed.set()
        if not self._sent.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._sent.wait()

    async def close(self) -> None:
        """Sends what is left."""
        self._closed = True
        self._flushed.set()
        self._news.set()
        await asyncio.wait({self._sender}, timeout=CLOSE_SECONDS)
        self._sender.cancel()

    async def _requests(self) -> AsyncIterator[PublishPreviewsRequest]:
        yield self._first
        while True:
            await self._news.wait()
            self._news.clear()
            pieces, self._pieces = self._pieces, []
            if pieces:
                yield PublishPreviewsRequest(
                    session_id=self._first.session_id, epoch=self._first.epoch, previews=pieces
                )
            if not self._pieces:
                self._sent.set()
                if self._closed:
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PREVIEW_SECONDS):
                    await self._flushed.wait()  # the reply is said after the last piece: it does not wait for more

    async def _send(self) -> None:
        while not self._closed:
            try:
                await self._stub.PublishPreviews(self._requests())
            except grpc.aio.AioRpcError as error:
                problem = raised(error)
                _log.debug("previews dropped", session_id=self._first.session_id, reason=problem.reason)
                if isinstance(problem, Conflict):
                    return  # the session is another harness's
                await asyncio.sleep(RECONNECT_SECONDS)
                self._pieces.clear()

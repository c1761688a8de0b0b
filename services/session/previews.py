"""Takes previews of events from the harness that owns a session, and shows them to whoever watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from handmesh.session.v1.session_pb2 import PublishPreviewsRequest, PublishPreviewsResponse
from services.kit import metrics
from services.kit.errors import Conflict, Invalid
from services.session import counting
from services.session.watcher import Watcher
from services.session.writer import Writer

MAX_BYTES = 64 * 1024  # of one message
_ANSWERING = ("text", "thinking", "tool_input")
CHECK_SECONDS = 1.0  # between two looks at whose the session is


class Previews:
    """Passes previews on, and nothing of a harness that is no longer the session's."""

    def __init__(self, writer: Writer, watcher: Watcher) -> None:
        self._writer = writer
        self._watcher = watcher

    async def publish(self, requests: AsyncIterator[PublishPreviewsRequest]) -> PublishPreviewsResponse:
        """Passes on what comes, to its end, and tells how many pieces were dropped because they were too big.

        Where it is asked, also whether anybody is shown them. Raises Conflict (`EPOCH_STALE`) once a newer harness owns
        the session.
        """
        session_id, epoch, checked, dropped, asked = "", 0, 0.0, 0, False
        async for request in requests:
            if not session_id:
                session_id, epoch = request.session_id, request.epoch
            elif request.session_id not in ("", session_id):
                raise Invalid("ARGUMENT_INVALID", "one stream shows one session", field="session_id")
            now = asyncio.get_running_loop().time()
            if not checked or now - checked > CHECK_SECONDS:
                await self._check(session_id, epoch)
                checked = now
            asked = asked or request.ask_watched
            if not request.previews:
                continue  # it only opened the stream
            if request.ByteSize() > MAX_BYTES:
                dropped += len(request.previews)
            else:
                if metrics.is_on():
                    self._count(session_id, request)
                request.epoch = epoch  # read from the first message only
                await self._watcher.show(session_id, request)
        watched = asked and await self._watcher.shown(session_id)
        return PublishPreviewsResponse(dropped=dropped, watched=watched)

    def _count(self, session_id: str, request: PublishPreviewsRequest) -> None:
        """Counts how long a message waited for the first piece of its answer."""
        if any(piece.WhichOneof("delta") in _ANSWERING for piece in request.previews):
            state = self._writer.remembered(session_id)
            if state is not None:
                counting.first_byte(session_id, state, time.time_ns())

    async def _check(self, session_id: str, epoch: int) -> None:
        owner = (await self._writer.current(session_id)).epoch
        if epoch != owner or not epoch:
            raise Conflict("EPOCH_STALE", f"the session's epoch is {owner}, not {epoch}", epoch=owner)

"""What the reaper asks the session service: whether a session lives, and which have just ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc

from handmesh.session.v1 import session_pb2
from services.kit import channels
from services.kit.errors import Gone
from services.sandbox.reaper_core import Fate

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

ASK_SECONDS = 5.0  # for one question, with its retries


class SessionClient:
    """The session service, as the reaper needs it."""

    def __init__(self, stub: SessionServiceAsyncStub) -> None:
        """Asks nothing yet."""
        self._stub = stub

    async def fate(self, session_id: str) -> Fate:
        """Says what became of a session. Raises ServiceError for any answer that does not tell."""
        try:
            request = session_pb2.GetSessionRequest(session_id=session_id)
            session = (await self._stub.GetSession(request, timeout=ASK_SECONDS)).session
        except grpc.aio.AioRpcError as error:
            problem = channels.raised(error)
            if isinstance(problem, Gone) and problem.reason == "SESSION_NOT_FOUND":
                return Fate.MISSING
            raise problem from None
        over = session.archived or session.status == session_pb2.SESSION_STATUS_ENDED
        return Fate.OVER if over else Fate.LIVES

    async def endings(self) -> AsyncIterator[str]:
        """Yields the ids of sessions whose grants are void as a whole, as it happens; "" as a sign of life, at first.

        Raises ServiceError when the stream breaks: then some may have been missed.
        """
        try:
            async for news in self._stub.WatchRevocations(session_pb2.WatchRevocationsRequest()):
                if not news.below_epoch:  # else a newer harness owns the session, which goes on
                    yield news.session_id
        except grpc.aio.AioRpcError as error:
            raise channels.raised(error) from None

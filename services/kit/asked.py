"""The session service as the one who knows clients' credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc

from handmesh.session.v1 import session_pb2
from services.kit import channels
from services.kit.access import Scope
from services.kit.callers import Callers
from services.kit.errors import Unauthenticated
from services.kit.identity import Caller, CallerLimits, unknown

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

CHECK_SECONDS = 5.0  # for one question, with its retries


class SessionService:
    """A `Source` (see `callers`) that asks the session service."""

    def __init__(self, stub: SessionServiceAsyncStub) -> None:
        self._stub = stub

    async def ask(self, credential: str) -> Caller:
        """See `Source.ask`."""
        try:
            request = session_pb2.CheckCallerRequest(credential=credential)
            answer = await self._stub.CheckCaller(request, timeout=CHECK_SECONDS)
        except grpc.aio.AioRpcError as error:
            problem = channels.raised(error)
            raise unknown() if isinstance(problem, Unauthenticated) else problem from None
        return caller_of(answer)

    async def news(self) -> AsyncIterator[str]:
        """See `Source.news`."""
        heard = False
        try:
            async for news in self._stub.WatchRevocations(session_pb2.WatchRevocationsRequest()):
                if not heard:  # the first message: what happened before may have been missed
                    heard = True
                    yield ""
                if news.caller_id:
                    yield news.caller_id
        except grpc.aio.AioRpcError as error:
            raise channels.raised(error) from None


def callers(stub: SessionServiceAsyncStub) -> Callers:
    """Makes what tells clients by asking the session service."""
    return Callers(SessionService(stub))


def caller_of(answer: session_pb2.CheckCallerResponse) -> Caller:
    """Reads what the session service says of a credential."""
    limits = answer.limits
    return Caller(
        "client",
        answer.tenant,
        answer.name,
        id=answer.caller_id,
        scope=Scope(answer.scope),
        limits=CallerLimits(limits.calls_per_second, limits.burst, limits.calls, limits.streams),
        expires=answer.expire_time.ToNanoseconds() / 1e9 if answer.HasField("expire_time") else 0.0,
    )

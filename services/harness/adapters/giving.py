"""Giving hands away over `SandboxService` (see `mesh/hands.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1.session_pb2 import GetSessionRequest
from services.harness.mesh.hands import Known
from services.harness.ports import Standing
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

CALL_SECONDS = 10.0
GIVE_SECONDS = 90.0  # with the time that running executions have to end


class RemoteGiving:
    """Both services on the other side of channels (see `Giving`)."""

    def __init__(self, sandboxes: grpc.aio.Channel, sessions: SessionServiceAsyncStub) -> None:
        self._sandboxes = SandboxServiceStub(sandboxes)
        self._sessions = sessions

    async def hands_of(self, session_id: str) -> Sequence[Known]:
        """See `Giving.hands_of`."""
        request = pb.ListSandboxesRequest(session_id=session_id)
        try:
            found = (await self._sandboxes.ListSandboxes(request, timeout=CALL_SECONDS)).sandboxes
        except grpc.aio.AioRpcError as error:
            raise raised(error, "SANDBOX_UNAVAILABLE") from None
        return [Known(it.sandbox_id, it.session_id, it.hand, it.previous_session_id) for it in found]

    async def parent_of(self, session_id: str) -> str:
        """See `Giving.parent_of`."""
        try:
            answer = await self._sessions.GetSession(GetSessionRequest(session_id=session_id), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        return answer.session.config.parent_session_id

    async def give(self, sandbox_id: str, to_session_id: str, to_hand: str, under: Standing) -> None:
        """See `Giving.give`."""
        request = pb.TransferRequest(
            sandbox_id=sandbox_id, to_session_id=to_session_id, to_hand=to_hand, epoch=under.epoch
        )
        shown = ((GRANT_KEY, under.grant),)
        try:
            await self._sandboxes.Transfer(request, metadata=shown, timeout=GIVE_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, "SANDBOX_UNAVAILABLE") from None

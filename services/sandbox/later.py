"""Methods of the contract that this service does not have yet: each answers UNIMPLEMENTED."""

from __future__ import annotations

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceServicer
from services.kit.errors import Unimplemented
from services.kit.guard import Context


def _later(method: str) -> Unimplemented:
    return Unimplemented("UNIMPLEMENTED", f"{method} is not built yet")


class Later(SandboxServiceServicer):
    """Answers for what later issues build."""

    async def Transfer(self, request: pb.TransferRequest, context: Context) -> pb.TransferResponse:
        raise _later("Transfer")

"""Asks a service over gRPC whether it serves, the way any client or orchestrator would."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from handmesh.launcher.ports import HOST
from handmesh.launcher.processes import Process

if TYPE_CHECKING:
    import grpc.aio

CHECK_TIMEOUT = 2.0
"""Seconds for one answer."""


class Health:
    """Whether a started service serves on its client port. A context that keeps one channel for all its questions."""

    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self._port = port
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def serving(self) -> bool:
        """Returns True when the service as a whole answers SERVING; False for any other answer, or none."""
        # A channel that met a closed port waits a second before it tries again; so it is opened when the port is.
        if self._channel is None and not self._process.listens(self._port):
            return False
        import grpc.aio
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"{HOST}:{self._port}")
        stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_TIMEOUT)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

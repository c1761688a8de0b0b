"""The one error of the client, rebuilt from what the service said."""

from __future__ import annotations

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

DOMAIN = "handmesh"
DETAILS_KEY = "grpc-status-details-bin"


class HandmeshError(Exception):
    """A call failed. Branch on `reason`; `message` is for people and may change.

    `reason` is a name of `handmesh.error.v1.ErrorReason` without its prefix, or, when no service of the mesh
    answered, the gRPC status's name, such as `UNAVAILABLE`. `code` is always the status's name. `metadata` is what the
    reason's comment promises. `retry_after` is in seconds, None when the service does not say.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        metadata: dict[str, str] | None = None,
        *,
        code: str = "UNKNOWN",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{message} [{reason}]")
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}
        self.code = code
        self.retry_after = retry_after


def raised(error: grpc.aio.AioRpcError) -> HandmeshError:
    """Turns a failed call back into what the service said."""
    code = error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return _rebuilt(code, Status.FromString(value))
    return HandmeshError(code, error.details() or f"the call ended as {code}", code=code)


def _rebuilt(code: str, status: Status) -> HandmeshError:
    reason, metadata, retry_after = code, {}, None
    for detail in status.details:
        info, retry = ErrorInfo(), RetryInfo()
        if detail.Is(ErrorInfo.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Is(RetryInfo.DESCRIPTOR) and detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    message = status.message.removesuffix(f" [{reason}]")
    return HandmeshError(reason, message, metadata, code=code, retry_after=retry_after)

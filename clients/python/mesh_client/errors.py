"""The one error, rebuilt from the `google.rpc.ErrorInfo` that the mesh sends with a refusal."""

from __future__ import annotations

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

DOMAIN = "handmesh"
DETAILS_KEY = "grpc-status-details-bin"


class MeshError(Exception):
    """A call failed. Branch on `reason`, or on `code`; the text is for people and may change.

    `reason` is a name of `handmesh.error.v1.ErrorReason` without its prefix, and `metadata` what that reason's comment
    promises. When nobody of the mesh answered, `reason` is empty. `code` is the gRPC status's name.
    """

    def __init__(self, code: str, reason: str, text: str, metadata: dict[str, str] | None = None) -> None:
        super().__init__(f"{text} [{reason or code}]")
        self.code = code
        self.reason = reason
        self.metadata = metadata or {}


def raised(error: grpc.RpcError) -> MeshError:
    """Turns a failed call back into what the mesh said."""
    code, text = error.code().name, error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for detail in Status.FromString(value).details:
                info = ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return MeshError(code, info.reason, text, dict(info.metadata))
    return MeshError(code, "", text)

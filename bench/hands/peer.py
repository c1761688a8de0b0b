"""The server to compare with, as a process: `python -m bench.hands.peer` answers each Execute at once.

It has the sandbox service's port, certificates and options, and nothing around it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit.serving import _OPTIONS, until_signal

ANSWER = pb.ExecuteResponse(result=tool_pb2.ToolResult(output="hi", outcome=tool_pb2.TOOL_OUTCOME_OK))


async def execute(request: pb.ExecuteRequest, context: Any) -> pb.ExecuteResponse:
    """Answers as if `echo hi` had run."""
    return ANSWER


async def tools(request: pb.ListToolsRequest, context: Any) -> pb.ListToolsResponse:
    """Answers with nothing: whoever asks wants to know whether it serves."""
    return pb.ListToolsResponse()


async def serve() -> None:
    """Serves until SIGTERM."""
    server = grpc.aio.server(options=_OPTIONS)
    handlers: dict[str, Any] = {
        "Execute": grpc.unary_unary_rpc_method_handler(
            execute, pb.ExecuteRequest.FromString, pb.ExecuteResponse.SerializeToString
        ),
        "ListTools": grpc.unary_unary_rpc_method_handler(
            tools, pb.ListToolsRequest.FromString, pb.ListToolsResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("handmesh.sandbox.v1.SandboxService", handlers),)
    )
    folder = Path(os.environ["HANDMESH_TLS_DIR"])
    key, cert, ca = ((folder / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
    mutual = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    server.add_secure_port(os.environ["HANDMESH_LISTEN"], mutual)
    await server.start()
    await until_signal()
    await server.stop(None)


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())

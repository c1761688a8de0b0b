"""Servers over `VaultProxyService`: MCP tools, called with the session's grant."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.harness.adapters.results import result_of
from services.harness.core import ToolResult, ToolSpec
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY

LOOK_UP_SECONDS = 30.0
CANCEL_SECONDS = 10.0
UNAVAILABLE = "VAULT_PROXY_UNAVAILABLE"
# A proxy that has died has forgotten what it had sent: these calls are not made again by the channel.
ONCE = (("handmesh.vault_proxy.v1.VaultProxyService", "Execute"),)


class RemoteServers:
    """MCP servers on the other side of a channel (see `Servers`)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = VaultProxyServiceStub(channel)

    async def tools(self, grant: str) -> tuple[list[ToolSpec], list[tuple[str, str, str, str]]]:
        """Lists the tools of all servers, and what is missing."""
        try:
            answer = await self._stub.ListTools(pb.ListToolsRequest(), metadata=_shown(grant), timeout=LOOK_UP_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None
        tools = [
            ToolSpec(tool.name, tool.description, tool.input_schema_json, tool.idempotent, tool.read_only)
            for tool in answer.tools
        ]
        return tools, [(it.server, it.tool, it.reason, it.message) for it in answer.problems]

    async def execute(
        self, grant: str, tool: str, input: str, execution_id: str, attach_only: bool, offered: int
    ) -> ToolResult:
        """Runs a tool and waits."""
        request = pb.ExecuteRequest(
            name=tool, input=input, execution_id=execution_id, attach_only=attach_only, offered_position=offered
        )
        try:
            return result_of((await self._stub.Execute(request, metadata=_shown(grant))).result)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def follow(self, grant: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        """Yields what the server says of an execution's progress until it has ended."""
        request = pb.WatchExecutionRequest(execution_id=execution_id, offset=offset)
        try:
            async for said in self._stub.WatchExecution(request, metadata=_shown(grant)):
                if said.HasField("chunk"):
                    yield said.chunk, said.next_offset
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def cancel(self, grant: str, execution_id: str) -> None:
        """Asks the server to stop an execution."""
        request = pb.CancelExecutionRequest(execution_id=execution_id)
        try:
            await self._stub.CancelExecution(request, metadata=_shown(grant), timeout=CANCEL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None


def _shown(grant: str) -> tuple[tuple[str, str], ...]:
    return ((GRANT_KEY, grant),)

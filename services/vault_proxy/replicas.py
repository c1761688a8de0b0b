"""The other replicas of this service: what this one does not know, one of them may run.

A replica that asks is known by its certificate: then only what the asked one knows itself counts, nothing is started,
and nobody is asked further.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from handmesh.sandbox.v1 import tool_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit import channels
from services.kit.errors import ServiceError
from services.kit.grants import GRANT_KEY
from services.kit.logs import Log
from services.vault_proxy.core.answer import Answer, Outcome

if TYPE_CHECKING:
    from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceAsyncStub

CANCEL_SECONDS = 2.0
AWAY = "VAULT_PROXY_UNAVAILABLE"
_UNKNOWN = ("EXECUTION_UNKNOWN", AWAY)  # what a replica that does not know an execution says, or one that is gone
_ONCE = (("handmesh.vault_proxy.v1.VaultProxyService", "Execute"),)

_log = Log("services.vault_proxy.replicas")


class Replicas:
    """Asks replicas, each at an address `host:port`. Connects to none before the first question."""

    def __init__(self, addresses: Sequence[str], tls_dir: Path) -> None:
        self._stack = AsyncExitStack()
        self._stubs: list[tuple[str, VaultProxyServiceAsyncStub]] = []
        for address in addresses:
            channel = channels.connect(address, tls_dir, once=_ONCE)
            self._stack.push_async_callback(channel.close)
            self._stubs.append((address, VaultProxyServiceStub(channel)))

    async def attach(self, grant: str, name: str, input_: str, execution_id: str) -> Answer | None:
        """Waits for an execution that one of them runs or has run.

        Returns None when none knows it, or none is there, or there is no grant to ask with.

        Raises what the execution ended with.
        """
        request = pb.ExecuteRequest(name=name, input=input_, execution_id=execution_id, attach_only=True)
        asked = {asyncio.create_task(_attach(stub, request, grant)) for _, stub in self._stubs if grant}
        try:
            for answering in asyncio.as_completed(asked):
                answer = await answering
                if answer is not None:
                    return answer
            return None
        finally:
            for task in asked:
                task.cancel()

    async def cancel(self, grant: str, execution_id: str) -> None:
        """Has all of them cancel an execution; a replica that is gone has none. Without a grant none is asked."""
        request = pb.CancelExecutionRequest(execution_id=execution_id)

        async def ask(address: str, stub: Any) -> None:
            try:
                await stub.CancelExecution(request, metadata=((GRANT_KEY, grant),), timeout=CANCEL_SECONDS)
            except grpc.aio.AioRpcError as error:
                _log.warning("a replica does not cancel", replica=address, status=error.code().name)

        await asyncio.gather(*(ask(address, stub) for address, stub in self._stubs if grant))

    async def close(self) -> None:
        """Ends the connections."""
        await self._stack.aclose()


async def _attach(stub: Any, request: pb.ExecuteRequest, grant: str) -> Answer | None:
    try:
        return _answer((await stub.Execute(request, metadata=((GRANT_KEY, grant),))).result)
    except grpc.aio.AioRpcError as error:
        problem: ServiceError = channels.raised(error, AWAY)
        if problem.reason in _UNKNOWN:
            return None
        raise problem from None


def _answer(result: tool_pb2.ToolResult) -> Answer:
    outcome = Outcome(tool_pb2.ToolOutcome.Name(result.outcome).removeprefix("TOOL_OUTCOME_"))
    return Answer(result.output, outcome, result.content_json, result.truncated)

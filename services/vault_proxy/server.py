"""The gRPC face: messages to values, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc

from handmesh.sandbox.v1 import tool_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceServicer
from services.kit import identity, tracing
from services.kit.errors import Unauthenticated
from services.kit.grants import Grants, shown
from services.vault_proxy.connecting import Connecting
from services.vault_proxy.core.answer import Answer
from services.vault_proxy.core.catalog import OfferedTool, Problem
from services.vault_proxy.doors.messages import DOORS, policy_of, prepared_message
from services.vault_proxy.doors.reception import Reception
from services.vault_proxy.doors.visit import Visit
from services.vault_proxy.grants import Access, access_of
from services.vault_proxy.messages import (
    credential_message,
    draft_of,
    returned_of,
    started_message,
    vault_message,
    wish_of,
)
from services.vault_proxy.passes import GrantPass
from services.vault_proxy.secret import Secret
from services.vault_proxy.tools import Call, Tools
from services.vault_proxy.validation import Validation
from services.vault_proxy.vaults import Vaults

NAME = "handmesh.vault_proxy.v1.VaultProxyService"

Context = grpc.aio.ServicerContext[Any, Any]


class VaultProxy(VaultProxyServiceServicer):
    """The service."""

    def __init__(
        self,
        grants: Grants,
        tools: Tools,
        vaults: Vaults,
        reception: Reception,
        connecting: Connecting,
        validation: Validation,
    ) -> None:
        self._grants = grants
        self._tools = tools
        self._vaults = vaults
        self._reception = reception
        self._connecting = connecting
        self._validation = validation

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        catalog = await self._tools.list(await self._access(context), request.refresh)
        return pb.ListToolsResponse(
            tools=[_tool(each) for each in catalog.tools],
            problems=[_problem(each) for each in catalog.problems],
        )

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResponse:
        access = await self._access(context)
        replica = _is_replica()
        grant = "" if replica else shown(context.invocation_metadata())
        offered = partial(self._grants.offered, grant, request.offered_position) if request.offered_position else None
        attach_only = request.attach_only or replica
        call = Call(request.name, request.input, request.execution_id, attach_only, grant, offered)
        return pb.ExecuteResponse(result=_result(await self._tools.execute(access, call)))

    async def WatchExecution(
        self, request: pb.WatchExecutionRequest, context: Context
    ) -> AsyncIterator[pb.WatchExecutionResponse]:
        offset = request.offset
        watched = self._tools.watch(await self._access(context), request.execution_id, offset)
        async for each in watched:
            if isinstance(each, Answer):
                yield pb.WatchExecutionResponse(result=_result(each), next_offset=offset)
            else:
                offset += len(each)
                yield pb.WatchExecutionResponse(chunk=each, next_offset=offset)

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        grant = "" if _is_replica() else shown(context.invocation_metadata())
        await self._tools.cancel(await self._access(context), request.execution_id, grant)
        return pb.CancelExecutionResponse()

    async def CreateVault(self, request: pb.CreateVaultRequest, context: Context) -> pb.CreateVaultResponse:
        vault = await self._vaults.create_vault(_tenant(), request.request_id, request.name)
        return pb.CreateVaultResponse(vault=vault_message(vault))

    async def GetVault(self, request: pb.GetVaultRequest, context: Context) -> pb.GetVaultResponse:
        vault = await self._vaults.get_vault(_tenant(), request.vault_id)
        return pb.GetVaultResponse(vault=vault_message(vault))

    async def ListVaults(self, request: pb.ListVaultsRequest, context: Context) -> pb.ListVaultsResponse:
        vaults, token = await self._vaults.list_vaults(_tenant(), request.page_size, request.page_token)
        return pb.ListVaultsResponse(vaults=map(vault_message, vaults), next_page_token=token)

    async def ArchiveVault(self, request: pb.ArchiveVaultRequest, context: Context) -> pb.ArchiveVaultResponse:
        await self._vaults.archive_vault(_tenant(), request.vault_id)
        return pb.ArchiveVaultResponse()

    async def AddCredential(self, request: pb.AddCredentialRequest, context: Context) -> pb.AddCredentialResponse:
        draft = draft_of(request.secret)
        added = await self._vaults.add(_tenant(), request.vault_id, request.name, request.origin, draft)
        return pb.AddCredentialResponse(credential=credential_message(added))

    async def UpdateCredential(
        self, request: pb.UpdateCredentialRequest, context: Context
    ) -> pb.UpdateCredentialResponse:
        draft = draft_of(request.secret)
        updated = await self._vaults.update(_tenant(), request.credential_id, draft, request.expected_version)
        return pb.UpdateCredentialResponse(credential=credential_message(updated))

    async def ListCredentials(self, request: pb.ListCredentialsRequest, context: Context) -> pb.ListCredentialsResponse:
        found = await self._vaults.list_credentials(_tenant(), request.vault_id, request.include_archived)
        return pb.ListCredentialsResponse(credentials=map(credential_message, found))

    async def ArchiveCredential(
        self, request: pb.ArchiveCredentialRequest, context: Context
    ) -> pb.ArchiveCredentialResponse:
        await self._vaults.archive(_tenant(), request.credential_id)
        return pb.ArchiveCredentialResponse()

    async def PrepareDoors(self, request: pb.PrepareDoorsRequest, context: Context) -> pb.PrepareDoorsResponse:
        prepared = await self._reception.prepare(await self._access(context))
        return prepared_message(prepared)

    async def OpenDoor(self, request: pb.OpenDoorRequest, context: Context) -> pb.OpenDoorResponse:
        holds = partial(self._grants.holds, shown(context.invocation_metadata()))
        visit = Visit(await self._access(context), request.sandbox_id, policy_of(request.network), holds)
        ticket, address = self._reception.open(DOORS.get(request.kind, ""), visit)
        return pb.OpenDoorResponse(ticket=ticket, address=address)

    async def ValidateCredential(
        self, request: pb.ValidateCredentialRequest, context: Context
    ) -> pb.ValidateCredentialResponse:
        voucher = Secret(request.voucher)
        verdict = await self._validation.validate(_tenant(), request.credential_id, voucher, request.url)
        return pb.ValidateCredentialResponse(valid=verdict.valid, reason=verdict.reason, detail=verdict.detail)

    async def StartConnection(self, request: pb.StartConnectionRequest, context: Context) -> pb.StartConnectionResponse:
        started = await (await self._connecting.accounts()).start(_tenant(), wish_of(request))
        return started_message(started)

    async def FinishConnection(
        self, request: pb.FinishConnectionRequest, context: Context
    ) -> pb.FinishConnectionResponse:
        connected = await (await self._connecting.accounts()).finish(_tenant(), returned_of(request))
        return pb.FinishConnectionResponse(credential=credential_message(connected))

    async def _access(self, context: Context) -> Access:
        """Returns what the call's grant allows. A client's grant must be of the client's own tenant."""
        grant = shown(context.invocation_metadata())
        answer = await self._grants.check(grant)
        word = Secret(answer.vault_jwt) if answer.vault_jwt else None
        tracing.about(answer.session_id)
        access = access_of(answer, GrantPass(answer.session_id, answer.epoch, self._grants, Secret(grant), word))
        if identity.current().tenant not in (None, access.tenant):
            raise Unauthenticated("GRANT_INVALID", "the grant is not valid, or not any more")
        return access


def _is_replica() -> bool:
    """Says whether another replica asks: for what this one knows itself."""
    return identity.current().kind == "vault_proxy"


def _tenant() -> str:
    tenant = identity.current().tenant
    assert tenant is not None, "the access table lets only clients in"
    return tenant


def _tool(tool: OfferedTool) -> tool_pb2.Tool:
    return tool_pb2.Tool(
        name=tool.name,
        description=tool.description,
        input_schema_json=tool.input_schema_json,
        idempotent=tool.idempotent,
        read_only=tool.read_only,
    )


def _problem(problem: Problem) -> pb.ToolProblem:
    return pb.ToolProblem(server=problem.server, tool=problem.tool, reason=problem.reason, message=problem.message)


def _result(answer: Answer) -> tool_pb2.ToolResult:
    return tool_pb2.ToolResult(
        output=answer.output,
        outcome=tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{answer.outcome.value}"),
        content_json=answer.content_json,
        truncated=answer.truncated,
    )

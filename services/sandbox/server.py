"""SandboxService: messages in, sandboxes, messages out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit.errors import Invalid, Unimplemented
from services.kit.guard import Context
from services.sandbox.hand import Chunk, ExecutionInfo, File, Result, SandboxInfo
from services.sandbox.later import Later
from services.sandbox.sandboxes import Call, Sandboxes
from services.sandbox.seeds_rules import Repository
from services.sandbox.tools import Tool


class SandboxServicer(Later):
    """Serves `handmesh.sandbox.v1.SandboxService`."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        """Serves these sandboxes."""
        self._sandboxes = sandboxes

    async def Provision(self, request: pb.ProvisionRequest, context: Context) -> pb.ProvisionResponse:
        if request.checkpoint_id:
            raise Unimplemented("UNIMPLEMENTED", "starting from a checkpoint is not built yet")
        info = await self._sandboxes.provision(
            request.environment,
            request.session_id,
            request.hand,
            request.request_id,
            request.epoch,
            *_resources(request.resources),
        )
        return pb.ProvisionResponse(sandbox=_sandbox(info))

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResponse:
        call = Call(
            request.sandbox_id,
            request.name,
            request.input,
            request.execution_id,
            request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else None,
            request.epoch,
            request.attach_only,
        )
        return pb.ExecuteResponse(result=_result(await self._sandboxes.execute(call)))

    async def WatchExecution(
        self, request: pb.WatchExecutionRequest, context: Context
    ) -> AsyncIterator[pb.WatchExecutionResponse]:
        offset = request.offset
        async for said in self._sandboxes.watch(request.sandbox_id, request.execution_id, request.offset):
            if isinstance(said, Chunk):
                offset = said.next_offset
                yield pb.WatchExecutionResponse(chunk=said.text, next_offset=offset)
            else:
                yield pb.WatchExecutionResponse(result=_result(said), next_offset=offset)

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        _needed(request.execution_id)
        await self._sandboxes.cancel(request.sandbox_id, request.execution_id, request.epoch)
        return pb.CancelExecutionResponse()

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        known = await self._sandboxes.executions(request.sandbox_id)
        return pb.ListExecutionsResponse(executions=[_execution(execution) for execution in known])

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        if request.WhichOneof("of") == "sandbox_id":
            found = await self._sandboxes.tools_of(request.sandbox_id)
        else:
            found = self._sandboxes.tools_by_environment(request.environment)
        return pb.ListToolsResponse(
            tools=_tools(found.tools), environment=found.environment, environment_description=found.description
        )

    async def ListSandboxes(self, request: pb.ListSandboxesRequest, context: Context) -> pb.ListSandboxesResponse:
        found = await self._sandboxes.living(request.session_id)
        return pb.ListSandboxesResponse(sandboxes=[_sandbox(info) for info in found])

    async def ListEnvironments(
        self, request: pb.ListEnvironmentsRequest, context: Context
    ) -> pb.ListEnvironmentsResponse:
        answer = pb.ListEnvironmentsResponse()
        for found in await self._sandboxes.environments():
            recipe = found.recipe
            row = answer.environments.add(name=recipe.name, backend=recipe.backend, description=recipe.description)
            row.available, row.problem = not found.problem, found.problem
            row.pool, row.pool_free = recipe.pool, found.free
        return answer

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        await self._sandboxes.release(request.sandbox_id)
        return pb.ReleaseResponse()

    async def PutResources(self, request: pb.PutResourcesRequest, context: Context) -> pb.PutResourcesResponse:
        files, repositories = _resources(request.resources)
        await self._sandboxes.put(request.sandbox_id, files, request.epoch, repositories)
        return pb.PutResourcesResponse()


def _needed(execution_id: str) -> None:
    if not execution_id:
        raise Invalid("ID_INVALID", "execution_id is empty", field="execution_id")


def _resources(resources: Iterable[pb.Resource]) -> tuple[list[File], list[Repository]]:
    files, repositories = [], []
    for resource in resources:
        if resource.WhichOneof("source") == "git_repository":
            said = resource.git_repository
            repositories.append(Repository(resource.mount_path, said.url, said.ref))
        else:
            files.append(_file(resource))
    return files, repositories


def _file(resource: pb.Resource) -> File:
    match resource.WhichOneof("source"):
        case "file":
            mode = 0o755 if resource.file.executable else 0o644
            return File(resource.mount_path, resource.file.content, mode)
        case "log_view":
            return File(resource.mount_path, resource.log_view.json_lines, 0o444)
        case None:
            raise Invalid("RESOURCE_INVALID", "a resource says nothing", mount_path=resource.mount_path[:200])
        case kind:
            raise Unimplemented("UNIMPLEMENTED", f"resources of the kind {kind} are not built yet")


def _sandbox(info: SandboxInfo) -> pb.Sandbox:
    labels = info.labels
    sandbox = pb.Sandbox(
        sandbox_id=labels.sandbox_id,
        environment=labels.environment,
        backend=info.backend,
        session_id=labels.session_id,
        hand=labels.hand,
        request_id=labels.request_id,
        generation=labels.generation,
        unenforced_limits=info.unenforced_limits,
        pooled=bool(labels.pool),
    )
    sandbox.create_time.FromNanoseconds(int(labels.create_time * 1e9))
    return sandbox


def _execution(known: ExecutionInfo) -> pb.Execution:
    execution = pb.Execution(execution_id=known.execution_id, name=known.name, running=known.outcome is None)
    if known.outcome is not None:
        execution.outcome = tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{known.outcome.name}")
    execution.start_time.FromNanoseconds(int(known.start_time * 1e9))
    return execution


def _result(result: Result) -> tool_pb2.ToolResult:
    return tool_pb2.ToolResult(
        output=result.text,
        outcome=tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{result.outcome.name}"),
        content_json=result.content_json,
        truncated=result.truncated,
        exit_code=result.exit_code,
        signal=result.signal,
        spill_path=result.spill_path,
    )


def _tools(tools: Iterable[Tool]) -> list[tool_pb2.Tool]:
    return [
        tool_pb2.Tool(
            name=tool.name,
            description=tool.description,
            input_schema_json=json.dumps(tool.input_schema),
            idempotent=tool.idempotent,
            read_only=tool.read_only,
        )
        for tool in tools
    ]

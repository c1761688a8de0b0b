"""SandboxService: messages in, sandboxes, messages out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from services.kit.errors import Invalid
from services.kit.guard import Context
from services.kit.identity import current as caller
from services.sandbox import messages
from services.sandbox.dialled_server import WorkerCalls, Workers
from services.sandbox.hand import Chunk, SandboxInfo
from services.sandbox.leave import HARNESS, Leave
from services.sandbox.networks import described
from services.sandbox.owners import Owners
from services.sandbox.owners_core import Goal, Right, settle_seconds, transferred
from services.sandbox.resources import Resource
from services.sandbox.sandboxes import Call, Sandboxes, Wanted


class SandboxServicer(WorkerCalls):
    """Serves `handmesh.sandbox.v1.SandboxService`."""

    def __init__(self, sandboxes: Sandboxes, leave: Leave, workers: Workers, owners: Owners) -> None:
        """Serves these sandboxes to those who have leave, and takes workers in."""
        self._workers = workers
        self._sandboxes = sandboxes
        self._owners = owners
        self._leave = leave

    async def Provision(self, request: pb.ProvisionRequest, context: Context) -> pb.ProvisionResponse:
        await self._leave.to_provision(context, request.session_id, request.epoch)
        resources = tuple(messages.resource(it) for it in request.resources)
        await self._leave.to_mount(context, resources)
        if request.standing_hand:
            return pb.ProvisionResponse(sandbox=messages.sandbox(await self._attached(request, resources)))
        wanted = Wanted(
            request.environment,
            request.session_id,
            request.hand,
            request.request_id,
            request.epoch,
            resources,
            request.checkpoint_id,
            request.description,
        )
        info = await self._sandboxes.provision(wanted, caller().tenant, await self._leave.on_behalf(context))
        return pb.ProvisionResponse(sandbox=messages.sandbox(info))

    async def _attached(self, request: pb.ProvisionRequest, resources: Sequence[Resource]) -> SandboxInfo:
        if not request.session_id:
            raise Invalid("ARGUMENT_INVALID", "name the session that a standing hand is for", field="session_id")
        by_harness = caller().kind == HARNESS
        info = await self._owners.attach(
            request.session_id, request.hand, request.standing_hand, request.read_only, by_harness
        )
        if resources and not request.read_only:
            right = Right(request.session_id, generation=info.labels.generation)
            await self._sandboxes.put(info.labels.sandbox_id, resources, request.epoch, caller().tenant, right)
        return info

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResponse:
        right = await self._leave.to_execute(context, request.sandbox_id, request.epoch)
        call = Call(
            request.sandbox_id,
            request.name,
            request.input,
            request.execution_id,
            request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else None,
            request.epoch,
            request.attach_only,
        )
        return pb.ExecuteResponse(result=messages.result(await self._sandboxes.execute(call, right)))

    async def WatchExecution(
        self, request: pb.WatchExecutionRequest, context: Context
    ) -> AsyncIterator[pb.WatchExecutionResponse]:
        await self._leave.to_look(request.sandbox_id)
        offset = request.offset
        async for said in self._sandboxes.watch(request.sandbox_id, request.execution_id, request.offset):
            if isinstance(said, Chunk):
                offset = said.next_offset
                yield pb.WatchExecutionResponse(chunk=said.text, next_offset=offset)
            else:
                yield pb.WatchExecutionResponse(result=messages.result(said), next_offset=offset)

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        right = await self._leave.to_act(context, request.sandbox_id, request.epoch)
        messages.needed(request.execution_id)
        await self._sandboxes.cancel(request.sandbox_id, request.execution_id, request.epoch, right)
        return pb.CancelExecutionResponse()

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        await self._leave.to_look(request.sandbox_id)
        known = await self._sandboxes.executions(request.sandbox_id)
        return pb.ListExecutionsResponse(executions=[messages.execution(execution) for execution in known])

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        if request.WhichOneof("of") == "sandbox_id":
            await self._leave.to_look(request.sandbox_id)
            found = await self._sandboxes.tools_of(request.sandbox_id)
        elif request.WhichOneof("of") == "standing_hand":
            labels = await self._owners.standing(request.standing_hand, await self._leave.on_behalf(context))
            found = await self._sandboxes.tools_of(labels.sandbox_id)
        else:
            owner = await self._leave.on_behalf(context)
            found = self._sandboxes.tools_by_environment(request.environment, owner)
        return pb.ListToolsResponse(
            tools=messages.tools(found.tools), environment=found.environment, environment_description=found.description
        )

    async def ListSandboxes(self, request: pb.ListSandboxesRequest, context: Context) -> pb.ListSandboxesResponse:
        found = await self._leave.seen(await self._sandboxes.living(request.session_id))
        return pb.ListSandboxesResponse(sandboxes=[messages.sandbox(info) for info in found])

    async def ListEnvironments(
        self, request: pb.ListEnvironmentsRequest, context: Context
    ) -> pb.ListEnvironmentsResponse:
        answer = pb.ListEnvironmentsResponse()
        for found in await self._sandboxes.environments(await self._leave.on_behalf(context)):
            recipe = found.recipe
            row = answer.environments.add(name=recipe.name, backend=recipe.backend, description=described(recipe))
            row.available, row.problem = not found.problem, found.problem
            row.pool, row.pool_free = recipe.pool, found.free
        return answer

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        if await self._leave.to_release(context, request.sandbox_id):
            await self._sandboxes.release(request.sandbox_id)
        return pb.ReleaseResponse()

    async def ListFiles(self, request: pb.ListFilesRequest, context: Context) -> pb.ListFilesResponse:
        await self._leave.to_look(request.sandbox_id)
        found, more = await self._sandboxes.files(request.sandbox_id, request.path)
        return pb.ListFilesResponse(files=map(messages.file_info, found), truncated=more)

    async def ReadFile(self, request: pb.ReadFileRequest, context: Context) -> AsyncIterator[pb.ReadFileResponse]:
        await self._leave.to_look(request.sandbox_id)
        pieces = self._sandboxes.read_file(request.sandbox_id, request.path, request.offset)
        async with aclosing(pieces):
            async for piece in pieces:
                yield pb.ReadFileResponse(chunk=piece)

    async def PutResources(self, request: pb.PutResourcesRequest, context: Context) -> pb.PutResourcesResponse:
        right = await self._leave.to_act(context, request.sandbox_id, request.epoch)
        resources = [messages.resource(it) for it in request.resources]
        await self._leave.to_mount(context, resources)
        await self._sandboxes.put(request.sandbox_id, resources, request.epoch, caller().tenant, right)
        return pb.PutResourcesResponse()

    async def Checkpoint(self, request: pb.CheckpointRequest, context: Context) -> pb.CheckpointResponse:
        right = await self._leave.to_act(context, request.sandbox_id, request.epoch)
        kept = await self._sandboxes.checkpoint(request.sandbox_id, request.epoch, caller().tenant, right)
        return pb.CheckpointResponse(checkpoint_id=kept)

    async def Transfer(self, request: pb.TransferRequest, context: Context) -> pb.TransferResponse:
        seconds = settle_seconds(
            request.settle_timeout.ToNanoseconds() / 1e9 if request.HasField("settle_timeout") else None
        )
        right = await self._leave.to_hand_over(context, request.sandbox_id, request.epoch)
        goal = Goal(request.to_session_id, request.to_hand)
        if right.past:
            info = await self._owners.transferred(request.sandbox_id, goal, right.past)
        else:
            expected = request.expected_generation
            info = await self._owners.transfer(request.sandbox_id, goal, expected, seconds, right.session_id)
        return pb.TransferResponse(sandbox=messages.sandbox(info))

    async def ShareHand(self, request: pb.ShareHandRequest, context: Context) -> pb.ShareHandResponse:
        right = await self._leave.to_hand_over(context, request.sandbox_id, request.epoch)
        if right.past:
            raise transferred((await self._sandboxes.found(request.sandbox_id)).labels)
        if request.revoke:
            info = await self._owners.shares.unshare(request.sandbox_id, request.session_id)
        else:
            by = right.session_id
            info = await self._owners.shares.share(request.sandbox_id, request.session_id, request.hand, by)
        return pb.ShareHandResponse(sandbox=messages.sandbox(info))

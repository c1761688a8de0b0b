"""Hands over `SandboxService`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1.config_pb2 import HandSpec
from services.harness.adapters.results import result_of
from services.harness.core import ToolResult, ToolSpec
from services.harness.ports import Sandbox, Standing, Toolbox
from services.kit.channels import raised
from services.kit.errors import Exists
from services.kit.grants import GRANT_KEY

LOOK_UP_SECONDS = 10.0
PROVISION_SECONDS = 300.0
CANCEL_SECONDS = 10.0
PUT_SECONDS = 30.0
RELEASE_SECONDS = 30.0
DESCRIPTION_CHARACTERS = 1_000  # that the sandbox service takes
UNAVAILABLE = "SANDBOX_UNAVAILABLE"


class RemoteHands:
    """Sandboxes on the other side of a channel (see `Hands`)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = SandboxServiceStub(channel)

    async def tools(self, spec: bytes, under: Standing, sandbox_id: str = "") -> Toolbox:
        """Lists the tools that the hand has, or will have. The grant says whose hands may be meant by a name."""
        wanted = HandSpec.FromString(spec)
        request = pb.ListToolsRequest(environment=wanted.environment)
        if sandbox_id:
            request = pb.ListToolsRequest(sandbox_id=sandbox_id)
        elif wanted.standing_hand:
            request = pb.ListToolsRequest(standing_hand=wanted.standing_hand)
        try:
            answer = await self._stub.ListTools(request, metadata=_shown(under), timeout=LOOK_UP_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None
        tools = [
            ToolSpec(tool.name, tool.description, tool.input_schema_json, tool.idempotent, tool.read_only)
            for tool in answer.tools
            if tool.read_only or not wanted.read_only
        ]
        about = [part for part in (wanted.description.strip(), answer.environment_description.strip()) if part]
        return Toolbox(tools, answer.environment, " ".join(about))

    async def provision(self, session_id: str, hand: str, spec: bytes, generation: int, under: Standing) -> Sandbox:
        """Makes the hand's sandbox, or finds the one that nobody was told of; a standing hand is attached.

        When that is one of another environment, for the session was changed since, it goes: the log does not name it.
        """
        wanted = HandSpec.FromString(spec)
        request = pb.ProvisionRequest(
            environment=wanted.environment,
            resources=wanted.resources,
            request_id=f"{session_id}/{hand}/{generation}",
            session_id=session_id,
            epoch=under.epoch,
            hand=hand,
            description=wanted.description[:DESCRIPTION_CHARACTERS],
        )
        if wanted.standing_hand:
            request.ClearField("request_id")
            request.standing_hand, request.read_only = wanted.standing_hand, wanted.read_only
            came = await self._provision(request, under)
            return Sandbox(came.sandbox_id, came.environment, tuple(came.unenforced_limits), attached=True)
        try:
            made = await self._provision(request, under)
        except Exists:
            await self._release(session_id, request.request_id, under)
            made = await self._provision(request, under)
        return Sandbox(made.sandbox_id, made.environment, tuple(made.unenforced_limits))

    async def _provision(self, request: pb.ProvisionRequest, under: Standing) -> pb.Sandbox:
        try:
            return (await self._stub.Provision(request, metadata=_shown(under), timeout=PROVISION_SECONDS)).sandbox
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def _release(self, session_id: str, request_id: str, under: Standing) -> None:
        wanted = pb.ListSandboxesRequest(session_id=session_id)
        try:
            found = (await self._stub.ListSandboxes(wanted, timeout=LOOK_UP_SECONDS)).sandboxes
            for sandbox in found:
                if sandbox.request_id == request_id:
                    gone = pb.ReleaseRequest(sandbox_id=sandbox.sandbox_id)
                    await self._stub.Release(gone, metadata=_shown(under), timeout=RELEASE_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def execute(self, sandbox_id: str, tool: str, input: str, execution_id: str, under: Standing) -> ToolResult:
        """Runs a tool once and waits for its result: as long as the environment lets it run."""
        request = pb.ExecuteRequest(
            sandbox_id=sandbox_id, name=tool, input=input, execution_id=execution_id, epoch=under.epoch
        )
        try:
            return result_of((await self._stub.Execute(request, metadata=_shown(under))).result)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def follow(self, sandbox_id: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        """Yields what an execution says until it has ended."""
        request = pb.WatchExecutionRequest(sandbox_id=sandbox_id, execution_id=execution_id, offset=offset)
        try:
            async for said in self._stub.WatchExecution(request):
                if said.HasField("chunk"):
                    yield said.chunk, said.next_offset
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def extend(self, sandbox_id: str, path: str, piece: bytes, offset: int, under: Standing) -> None:
        """Puts a piece of the log behind what a file has."""
        view = pb.Resource(mount_path=path, log_view=pb.LogView(json_lines=piece, offset=offset))
        request = pb.PutResourcesRequest(sandbox_id=sandbox_id, resources=[view], epoch=under.epoch)
        try:
            await self._stub.PutResources(request, metadata=_shown(under), timeout=PUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None

    async def end_of(self, sandbox_id: str, path: str, most: int) -> tuple[int, bytes]:
        """Returns a file's size and its end."""
        end = bytearray()
        try:
            listed = await self._stub.ListFiles(
                pb.ListFilesRequest(sandbox_id=sandbox_id, path=path), timeout=LOOK_UP_SECONDS
            )
            size = next((file.size for file in listed.files if file.path == path), 0)
            if size:
                wanted = pb.ReadFileRequest(sandbox_id=sandbox_id, path=path, offset=max(0, size - most))
                async for answer in self._stub.ReadFile(wanted, timeout=PUT_SECONDS):
                    end += answer.chunk
        except grpc.aio.AioRpcError as error:
            problem = raised(error, UNAVAILABLE)
            if problem.reason != "FILE_NOT_FOUND":
                raise problem from None
            return 0, b""
        return size, bytes(end[:most])

    async def cancel(self, sandbox_id: str, execution_id: str, under: Standing) -> None:
        """Kills an execution."""
        request = pb.CancelExecutionRequest(sandbox_id=sandbox_id, execution_id=execution_id, epoch=under.epoch)
        try:
            await self._stub.CancelExecution(request, metadata=_shown(under), timeout=CANCEL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error, UNAVAILABLE) from None


def _shown(under: Standing) -> tuple[tuple[str, str], ...]:
    return ((GRANT_KEY, under.grant),)

"""A session's sandbox is for its own tenant's clients: to others it is not there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub, add_SandboxServiceServicer_to_server
from services.kit.channels import raised
from services.kit.errors import Gone
from services.sandbox.backends import Backends
from services.sandbox.dialled_server import Workers
from services.sandbox.environments import BUILT_IN
from services.sandbox.hand import HandSettings
from services.sandbox.hand_tokens import NoTokens
from services.sandbox.leave import Leave
from services.sandbox.sandboxes import Sandboxes, Wanted
from services.sandbox.server import SandboxServicer
from tests.support.git import planting
from tests.support.mesh_server import served
from tests.support.owners import owners

MINE, THEIRS, NOBODYS = (f"sess_{digit * 26}" for digit in "012")
TENANTS = {MINE: "default", THEIRS: "other"}


class Tenants:
    """A session service that knows tenants, and nothing else."""

    async def tenant_of(self, session_id: str) -> str:
        if session_id not in TENANTS:
            raise Gone("SESSION_NOT_FOUND", "there is no such session")
        return TENANTS[session_id]


@dataclass
class World:
    """The service as a client of the tenant `default` sees it, and what is behind it."""

    stub: Any
    mesh: Any  # the same for a harness
    sandboxes: Sandboxes

    async def make(self, session_id: str) -> str:
        """Makes a session's sandbox behind the service's back."""
        made = await self.sandboxes.provision(Wanted("process", session_id, "main", f"{session_id}/main/1", 1, ()))
        return made.labels.sandbox_id


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Sandboxes that are plain processes."""
    backends = Backends(HandSettings(tmp_path / "state", allow_unisolated=True))
    sandboxes = Sandboxes(backends, BUILT_IN, planting=planting(tmp_path))
    workers = Workers(backends, BUILT_IN, NoTokens())
    servicer = SandboxServicer(sandboxes, Leave(backends, Tenants()), workers, owners(backends))  # type: ignore[arg-type]
    add = lambda server: add_SandboxServiceServicer_to_server(servicer, server)  # noqa: E731
    async with served(tmp_path, "sandbox", add, "handmesh.sandbox.v1.SandboxService") as it:
        async with it.as_client() as channel, it.as_service("harness") as meshed:
            yield World(SandboxServiceStub(channel), SandboxServiceStub(meshed), sandboxes)
        for info in await sandboxes.living(""):
            await sandboxes.release(info.labels.sandbox_id)
    await backends.close()


CALLS = {
    "Execute": lambda it: pb.ExecuteRequest(sandbox_id=it, name="bash", input='{"command": "true"}'),
    "WatchExecution": lambda it: pb.WatchExecutionRequest(sandbox_id=it, execution_id="x"),
    "CancelExecution": lambda it: pb.CancelExecutionRequest(sandbox_id=it, execution_id="x"),
    "ListExecutions": lambda it: pb.ListExecutionsRequest(sandbox_id=it),
    "ListTools": lambda it: pb.ListToolsRequest(sandbox_id=it),
    "ListFiles": lambda it: pb.ListFilesRequest(sandbox_id=it),
    "ReadFile": lambda it: pb.ReadFileRequest(sandbox_id=it, path="/workspace/a"),
    "PutResources": lambda it: pb.PutResourcesRequest(sandbox_id=it),
    "Checkpoint": lambda it: pb.CheckpointRequest(sandbox_id=it),
}


async def reason(call: Any) -> str:
    """Returns why a call is refused, or nothing."""
    try:
        if isinstance(call, AsyncGenerator) or hasattr(call, "__aiter__"):
            _ = [said async for said in call]
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return raised(error).reason
    return ""


@pytest.mark.parametrize("method", CALLS)
async def test_another_tenants_sandbox_is_not_there(world: World, method: str) -> None:
    """Nor is one of a session that is not there: every call about it says `SANDBOX_GONE`, or that much less."""
    for session_id, told in ((THEIRS, {"SANDBOX_GONE"}), (NOBODYS, {"SANDBOX_GONE", "SESSION_NOT_FOUND"})):
        sandbox_id = await world.make(session_id)
        assert await reason(getattr(world.stub, method)(CALLS[method](sandbox_id))) in told
    assert await world.sandboxes.executions(await world.make(THEIRS)) == ()


async def test_ones_own_and_nobodys_are(world: World) -> None:
    """A session's of the client's tenant, and one without a session."""
    made = (await world.stub.Provision(pb.ProvisionRequest(environment="process"))).sandbox
    for sandbox_id in (await world.make(MINE), made.sandbox_id):
        assert await reason(world.stub.Execute(CALLS["Execute"](sandbox_id))) == ""


async def test_another_tenants_is_not_released(world: World) -> None:
    """The call is answered as for one that is gone already, and the sandbox stays."""
    mine, theirs = await world.make(MINE), await world.make(THEIRS)
    for sandbox_id in (mine, theirs):
        await world.stub.Release(pb.ReleaseRequest(sandbox_id=sandbox_id))
    assert [info.labels.sandbox_id for info in await world.sandboxes.living("")] == [theirs]


async def test_nothing_is_made_for_another_tenants_session(world: World) -> None:
    """Provisioning says that there is no such session."""
    wanted = pb.ProvisionRequest(environment="process", session_id=THEIRS, request_id="r", hand="main")
    assert await reason(world.stub.Provision(wanted)) == "SESSION_NOT_FOUND"


async def test_only_ones_own_are_listed(world: World) -> None:
    """Not another tenant's, not those of a session that is gone, and no free one; a service of the mesh sees all."""
    made = (await world.stub.Provision(pb.ProvisionRequest(environment="process"))).sandbox.sandbox_id
    mine, theirs, nobodys = [await world.make(session_id) for session_id in (MINE, THEIRS, NOBODYS)]
    other = (await world.sandboxes.provision(Wanted("process"), "other")).labels.sandbox_id
    found = (await world.stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes
    assert {each.sandbox_id for each in found} == {made, mine}
    assert not (await world.stub.ListSandboxes(pb.ListSandboxesRequest(session_id=THEIRS))).sandboxes
    found = (await world.mesh.ListSandboxes(pb.ListSandboxesRequest())).sandboxes
    assert {each.sandbox_id for each in found} == {made, mine, theirs, nobodys, other}


async def test_another_tenants_without_a_session_is_not_there(world: World) -> None:
    """Its id is of no use, nor is the request that made it."""
    made = (await world.sandboxes.provision(Wanted("process", request_id="r"), "other")).labels.sandbox_id
    assert await reason(world.stub.Execute(CALLS["Execute"](made))) == "SANDBOX_GONE"
    wanted = pb.ProvisionRequest(environment="process", request_id="r")
    assert await reason(world.stub.Provision(wanted)) == "REQUEST_ID_REUSED"

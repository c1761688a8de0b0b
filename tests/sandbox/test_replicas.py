"""Two replicas of the sandbox service: each has its sandboxes, and either answers for both."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.replicas.ranking import sign
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub, add_SandboxServiceServicer_to_server
from services.kit import settings
from services.kit.channels import connect
from services.kit.errors import Unavailable
from services.kit.identity import FORWARDED_KEY
from services.kit.ids import mint
from services.kit.serving import Server
from services.sandbox.backends import Backends
from services.sandbox.dialled_server import Workers
from services.sandbox.environments import BUILT_IN
from services.sandbox.forwarding import Forwarding
from services.sandbox.hand import HandSettings
from services.sandbox.hand_tokens import NoTokens
from services.sandbox.leave import Leave
from services.sandbox.replicas import Replicas
from services.sandbox.sandboxes import Sandboxes
from services.sandbox.server import SandboxServicer
from tests.sandbox.test_server import bash, provisioned, refused
from tests.support.git import planting
from tests.support.mesh_server import Served
from tests.support.owners import owners

NAME = "handmesh.sandbox.v1.SandboxService"


@dataclass
class Replica:
    """One replica, and how a client and the harness see it."""

    node: str
    server: Server
    sandboxes: Sandboxes
    client: Any
    harness: Any

    def owns(self, sandbox_id: str) -> bool:
        """Says whether a sandbox's id names it."""
        return sandbox_id.endswith(sign(self.node))


async def _replica(data: Path, number: int, addresses: list[str], stack: AsyncExitStack, **limits: int) -> Replica:
    node = addresses[number]
    peers = Replicas(node, addresses, data / "tls" / "sandbox")
    backends = Backends(HandSettings(data / f"state-{number}", allow_unisolated=True), node)
    sandboxes = Sandboxes(backends, BUILT_IN, planting=planting(data))
    servicer = SandboxServicer(sandboxes, Leave(backends), Workers(backends, BUILT_IN, NoTokens()), owners(backends))
    mesh = settings.Mesh(node, "127.0.0.1:0", data / "tls" / "sandbox", data / "api_keys.json", "info", **limits)
    server = Server(mesh, forwards="sandbox", within=[Forwarding(peers, BUILT_IN.recipes)])
    add_SandboxServiceServicer_to_server(servicer, server.grpc)
    await server.start(NAME)
    key = (data / "client" / "api_key").read_text().strip()
    client = Served(node, server.addresses[1] or "", data / "tls", key).as_client()
    harness = connect(node, data / "tls" / "harness")
    for end in (backends.close, lambda: server.stop(0), peers.close, client.close, harness.close):
        stack.push_async_callback(end)
    return Replica(node, server, sandboxes, SandboxServiceStub(client), SandboxServiceStub(harness))


@pytest.fixture
def limits() -> dict[str, int]:
    """What the second replica allows a client, where a test says so."""
    return {}


@pytest.fixture
async def two(tmp_path: Path, limits: dict[str, int]) -> AsyncIterator[list[Replica]]:
    """Two replicas whose sandboxes are plain processes; at the end none is left."""
    ensure_certificates(tmp_path / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    ensure_api_key(tmp_path)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    async with AsyncExitStack() as stack:
        replicas = [
            await _replica(tmp_path, 0, addresses, stack),
            await _replica(tmp_path, 1, addresses, stack, **limits),
        ]
        yield replicas
        for replica in replicas:
            for info in await replica.sandboxes.living(""):
                await replica.sandboxes.release(info.labels.sandbox_id)


async def test_either_replica_does_everything_with_a_sandbox(two: list[Replica]) -> None:
    """Its id names who made it; the other one runs commands in it, streams what they say, lists and reads its files,
    and releases it. Errors come as the owner said them. Lists are of both."""
    one, other = two
    sandbox_id = await provisioned(one.client)
    assert one.owns(sandbox_id) and not other.owns(sandbox_id)
    for stub in (other.client, other.harness):
        said = await stub.Execute(bash(sandbox_id, "echo hello > note; cat note", execution_id=mint("exec")))
        assert said.result.output == "hello"
    await other.client.PutResources(
        pb.PutResourcesRequest(
            sandbox_id=sandbox_id, resources=[pb.Resource(mount_path="/workspace/x", file=pb.File(content=b"x" * 9))]
        )
    )
    listed = await other.client.ListFiles(pb.ListFilesRequest(sandbox_id=sandbox_id))
    assert [file.path for file in listed.files] == ["/workspace/note", "/workspace/x"]
    read = other.client.ReadFile(pb.ReadFileRequest(sandbox_id=sandbox_id, path="/workspace/x"))
    assert b"".join([piece.chunk async for piece in read]) == b"x" * 9
    execution_id = mint("exec")
    await other.client.Execute(bash(sandbox_id, "echo watched", execution_id=execution_id))
    watched = other.client.WatchExecution(pb.WatchExecutionRequest(sandbox_id=sandbox_id, execution_id=execution_id))
    assert "watched" in "".join([said.chunk async for said in watched])
    await refused(
        other.client.Execute(pb.ExecuteRequest(sandbox_id=sandbox_id, name="no")), "INVALID_ARGUMENT", "TOOL_UNKNOWN"
    )
    missing = pb.ReadFileRequest(sandbox_id=sandbox_id, path="/workspace/none")
    await refused(other.client.ReadFile(missing), "NOT_FOUND", "FILE_NOT_FOUND")
    mine = await provisioned(other.client)
    for stub in (one.client, other.client):
        found = (await stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes
        assert [each.sandbox_id for each in found] == [sandbox_id, mine]
        names = [row.name for row in (await stub.ListEnvironments(pb.ListEnvironmentsRequest())).environments]
        assert names == sorted(set(names))
    await other.client.Release(pb.ReleaseRequest(sandbox_id=sandbox_id))
    await refused(other.client.Execute(bash(sandbox_id, "true")), "NOT_FOUND", "SANDBOX_GONE")
    assert [it.labels.sandbox_id for it in await one.sandboxes.living("")] == []


async def test_a_request_makes_one_sandbox_whichever_replica_hears_it(two: list[Replica]) -> None:
    """A request that is said again to the other replica, for its answer was lost, is answered with the same sandbox."""
    one, other = two
    request_id = "sess_0/main/1"
    made = await provisioned(one.client, request_id=request_id)
    assert await provisioned(other.client, request_id=request_id) == made
    assert await provisioned(one.client, request_id=request_id) == made
    assert await provisioned(other.client, request_id="sess_0/main/2") != made


async def test_a_standing_hand_is_made_once_whichever_replica_hears_of_it(two: list[Replica]) -> None:
    """A hand outside of sessions is known by its name at all replicas: there is one of that name."""
    one, other = two
    made = await provisioned(one.client, hand="desk")
    assert await provisioned(other.client, hand="desk") == made
    assert await provisioned(other.client, hand="bench") != made


async def test_a_sandbox_of_a_replica_that_is_away_is_not_gone(two: list[Replica]) -> None:
    """The other replica says that it does not answer, and when to ask again; the sandbox is there when it is back. What
    no replica has is gone all the same, also while one is away; a list is of those that answer."""
    one, other = two
    sandbox_id, mine = await provisioned(one.client), await provisioned(other.client)
    await one.server.stop(0)
    with pytest.raises(grpc.aio.AioRpcError) as away:
        await asyncio.wait_for(other.harness.Execute(bash(sandbox_id, "true", execution_id="x")), 20)
    assert away.value.code() is grpc.StatusCode.UNAVAILABLE
    await other.client.Release(pb.ReleaseRequest(sandbox_id=mine))
    await refused(other.client.Execute(bash(mine, "true")), "NOT_FOUND", "SANDBOX_GONE")
    assert list((await other.client.ListSandboxes(pb.ListSandboxesRequest())).sandboxes) == []


async def test_what_is_handed_on_has_no_more_rights_than_who_said_it(two: list[Replica]) -> None:
    """A replica's word for a caller is taken from a replica alone, and it is no word for a key: a client that shows
    none, or the harness that says it is one handed on, is whoever it is."""
    one, _ = two
    sandbox_id = await provisioned(one.client)
    listing = pb.ListFilesRequest(sandbox_id=sandbox_id)
    answer = await one.harness.ListFiles(listing, metadata=((FORWARDED_KEY, "client"),))
    assert json.dumps([file.path for file in answer.files]) == "[]"  # still the harness: it has no key
    async with connect(one.node, Path(one.server._mesh.tls_dir)) as channel:  # as a replica does
        stub = SandboxServiceStub(channel)
        await refused(stub.ListFiles(listing), "PERMISSION_DENIED", "METHOD_DENIED")
        await refused(
            stub.ListFiles(listing, metadata=((FORWARDED_KEY, "client"),)), "UNAUTHENTICATED", "IDENTITY_UNKNOWN"
        )
        forged = ((FORWARDED_KEY, "client"), ("authorization", "Bearer hmk_forged"))
        await refused(stub.ListFiles(listing, metadata=forged), "UNAUTHENTICATED", "IDENTITY_UNKNOWN")


async def test_a_client_does_not_say_that_its_call_was_handed_on(two: list[Replica]) -> None:
    """Such a word counts from a replica alone: a client that says so has its sandbox released where that is."""
    one, other = two
    sandbox_id = await provisioned(one.client)
    await other.client.Release(pb.ReleaseRequest(sandbox_id=sandbox_id), metadata=((FORWARDED_KEY, "client"),))
    assert [it.labels.sandbox_id for it in await one.sandboxes.living("")] == []


@pytest.mark.parametrize("limits", [{"caller_calls_per_second": 1, "caller_burst": 1}])
async def test_a_call_that_is_handed_on_is_counted_where_it_came(two: list[Replica]) -> None:
    """A client's rate is not used up by what replicas ask each other for it: else one of them says nothing, and a
    request that is said again makes a second sandbox."""
    one, other = two
    made = await provisioned(other.client, request_id="sess_0/main/1")
    for _ in range(3):
        assert await provisioned(one.client, request_id="sess_0/main/1") == made
        found = (await one.client.ListSandboxes(pb.ListSandboxesRequest())).sandboxes
        assert [each.sandbox_id for each in found] == [made]
    await one.client.Release(pb.ReleaseRequest(sandbox_id=made))


async def test_what_may_have_begun_is_not_handed_on_again(two: list[Replica], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without an id that its owner could not end is the caller's to say again: it would run twice."""
    one, other = two
    sandbox_id, asked = await provisioned(one.client), 0

    async def fails(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        raise Unavailable("BACKEND_UNAVAILABLE", "it may have run")

    monkeypatch.setattr(one.sandboxes, "execute", fails)
    await refused(other.client.Execute(bash(sandbox_id, "true")), "UNAVAILABLE", "BACKEND_UNAVAILABLE")
    assert asked == 1

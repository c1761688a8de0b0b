"""The service on the wire, over sandboxes that are plain processes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub, add_SandboxServiceServicer_to_server
from services.kit.guard import DETAILS_KEY
from services.kit.ids import mint
from services.sandbox.backends import Backends
from services.sandbox.dialled_server import Workers
from services.sandbox.environments import BUILT_IN
from services.sandbox.hand import HandSettings
from services.sandbox.hand_tokens import NoTokens
from services.sandbox.leave import Leave
from services.sandbox.sandboxes import Sandboxes
from services.sandbox.server import SandboxServicer
from tests.support.git import planting
from tests.support.mesh_server import served
from tests.support.owners import owners

NAME = "handmesh.sandbox.v1.SandboxService"
TOO_LARGE = pb.File(content=bytes((1 << 20) + 1))
OK, TOOL_ERROR, INTERRUPTED = (
    getattr(tool_pb2, f"TOOL_OUTCOME_{name}") for name in ("OK", "TOOL_ERROR", "INTERRUPTED")
)


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[Any]:
    """The service, as a client with an API key sees it; its sandboxes are released at the end."""
    backends = Backends(HandSettings(tmp_path / "state", allow_unisolated=True))
    sandboxes = Sandboxes(backends, BUILT_IN, planting=planting(tmp_path))
    servicer = SandboxServicer(sandboxes, Leave(backends), Workers(backends, BUILT_IN, NoTokens()), owners(backends))
    async with served(
        tmp_path, "sandbox", lambda server: add_SandboxServiceServicer_to_server(servicer, server), NAME
    ) as it:
        async with it.as_client() as channel:
            yield SandboxServiceStub(channel)
        for info in await sandboxes.living(""):
            await sandboxes.release(info.labels.sandbox_id)
    await backends.close()


async def provisioned(stub: Any, **given: Any) -> str:
    """Makes a sandbox of the unisolated environment."""
    answer = await stub.Provision(pb.ProvisionRequest(environment="process", **given))
    sandbox_id: str = answer.sandbox.sandbox_id
    return sandbox_id


def bash(sandbox_id: str, command: str, **given: Any) -> pb.ExecuteRequest:
    """Makes a call of a command."""
    return pb.ExecuteRequest(sandbox_id=sandbox_id, name="bash", input=json.dumps({"command": command}), **given)


async def refused(call: Any, code: str, reason: str) -> None:
    """Checks that a call ends with a status and a reason."""
    with pytest.raises(grpc.aio.AioRpcError) as told:
        if hasattr(call, "__aiter__"):
            _ = [said async for said in call]
        else:
            await call
    metadata = dict(told.value.trailing_metadata() or ())
    info = ErrorInfo()
    assert Status.FromString(metadata[DETAILS_KEY]).details[0].Unpack(info)
    assert (told.value.code().name, info.reason) == (code, reason)


async def test_a_sandbox_from_first_to_last(stub: Any) -> None:
    """Provision with a file, execute, list, release: what went in comes out."""
    session = mint("sess")
    files = [pb.Resource(mount_path="/workspace/in.txt", file=pb.File(content=b"hello\n"))]
    wanted = pb.ProvisionRequest(
        environment="process", request_id=f"{session}/main/1", session_id=session, hand="main", resources=files, epoch=3
    )
    made = (await stub.Provision(wanted)).sandbox
    assert re.fullmatch(r"sbx_[a-z0-9]{26}", made.sandbox_id)
    assert (made.environment, made.backend, made.session_id, made.hand, made.generation) == (
        "process",
        "process",
        session,
        "main",
        1,
    )
    assert "isolation: there is none" in made.unenforced_limits and made.create_time.seconds > 0
    assert (await stub.Provision(wanted)).sandbox == made
    result = (await stub.Execute(bash(made.sandbox_id, "cat in.txt; exit 3", execution_id="toolu_1", epoch=3))).result
    assert result == tool_pb2.ToolResult(output="hello\n[exit code: 3]", outcome=TOOL_ERROR, exit_code=3)
    assert list((await stub.ListSandboxes(pb.ListSandboxesRequest(session_id=session))).sandboxes) == [made]
    assert list((await stub.ListSandboxes(pb.ListSandboxesRequest(session_id=mint("sess")))).sandboxes) == []
    (known,) = (await stub.ListExecutions(pb.ListExecutionsRequest(sandbox_id=made.sandbox_id))).executions
    assert (known.execution_id, known.name, known.running, known.outcome) == ("toolu_1", "bash", False, TOOL_ERROR)
    for _ in range(2):
        await stub.Release(pb.ReleaseRequest(sandbox_id=made.sandbox_id))
    assert list((await stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes) == []
    await refused(stub.Execute(bash(made.sandbox_id, "true")), "NOT_FOUND", "SANDBOX_GONE")


async def test_an_execution_outlives_its_caller(stub: Any) -> None:
    """With an id it goes on when the call is cancelled; a second call, attach_only too, gets the one result."""
    sandbox = await provisioned(stub)
    command = "echo ran >> runs; until [ -e go ]; do sleep 0.01; done; cat runs"
    call = stub.Execute(bash(sandbox, command, execution_id="toolu_1"))
    await first_chunk_or_running(stub, sandbox, "toolu_1")
    call.cancel()
    again = stub.Execute(bash(sandbox, command, execution_id="toolu_1"))
    attached = stub.Execute(bash(sandbox, "", execution_id="toolu_1", attach_only=True))
    await stub.Execute(bash(sandbox, "touch go"))
    assert [(await each).result.output for each in (again, attached)] == ["ran", "ran"]


async def first_chunk_or_running(stub: Any, sandbox: str, execution_id: str) -> None:
    """Waits until an execution is known."""
    while True:
        known = (await stub.ListExecutions(pb.ListExecutionsRequest(sandbox_id=sandbox))).executions
        if execution_id in [each.execution_id for each in known] or (not execution_id and known):
            return
        await asyncio.sleep(0.01)


async def test_an_owned_execution_ends_with_its_call(stub: Any) -> None:
    """Without an id to cancel the call is to kill the tool."""
    sandbox = await provisioned(stub)
    call = stub.Execute(bash(sandbox, "sleep 600"))
    await first_chunk_or_running(stub, sandbox, "")
    call.cancel()
    while True:
        (known,) = (await stub.ListExecutions(pb.ListExecutionsRequest(sandbox_id=sandbox))).executions
        if not known.running:
            break
        await asyncio.sleep(0.01)
    assert known.outcome == INTERRUPTED


async def test_cancel(stub: Any) -> None:
    """A running one ends INTERRUPTED, a later one never starts; idempotent."""
    sandbox = await provisioned(stub)
    call = stub.Execute(bash(sandbox, "echo up; sleep 600", execution_id="toolu_1"))
    async for said in stub.WatchExecution(await watched(stub, sandbox, "toolu_1")):
        assert said == pb.WatchExecutionResponse(chunk="up\n", next_offset=3)
        break
    for id in ("toolu_1", "toolu_1", "toolu_2"):
        await stub.CancelExecution(pb.CancelExecutionRequest(sandbox_id=sandbox, execution_id=id))
    assert (await call).result.outcome == INTERRUPTED
    assert (await stub.Execute(bash(sandbox, "touch ran", execution_id="toolu_2"))).result.outcome == INTERRUPTED
    assert (await stub.Execute(bash(sandbox, "ls"))).result.output == "outputs"


async def watched(stub: Any, sandbox: str, execution_id: str) -> pb.WatchExecutionRequest:
    """Makes the request to watch an execution, as soon as it is known."""
    await first_chunk_or_running(stub, sandbox, execution_id)
    return pb.WatchExecutionRequest(sandbox_id=sandbox, execution_id=execution_id)


async def test_watching_resumes(stub: Any) -> None:
    """From any offset the chunks make up the rest; the result is last and repeats where to resume."""
    sandbox = await provisioned(stub)
    result = (await stub.Execute(bash(sandbox, "printf 'añb'", execution_id="e"))).result
    for offset, rest in ((0, "añb"), (1, "ñb"), (4, "")):
        request = pb.WatchExecutionRequest(sandbox_id=sandbox, execution_id="e", offset=offset)
        said = [each async for each in stub.WatchExecution(request)]
        assert "".join(each.chunk for each in said) == rest
        assert said[-1] == pb.WatchExecutionResponse(result=result, next_offset=4)


async def test_an_older_harness_is_kept_out(stub: Any) -> None:
    """An epoch below the highest that the session has shown is refused, in any of its sandboxes."""
    session = mint("sess")
    one = await provisioned(stub, session_id=session, epoch=5)
    two = await provisioned(stub, session_id=session, epoch=5)
    assert (await stub.Execute(bash(one, "true", execution_id="a", epoch=7))).result.outcome == OK
    await refused(stub.Execute(bash(one, "true", execution_id="b", epoch=6)), "ABORTED", "EPOCH_STALE")
    await refused(stub.Execute(bash(two, "true", execution_id="b", epoch=6)), "ABORTED", "EPOCH_STALE")
    stale = pb.CancelExecutionRequest(sandbox_id=two, execution_id="b", epoch=6)
    await refused(stub.CancelExecution(stale), "ABORTED", "EPOCH_STALE")
    wanted = pb.ProvisionRequest(environment="process", session_id=session, epoch=6)
    await refused(stub.Provision(wanted), "ABORTED", "EPOCH_STALE")
    assert (await stub.Execute(bash(two, "true"))).result.outcome == OK


async def test_bad_calls_are_refused_with_a_reason(stub: Any) -> None:
    """Each mistake has a status and a reason of its own, and does nothing."""
    sandbox, nowhere = await provisioned(stub), mint("sbx")
    await refused(stub.Execute(bash(nowhere, "true")), "NOT_FOUND", "SANDBOX_GONE")
    for id in ("", "*", "a.b", "../x", "x" * 5000):
        await refused(stub.Execute(bash(id, "true")), "INVALID_ARGUMENT", "ID_INVALID")
    await refused(stub.Execute(bash(sandbox, "true", execution_id="a b")), "INVALID_ARGUMENT", "ID_INVALID")
    unknown = pb.ExecuteRequest(sandbox_id=sandbox, name="rm", input="{}")
    await refused(stub.Execute(unknown), "INVALID_ARGUMENT", "TOOL_UNKNOWN")
    for text in ("", "{", "[]", '{"command": 1}'):
        call = pb.ExecuteRequest(sandbox_id=sandbox, name="bash", input=text)
        await refused(stub.Execute(call), "INVALID_ARGUMENT", "TOOL_INPUT_INVALID")
    await refused(stub.Execute(bash(sandbox, "true", timeout=Duration())), "INVALID_ARGUMENT", "ARGUMENT_INVALID")
    attach = bash(sandbox, "true", execution_id="never", attach_only=True)
    await refused(stub.Execute(attach), "NOT_FOUND", "EXECUTION_UNKNOWN")
    await refused(stub.Execute(bash(sandbox, "true", attach_only=True)), "INVALID_ARGUMENT", "ARGUMENT_INVALID")
    watch = pb.WatchExecutionRequest(sandbox_id=sandbox, execution_id="never")
    await refused(stub.WatchExecution(watch), "NOT_FOUND", "EXECUTION_UNKNOWN")
    await refused(stub.CancelExecution(pb.CancelExecutionRequest(sandbox_id=sandbox)), "INVALID_ARGUMENT", "ID_INVALID")
    await stub.Execute(bash(sandbox, "true", execution_id="toolu_1"))
    await refused(stub.Execute(bash(sandbox, "false", execution_id="toolu_1")), "ALREADY_EXISTS", "EXECUTION_ID_REUSED")
    await refused(stub.Provision(pb.ProvisionRequest(environment="nowhere")), "INVALID_ARGUMENT", "ENVIRONMENT_UNKNOWN")


@pytest.mark.parametrize(
    ("resource", "code", "reason"),
    [
        (pb.Resource(mount_path="/etc/x", file=pb.File()), "INVALID_ARGUMENT", "RESOURCE_INVALID"),
        (pb.Resource(mount_path="/workspace/x"), "INVALID_ARGUMENT", "RESOURCE_INVALID"),
        (pb.Resource(mount_path="/workspace/x", file=TOO_LARGE), "INVALID_ARGUMENT", "RESOURCE_INVALID"),
        (
            pb.Resource(mount_path="/workspace/x", git_repository=pb.GitRepository()),
            "INVALID_ARGUMENT",
            "RESOURCE_INVALID",
        ),
    ],
)
async def test_bad_resources_make_no_sandbox(stub: Any, resource: pb.Resource, code: str, reason: str) -> None:
    """A resource that cannot be put is refused before anything is made."""
    await refused(stub.Provision(pb.ProvisionRequest(environment="process", resources=[resource])), code, reason)
    assert list((await stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes) == []


async def test_resources_can_come_later(stub: Any) -> None:
    """A file and a log's view are put into a sandbox that there is; the view is read-only."""
    sandbox = await provisioned(stub)
    resources = [
        pb.Resource(mount_path="/workspace/run", file=pb.File(content=b"#!/bin/sh\necho ran\n", executable=True)),
        pb.Resource(mount_path="/workspace/log.jsonl", log_view=pb.LogView(json_lines=b"{}\n")),
    ]
    await stub.PutResources(pb.PutResourcesRequest(sandbox_id=sandbox, resources=resources))
    assert (await stub.Execute(bash(sandbox, "./run; stat -c %a log.jsonl"))).result.output == "ran\n444"


async def test_tools_are_listed_without_a_sandbox(stub: Any, tmp_path: Path) -> None:
    """By environment nothing is made or imported, also for one that cannot be followed here."""
    for environment in ("", "default", "docker", "process"):
        tools = (await stub.ListTools(pb.ListToolsRequest(environment=environment))).tools
        assert [tool.name for tool in tools] == ["bash", "read", "write", "edit", "glob", "grep"]
        assert all(json.loads(tool.input_schema_json)["type"] == "object" for tool in tools)
    assert not (tmp_path / "state").exists()
    sandbox = await provisioned(stub)
    assert len((await stub.ListTools(pb.ListToolsRequest(sandbox_id=sandbox))).tools) == 6
    await refused(stub.ListTools(pb.ListToolsRequest(environment="x")), "INVALID_ARGUMENT", "ENVIRONMENT_UNKNOWN")
    await refused(stub.ListTools(pb.ListToolsRequest(sandbox_id=mint("sbx"))), "NOT_FOUND", "SANDBOX_GONE")


async def test_environments_say_whether_they_can_be_followed(stub: Any) -> None:
    """Each is there, and one that is not available says why."""
    found = (await stub.ListEnvironments(pb.ListEnvironmentsRequest())).environments
    assert [(it.name, it.backend) for it in found] == [
        ("default", "bubblewrap"),
        ("docker", "docker"),
        ("process", "process"),
    ]
    assert all(it.available != bool(it.problem) and it.description for it in found)
    assert found[2].available


async def test_no_isolation_is_never_a_fallback(tmp_path: Path) -> None:
    """The unisolated backend refuses unless it is allowed, and names the switch; an engine that is not there, too."""
    backends = Backends(HandSettings(tmp_path / "state", docker_host="unix:///nowhere.sock"))
    servicer = SandboxServicer(
        Sandboxes(backends, BUILT_IN, planting=planting(tmp_path)),
        Leave(backends),
        Workers(backends, BUILT_IN, NoTokens()),
        owners(backends),
    )
    async with (
        served(tmp_path, "sandbox", lambda server: add_SandboxServiceServicer_to_server(servicer, server), NAME) as it,
        it.as_client() as channel,
    ):
        stub: Any = SandboxServiceStub(channel)
        for environment, code, reason, told in (
            ("process", "FAILED_PRECONDITION", "ISOLATION_UNAVAILABLE", "HANDMESH_ALLOW_UNISOLATED=1"),
            ("docker", "UNAVAILABLE", "BACKEND_UNAVAILABLE", "unix:///nowhere.sock"),
        ):
            await refused(stub.Provision(pb.ProvisionRequest(environment=environment)), code, reason)
            with pytest.raises(grpc.aio.AioRpcError, match=re.escape(told)):
                await stub.Provision(pb.ProvisionRequest(environment=environment))
    await backends.close()


async def test_a_client_is_no_hand(stub: Any) -> None:
    """The methods for workers take hands' tokens, and no API key."""
    for call in (stub.ConnectHand(pb.ConnectHandRequest(name="x")), stub.ReportExecution(pb.ReportExecutionRequest())):
        await refused(call, "PERMISSION_DENIED", "METHOD_DENIED")

"""The service as a process of its own, killed and started again under a running command."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit.ids import mint
from tests.drills.size import FULL
from tests.sandbox.service_process import Service

BACKENDS = [
    pytest.param("default", marks=pytest.mark.bwrap),
    pytest.param("docker", marks=pytest.mark.docker),
    *(["process"] if FULL else []),
]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service that has started; its sandboxes are released at the end."""
    it = Service(tmp_path)
    await it.start()
    yield it
    for sandbox in (await it.stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes:
        await it.stub.Release(pb.ReleaseRequest(sandbox_id=sandbox.sandbox_id))
    assert await it.end(signal.SIGTERM) == 0
    await it.channel.close()


def bash(sandbox_id: str, command: str, **given: Any) -> pb.ExecuteRequest:
    """Makes a call of a command."""
    return pb.ExecuteRequest(sandbox_id=sandbox_id, name="bash", input=json.dumps({"command": command}), **given)


@asynccontextmanager
async def going(call: Callable[[], Awaitable[Any]]) -> AsyncIterator[asyncio.Task[Any]]:
    """Makes a call again and again until it is answered, as a harness does whose hand is away."""

    async def insist() -> Any:
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise

    task = asyncio.create_task(insist())
    yield task
    await task


@pytest.mark.parametrize("environment", BACKENDS)
async def test_a_command_outlives_the_service(service: Service, environment: str) -> None:
    """SIGKILL in the middle, twice: it runs exactly once, and its whole output is delivered."""
    request = pb.ProvisionRequest(environment=environment, request_id="sess/main/1", session_id=mint("sess"), epoch=4)
    sandbox = (await service.stub.Provision(request)).sandbox
    command = "echo ran >> runs; for i in 1 2 3; do until [ -e go$i ]; do sleep 0.01; done; echo $i; done; cat runs"
    wanted = bash(sandbox.sandbox_id, command, execution_id="toolu_1", epoch=4)
    async with going(lambda: service.stub.Execute(wanted)) as task:
        await service.stub.Execute(bash(sandbox.sandbox_id, "until [ -e runs ]; do sleep 0.01; done; touch go1"))
        for number in (2, 3):
            assert await service.end(signal.SIGKILL) == -signal.SIGKILL
            await service.start()
            await service.stub.Execute(bash(sandbox.sandbox_id, f"touch go{number}"))
        result = (await task).result
    assert result == tool_pb2.ToolResult(output="1\n2\n3\nran", outcome=tool_pb2.TOOL_OUTCOME_OK, exit_code=0)
    assert (await service.stub.Provision(request)).sandbox == sandbox
    with pytest.raises(grpc.aio.AioRpcError, match="EPOCH_STALE"):
        await service.stub.Execute(bash(sandbox.sandbox_id, "true", execution_id="toolu_2", epoch=3))


@pytest.mark.parametrize("environment", BACKENDS)
async def test_a_half_made_sandbox_is_made_anew(service: Service, environment: str) -> None:
    """SIGKILL while it is made: the same request then makes one sandbox that works, and only one is there."""
    request = pb.ProvisionRequest(environment=environment, request_id="sess/main/1")
    for seconds in (0.01, 0.05, 0.1):
        call = service.stub.Provision(request)
        await asyncio.wait([asyncio.ensure_future(call)], timeout=seconds)
        await service.end(signal.SIGKILL)
        await asyncio.gather(call, return_exceptions=True)
        await service.start()
    sandbox = (await service.stub.Provision(request)).sandbox
    assert (await service.stub.Execute(bash(sandbox.sandbox_id, "echo works"))).result.output == "works"
    assert list((await service.stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes) == [sandbox]


async def test_wrong_environments_are_told_at_the_start(service: Service, tmp_path: Path) -> None:
    """The process ends with a line for each mistake in the file."""
    (tmp_path / "e.toml").write_text('[environments.a]\nbackend = "podman"\n')
    environment = {**service.environment, "HANDMESH_ENVIRONMENTS_FILE": str(tmp_path / "e.toml")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.sandbox", env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 1 and b"environments.a.backend is 'podman', expected one of" in said

"""Warm pools of the service as a process of its own, killed while it gives sandboxes away."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from services.kit.ids import mint
from tests.drills.size import FULL
from tests.sandbox.service_process import Service

POOL = 3
BACKENDS = [
    pytest.param("bubblewrap", marks=pytest.mark.bwrap),
    pytest.param("docker", marks=pytest.mark.docker),
    *(["process"] if FULL else []),
]
SECONDS = (0.002, 0.01, 0.03)  # from the first claim to the kill


@pytest.fixture
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a pool of one backend; its sandboxes are released at the end."""
    file = tmp_path / "environments.toml"
    file.write_text(f'default = "it"\n[environments.it]\nbackend = "{request.param}"\npool = {POOL}\n')
    it = Service(tmp_path, HANDMESH_ENVIRONMENTS_FILE=str(file))
    await it.start()
    yield it
    for sandbox in await listed(it):
        await it.stub.Release(pb.ReleaseRequest(sandbox_id=sandbox.sandbox_id))
    assert await it.end(signal.SIGTERM) == 0
    await it.channel.close()


async def listed(service: Service) -> list[pb.Sandbox]:
    """Returns the sandboxes that somebody has, and those that are free."""
    return list((await service.stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes)


async def filled(service: Service) -> set[str]:
    """Waits until the pool is full and nothing else is free; returns what is."""
    while True:
        rows = (await service.stub.ListEnvironments(pb.ListEnvironmentsRequest())).environments
        (row,) = [row for row in rows if row.name == "it"]
        free = {sandbox.sandbox_id for sandbox in await listed(service) if sandbox.pooled}
        if (row.pool, row.pool_free, len(free)) == (POOL, POOL, POOL):
            return free
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("service", BACKENDS, indirect=True)
async def test_a_killed_service_gives_no_sandbox_away_twice(service: Service) -> None:
    """Free ones outlive it. Killed amid claims, each request has one sandbox after, and no sandbox two requests."""
    free = await filled(service)
    await service.end(signal.SIGKILL)
    await service.start()
    assert await filled(service) == free
    wanted: list[pb.ProvisionRequest] = []
    for number, seconds in enumerate(SECONDS):
        files = [pb.Resource(mount_path="/workspace/in", file=pb.File(content=b"x"))] * (number % 2)
        batch = [
            pb.ProvisionRequest(request_id=f"r{number}/{claim}/1", session_id=mint("sess"), resources=files)
            for claim in range(POOL)
        ]
        calls = [asyncio.ensure_future(service.stub.Provision(request)) for request in batch]
        await asyncio.wait(calls, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await service.end(signal.SIGKILL)
        told = await asyncio.gather(*calls, return_exceptions=True)
        await service.start()
        await right(service, batch, told)
        wanted += batch
    made = [(await service.stub.Provision(request)).sandbox for request in wanted]
    assert len({sandbox.sandbox_id for sandbox in made}) == len(wanted)
    owned = {sandbox.sandbox_id for sandbox in await listed(service) if not sandbox.pooled}
    assert owned == {sandbox.sandbox_id for sandbox in made}
    for sandbox_id in owned:
        await service.stub.Release(pb.ReleaseRequest(sandbox_id=sandbox_id))


async def right(service: Service, batch: list[pb.ProvisionRequest], told: list[Any]) -> None:
    """Checks that each request, said again, gets what it was told of before, and in it the files."""
    for request, said in zip(batch, told, strict=True):
        sandbox = (await service.stub.Provision(request)).sandbox
        assert (sandbox.request_id, sandbox.session_id) == (request.request_id, request.session_id)
        if isinstance(said, pb.ProvisionResponse):
            assert said.sandbox == sandbox
        else:
            assert isinstance(said, grpc.aio.AioRpcError)
        call = pb.ExecuteRequest(sandbox_id=sandbox.sandbox_id, name="bash", input='{"command": "ls"}')
        output = (await service.stub.Execute(call)).result.output
        assert output == ("in\noutputs" if request.resources else "outputs")


@pytest.mark.parametrize("service", BACKENDS, indirect=True)
async def test_a_service_that_is_told_to_end_drains_its_pool(service: Service, tmp_path: Path) -> None:
    """SIGTERM: nothing free stays; what is somebody's does, and is there for the next service."""
    await filled(service)
    sandbox = (await service.stub.Provision(pb.ProvisionRequest())).sandbox
    assert await service.end(signal.SIGTERM) == 0
    (folder,) = (tmp_path / "state").glob("*/sandboxes")
    assert [entry.name for entry in folder.iterdir()] == [sandbox.sandbox_id]
    await service.start()
    assert sandbox in await listed(service)

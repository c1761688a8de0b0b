"""One service for each column, and in it one sandbox that lives through all attacks on the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from tests.sandbox.attacks.ground import COLUMNS, Ground, ground_of


@pytest.fixture(scope="session", params=COLUMNS)
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The service of a column; after all that it has seen, nothing is left of what was done, and it ends well."""
    with ground_of(request.param) as it:
        yield it
        assert it.left() == []


@pytest.fixture(scope="session")
def neighbour(ground: Ground) -> Iterator[pb.Sandbox]:
    """A sandbox that lives through all that is done to others."""

    async def made() -> pb.Sandbox:
        async with ground.caller() as stub:
            answer: pb.ProvisionResponse = await stub.Provision(pb.ProvisionRequest(environment="narrow"))
            return answer.sandbox

    async def released(sandbox: pb.Sandbox) -> None:
        async with ground.caller() as stub:
            await stub.Release(pb.ReleaseRequest(sandbox_id=sandbox.sandbox_id))

    it = asyncio.run(made())
    yield it
    asyncio.run(released(it))

"""What the drills share with the tests of the session service, and a mesh whose harnesses are killed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from handmesh.client import Client, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from tests.drills.brains import Brains
from tests.session.conftest import identities, run

__all__ = ["identities", "run"]

SCRIPT = Path(__file__).with_name("brains.yaml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brainless(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """A mesh without a harness."""
    settings = MeshSettings(tmp_path_factory.mktemp("mesh"), Scripted(SCRIPT), os.environ, Ports.free())
    async with await Mesh.start(settings) as mesh:
        await mesh.kill("harness")
        yield mesh
        async with connect(data_directory=mesh.files.data_directory) as client:
            for sandbox in await client.sandboxes():
                await client.release(sandbox.sandbox_id)  # hands outlive their mesh


@pytest_asyncio.fixture(loop_scope="module")
async def world(brainless: Mesh) -> AsyncIterator[Brains]:
    """That mesh, to start harnesses and session replicas beside; they end with the test."""
    brains = Brains(brainless)
    yield brains
    await brains.close()


@pytest_asyncio.fixture(loop_scope="module")
async def client(brainless: Mesh) -> AsyncIterator[Client]:
    """A client of that mesh."""
    async with connect(data_directory=brainless.files.data_directory) as connected:
        yield connected

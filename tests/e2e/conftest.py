"""One mesh for all end-to-end tests of a module: real NATS, OpenBao and bubblewrap, the scripted model as Claude."""

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
from tests.support.requirements import lack_of

SCRIPT = Path(__file__).with_name("script.yaml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """A running mesh with a data directory and ports of its own."""
    settings = MeshSettings(
        tmp_path_factory.mktemp("mesh"),
        Scripted(SCRIPT),
        os.environ,
        Ports.free(),
        extra={"vault_proxy": {"HANDMESH_OUTBOUND_ALLOW": "127.0.0.1"}},
        metrics=lack_of("metrics") is None,
    )
    async with await Mesh.start(settings) as running:
        yield running
        async with connect(data_directory=running.files.data_directory) as connected:
            for sandbox in await connected.sandboxes():
                await connected.release(sandbox.sandbox_id)  # hands outlive their mesh


@pytest_asyncio.fixture(loop_scope="module")
async def client(mesh: Mesh) -> AsyncIterator[Client]:
    """A client of the mesh with its API key."""
    async with connect(data_directory=mesh.files.data_directory) as connected:
        yield connected

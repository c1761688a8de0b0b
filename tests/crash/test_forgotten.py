"""A process dies between removing a session from the work queue and looking into its log: the session is not forgotten.

The message came to another replica while the queue still had the session, so that replica had nothing to queue.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from handmesh.client import Client, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from tests.drills.brains import SCRIPT, Brains, Seen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.vault,
    pytest.mark.bwrap,
    pytest.mark.timeout(120),
]

STRUCK_SECONDS = 30.0


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[Brains]:
    """A mesh without a harness; its own session replica has no failpoints."""
    settings = MeshSettings(tmp_path / "mesh", Scripted(SCRIPT), os.environ, Ports.free())
    async with await Mesh.start(settings) as mesh:
        await mesh.kill("harness")
        brains = Brains(mesh)
        yield brains
        await brains.close()


@pytest_asyncio.fixture
async def client(world: Brains) -> AsyncIterator[Client]:
    """A client of the mesh's own session replica."""
    async with connect(data_directory=world.mesh.files.data_directory) as connected:
        yield connected


async def struck(points: Path, point: str) -> None:
    """Waits until a process has come to a point."""
    async with asyncio.timeout(STRUCK_SECONDS):
        while not _hits(points, point):
            await asyncio.sleep(0.01)


def _hits(points: Path, point: str) -> list[Path]:
    return list(points.glob(f"{point}.hit-*"))


async def test_a_kill_between_the_queue_and_the_log(world: Brains, client: Client, tmp_path: Path) -> None:
    """The replica that lives on offers the session; nobody says anything to it meanwhile."""
    points = tmp_path / "points"
    points.mkdir()
    (points / "session.claim_ended").write_text("pause")
    (points / "session.item_removed").write_text("kill")
    own, *_ = world.sessions
    replica = await world.session(HANDMESH_FAILPOINTS=str(points))
    world.sessions = world.sessions[1:]
    first = await world.harness()
    seen = Seen(await client.create_session(content="hello"))
    await seen.kind("turn_ended")
    await struck(points, "session.claim_ended")
    await seen.session.send("hello")
    os.kill(replica, signal.SIGCONT)
    await struck(points, "session.item_removed")
    await world.kill(first)
    world.sessions = [own]
    await world.harness()
    await seen.kind("turn_ended", 2)
    assert (seen.count("harness_woke"), seen.count("model_replied")) == (2, 2)
    await seen.close()

"""`handmesh run --harness claude_code`: the real Claude Code on a real mesh, also when its harness is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.claude_code,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.asyncio(loop_scope="module"),
]
TURN_SECONDS = 60.0
LOOK_SECONDS = 0.02


def state_of(path: Path) -> str:
    """Returns a process's state as /proc has it; empty when it is gone."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def brains(mesh: Mesh) -> list[Path]:
    """Lists the harness's processes of Claude Code, as folders of /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == mesh.pids["harness"] and state != "Z" and b"/claude" in (path / "cmdline").read_bytes():
                found.append(path)
        except OSError:
            continue
    return found


async def test_run_on_the_command_line(mesh: Mesh) -> None:
    """A task is done with the hand's tools, the answer goes to standard output, and no process is left."""
    told = ["run", "work", "--harness", "claude_code", "--data-dir", str(mesh.files.data_directory)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "handmesh.cli", *told, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "a.txt" in out.decode()
    assert "→ bash: echo one" in err.decode()
    assert brains(mesh) == []


async def test_a_killed_harness_costs_nothing(mesh: Mesh, client: Client) -> None:
    """SIGKILL while a tool runs: Claude Code dies with its harness, goes on in the next one, and the tool ran once."""
    session = await client.create_session(SessionConfig(harness="claude_code"), "slow")
    async for event in session.watch():
        if event.HasField("tool_started"):
            break
    (brain,) = brains(mesh)
    await mesh.kill("harness")
    await mesh.restart("harness")
    assert state_of(brain) in ("", "Z")
    events: list[Event] = []
    async with asyncio.timeout(TURN_SECONDS):
        async for event in session.watch():
            events.append(event)
            if event.HasField("turn_ended"):
                break
    kinds = [event.WhichOneof("kind") for event in events]
    assert [kinds.count(kind) for kind in ("harness_woke", "tool_started", "tool_finished", "model_replied")] == [
        2,
        1,
        1,
        2,
    ]
    assert events[kinds.index("tool_finished")].tool_finished.result.output.split() == ["run"]
    async with asyncio.timeout(TURN_SECONDS):
        while brains(mesh):
            await asyncio.sleep(LOOK_SECONDS)

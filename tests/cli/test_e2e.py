"""The command and the demo on a real mesh."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handmesh.client import connect
from handmesh.client.health import serves
from handmesh.launcher.lock import running
from handmesh.launcher.ports import SERVICES, free_base

pytestmark = [pytest.mark.e2e, pytest.mark.bwrap]
MOST_SECONDS = 100
DOCS = Path(__file__).parents[2] / "docs"


class Command:
    """`handmesh` as a process of its own, on one data directory."""

    def __init__(self, data_directory: Path) -> None:
        self.data_directory = data_directory
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "HANDMESH"))}
        self.environment = {**kept, "HANDMESH_DATA_DIR": str(data_directory)}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "handmesh.cli", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=MOST_SECONDS)


@pytest.fixture(scope="module")
def handmesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The command, with a mesh that `handmesh up` started."""
    command = Command(tmp_path_factory.mktemp("mesh"))
    base = free_base()
    up = command("up", "--detach", "--port-base", str(base))
    assert up.returncode == 0, up.stderr
    yield command
    assert command("down", "--release").returncode == 0
    assert not list((command.data_directory / "sandbox").glob("*/sandboxes/*"))


def test_a_task_is_done_in_a_real_hand(handmesh: Command) -> None:
    """`handmesh run "list the files"` works without a key: a real hand lists real files."""
    done = handmesh("run", "list the files")
    assert done.returncode == 0, done.stderr
    assert "These are the files" in done.stdout
    assert "→ bash: ls -la" in done.stderr


def test_sessions_that_start_sessions(handmesh: Command) -> None:
    """The commands of docs/children.md: both children's answers come back, and the tree shows whose they are."""
    (block,) = re.findall(r"```sh\n(.*?)```", (DOCS / "children.md").read_text(), re.DOTALL)
    done = [handmesh(*shlex.split(line)[1:]) for line in block.splitlines()]
    assert [it.returncode for it in done] == [0] * 4, [it.stderr for it in done]
    for it in done[:3]:
        assert it.stdout.count("These are the files") == 2 and it.stderr.count("child_started") == 2
    assert done[3].stdout.count("└ sess_") == 6


def test_the_log_is_there_afterwards(handmesh: Command) -> None:
    """What `run` showed is what `sessions` and `events` read back from the log."""
    assert handmesh("run", "list the files", "--title", "looked for").returncode == 0
    sessions = [json.loads(line) for line in handmesh("sessions", "--json").stdout.splitlines()]
    (session,) = [each for each in sessions if each["config"].get("title") == "looked for"]
    events = [json.loads(line) for line in handmesh("events", session["sessionId"], "--json").stdout.splitlines()]
    assert [int(event["position"]) for event in events] == list(range(1, int(session["lastPosition"]) + 1))
    assert "turnEnded" in events[-1]


async def test_a_part_that_is_killed_comes_back(handmesh: Command) -> None:
    """`handmesh up` keeps its mesh whole: the harness dies, and the next task is done all the same."""
    mesh = running(handmesh.data_directory)
    assert mesh is not None
    harness = mesh.ports.client("harness")
    (pid,) = _listeners(mesh.ports.harness)
    os.kill(pid, signal.SIGKILL)
    async with connect(data_directory=handmesh.data_directory) as client:
        session = await client.create_session(content="list the files")
        async for event in session.watch():
            if event.HasField("turn_ended"):
                break
    assert await serves(harness)
    assert _listeners(mesh.ports.harness) != [pid]


def test_the_doctor_finds_a_healthy_mesh(handmesh: Command) -> None:
    """All that is needed is here, and the mesh is well."""
    done = handmesh("doctor")
    assert done.returncode == 0, done.stdout
    assert "healthy, pid" in done.stdout


def test_ctrl_c_stops_all(tmp_path: Path) -> None:
    """`handmesh up` in a terminal ends with Ctrl-C, and leaves no process and no port behind."""
    command = Command(tmp_path)
    base = free_base()
    arguments = [sys.executable, "-m", "handmesh.cli", "up", "--port-base", str(base)]
    with subprocess.Popen(arguments, env=command.environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("Ctrl-C stops it" in line for line in process.stderr)
        mesh = running(tmp_path)
        assert mesh is not None
        assert mesh.pid == process.pid
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(MOST_SECONDS) == 0
    assert running(tmp_path) is None
    assert [service for service in SERVICES if _listeners(mesh.ports.as_mapping()[service])] == []


def test_the_demo_is_ok() -> None:
    """`make demo` shows the main job on real parts and finds that all holds that must."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC", "HANDMESH"))}
    command = [sys.executable, "-m", "handmesh.demo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo: ok" in done.stdout
    assert "✗" not in done.stdout


def _listeners(port: int) -> list[int]:
    """Returns the processes that listen on a port."""
    from handmesh.launcher.ports import holder_of

    holder = holder_of(port)
    return [holder.pid] if holder.pid is not None else []

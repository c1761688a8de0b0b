"""The lock on a data directory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from handmesh.launcher.errors import AlreadyRunning
from handmesh.launcher.lock import Lock, Running, lock_file, running, stop_running
from handmesh.launcher.ports import Ports

HOLDER = """
import signal, sys
from pathlib import Path
from handmesh.launcher.lock import Lock
from handmesh.launcher.ports import Ports
lock = Lock.acquire(Path(sys.argv[1]), Ports.at(7500))
print("held", flush=True)
signal.sigwait({signal.SIGTERM})
lock.release()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock on `tmp_path` until it gets SIGTERM."""
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    masked = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})\n{HOLDER}"
    arguments = [sys.executable, "-c", masked, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_launcher_is_told_who_runs(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """The second is refused at once, with the first one's pid."""
    with pytest.raises(AlreadyRunning, match=f"pid {holder.pid}") as refusal:
        Lock.acquire(tmp_path, Ports.at())
    assert refusal.value.pid == holder.pid


def test_a_client_finds_the_ports_of_a_running_mesh(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """Whoever knows the data directory finds the mesh, whatever its port base."""
    assert running(tmp_path) == Running(pid=holder.pid, ports=Ports.at(7500))


def test_a_killed_launcher_leaves_no_lock(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """The lock is the kernel's: after SIGKILL the word in the file counts for nothing."""
    holder.kill()
    holder.wait()
    assert lock_file(tmp_path).read_text() != ""
    assert running(tmp_path) is None
    Lock.acquire(tmp_path, Ports.at()).release()


async def test_stop_running_asks_the_launcher_and_waits(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """`down` from another terminal ends the launcher by SIGTERM; when nothing runs it says so."""
    assert await stop_running(tmp_path) is True
    assert holder.wait() == 0
    assert await stop_running(tmp_path) is False


def test_nothing_runs_in_a_new_directory(tmp_path: Path) -> None:
    """Asking makes no file."""
    assert running(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_of_another_version_is_found(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    """While it is upgraded: its word may lack ports that are new, and have some that are not known here."""
    word = json.loads(lock_file(tmp_path).read_text())
    del word["others"], word["ports"]["session_metrics"]
    word["ports"]["of_a_later_version"] = 1
    lock_file(tmp_path).write_text(json.dumps(word))
    assert running(tmp_path) == Running(pid=holder.pid, ports=replace(Ports.at(7500), session_metrics=0))

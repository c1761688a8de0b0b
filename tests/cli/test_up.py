"""`handmesh up` and `down`, as far as no mesh is needed; tests/cli/test_e2e.py starts a real one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from handmesh.cli import upkeep
from handmesh.cli.__main__ import app
from handmesh.cli.arguments import UsageError
from handmesh.launcher.lock import running
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import Claude, Scripted
from handmesh.scripted_model.reading import DEFAULT_SCRIPT

HOLDER = """
import signal, sys
from pathlib import Path
from handmesh.launcher.lock import Lock
from handmesh.launcher.ports import Ports
lock = Lock.acquire(Path(sys.argv[1]), Ports.at(7400))
print("held", flush=True)
signal.sigwait({signal.SIGTERM})
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the data directory, as a launcher does, until SIGTERM."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_a_second_up_says_who_holds_the_data(
    holder: subprocess.Popen[str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """One data directory has one mesh: the second is told which process has it, and where."""
    result = CliRunner().invoke(app, ["up", "--data-dir", str(tmp_path), *options])
    assert result.exit_code == 1
    assert f"pid {holder.pid}" in result.stderr
    assert str(tmp_path) in result.stderr
    assert holder.poll() is None


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_taken_ports_are_told_with_their_holder(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Another program on a port is named, with the way out, and nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["up", "--data-dir", str(tmp_path), "--port-base", str(port - 1), *options]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert f"port {port}" in result.stderr
    assert f"pid {os.getpid()}" in result.stderr
    assert running(tmp_path) is None


def test_down_stops_the_holder(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    """`down` ends whoever runs the mesh of the data directory, and waits until it has."""
    result = CliRunner().invoke(app, ["down", "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "stopped\n")
    assert holder.wait(20) in (0, -signal.SIGTERM)


def test_down_without_a_mesh_is_no_error(tmp_path: Path) -> None:
    """What should not run does not run."""
    result = CliRunner().invoke(app, ["down", "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no mesh runs" in result.stderr


def settings(tmp_path: Path, script: Path | None = None):
    return upkeep.settings_of(tmp_path, upkeep.UpOptions(9000, script))


def test_a_key_means_claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key agents talk to Claude, at another address if one is set; the key is in no text of ours."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://gateway.example")
    made = settings(tmp_path)
    assert made.model == Claude("sk-secret", "https://gateway.example")
    assert made.ports == Ports.at(9000)
    text = upkeep.welcome(made, 1.0)
    assert "Claude at https://gateway.example" in text
    assert "sk-secret" not in text + repr(made)


def test_without_a_key_the_script_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key means the script that ships; a script of one's own is played even with a key."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert settings(tmp_path).model == Scripted(DEFAULT_SCRIPT)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    assert settings(tmp_path, tmp_path / "mine.yaml").model == Scripted(tmp_path / "mine.yaml")


@pytest.mark.parametrize(("base", "level"), [(0, "info"), (70_000, "info"), (9000, "loud")])
def test_wrong_options_are_refused(tmp_path: Path, base: int, level: str) -> None:
    """What is wrong is said before anything starts."""
    with pytest.raises(UsageError, match="expected"):
        upkeep.settings_of(tmp_path, upkeep.UpOptions(base, log_level=level))


def test_hints_name_a_data_directory_that_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed to be typed works as it is printed."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("HANDMESH_DATA_DIR", raising=False)
    assert f'handmesh run "list the files" --data-dir {tmp_path}' in upkeep.welcome(settings(tmp_path), 1.0)
    monkeypatch.setenv("HANDMESH_DATA_DIR", str(tmp_path))
    assert "--data-dir" not in upkeep.welcome(settings(tmp_path), 1.0)


def test_only_who_says_so_gets_no_isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unisolated backend is off unless the option or the variable turns it on; Docker's address is passed on."""
    monkeypatch.delenv("HANDMESH_ALLOW_UNISOLATED", raising=False)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    off, on = upkeep.UpOptions(9000), upkeep.UpOptions(9000, allow_unisolated=True)
    assert upkeep.settings_of(tmp_path, off).extra == {"sandbox": {}, "vault_proxy": {}, "harness": {}}
    assert upkeep.settings_of(tmp_path, on).extra["sandbox"] == {"HANDMESH_ALLOW_UNISOLATED": "1"}
    monkeypatch.setenv("HANDMESH_ALLOW_UNISOLATED", "1")
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    told = {"HANDMESH_ALLOW_UNISOLATED": "1", "DOCKER_HOST": "unix:///run/user/1000/docker.sock"}
    assert upkeep.settings_of(tmp_path, off).extra["sandbox"] == told

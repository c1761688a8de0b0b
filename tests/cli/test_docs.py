"""docs/cli.md says everything that the command can do, and its Python runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from handmesh.cli import exits
from handmesh.cli.__main__ import app
from handmesh.client import settings
from handmesh.launcher.ports import Ports
from handmesh.session.v1 import event_pb2
from tests.cli.peer import Peer

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
TEXT = PAGE.read_text()


def test_every_command_is_told() -> None:
    """A new command needs a row."""
    names = {(command.name or command.callback.__name__) for command in app.registered_commands}
    names |= {group.typer_instance.info.name for group in app.registered_groups if group.typer_instance}
    assert set(re.findall(r"^\| `([a-z]+)[ `]", TEXT, re.MULTILINE)) == names


def test_every_exit_code_is_told() -> None:
    """Scripts rely on the table."""
    assert set(map(int, re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE))) == set(exits.MEANINGS)


@pytest.mark.parametrize(
    "variable",
    [
        settings.ADDRESS,
        settings.HARNESS_ADDRESS,
        settings.SANDBOX_ADDRESS,
        settings.VAULT_PROXY_ADDRESS,
        settings.API_KEY,
        settings.CA_FILE,
        settings.DATA_DIRECTORY,
    ],
)
def test_every_variable_is_told(variable: str) -> None:
    """What the client reads from its environment is no secret."""
    assert f"| `{variable}` |" in TEXT


def test_the_ports_are_the_launchers() -> None:
    """The table's ports are those that a mesh listens on."""
    table = TEXT[TEXT.index("| part | port |") : TEXT.index("With `ANTHROPIC_API_KEY`")]
    told = {int(port) for port in re.findall(r"\b74\d\d\b", table)} | {7402, 7403, 7412, 7413}
    assert told == set(Ports.at().as_mapping().values())


def test_the_example_runs(peer: Peer, data_directory: Path) -> None:
    """The Python of the page works as it stands."""

    def brain(peer: Peer, session_id: str, position: int) -> None:
        peer.append(session_id, turn_ended=event_pb2.TurnEnded(read_position=position))

    peer.brain = brain
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    environment = {**os.environ, "HANDMESH_DATA_DIR": str(data_directory)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["1 session_started", "2 message_received", "3 turn_ended"]

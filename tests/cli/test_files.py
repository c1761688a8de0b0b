"""The commands for what lies in a session's hands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from handmesh.sandbox.v1 import sandbox_pb2
from tests.cli.peer import Peer

Command = Callable[..., Result]
SESSION, BUILD, BOX = "sess_" + "a" * 26, "sbx_" + "b" * 26, "sbx_" + "c" * 26


@pytest.fixture(autouse=True)
def hand(peer: Peer) -> None:
    """A session with one hand, in which two files lie."""
    peer.start(SESSION)
    peer.sandboxes.append(sandbox_pb2.Sandbox(sandbox_id=BUILD, session_id=SESSION, hand="build"))
    peer.files[BUILD, "/workspace/a.txt"] = b"0123456789"
    peer.files[BUILD, "/workspace/outputs/\u65e5.bin"] = b"\x00\xff"


def test_files_are_listed(peer: Peer, handmesh: Command) -> None:
    """Sizes and paths, of the session's only hand or of a sandbox; a directory narrows it; --json is for programs."""
    assert handmesh("files", SESSION).stdout.split() == ["10", "/workspace/a.txt", "2", "/workspace/outputs/\u65e5.bin"]
    assert handmesh("files", BUILD, "/workspace/outputs").stdout.split() == ["2", "/workspace/outputs/\u65e5.bin"]
    assert len(json.loads(handmesh("files", SESSION, "--json").stdout)["files"]) == 2
    for number in range(5):
        peer.files[BUILD, f"/workspace/many{number}"] = b""
    assert "there are more" in handmesh("files", SESSION).stderr


def test_a_file_is_fetched(handmesh: Command, tmp_path: Path) -> None:
    """Byte for byte, to standard output or into a file."""
    assert handmesh("get", SESSION, "/workspace/a.txt").stdout == "0123456789"
    kept = tmp_path / "kept"
    assert handmesh("get", BUILD, "/workspace/outputs/\u65e5.bin", "-o", str(kept)).exit_code == 0
    assert kept.read_bytes() == b"\x00\xff"


def test_a_file_that_is_not_there_leaves_nothing(handmesh: Command, tmp_path: Path) -> None:
    """The reason is said, and what was there under the name stays."""
    kept = tmp_path / "kept"
    kept.write_text("old")
    result = handmesh("get", SESSION, "/workspace/none", "-o", str(kept))
    assert result.exit_code != 0 and "FILE_NOT_FOUND" in result.stderr
    assert [path.name for path in tmp_path.glob("kept*")] == ["kept"] and kept.read_text() == "old"


def test_several_hands_are_chosen_from(peer: Peer, handmesh: Command) -> None:
    """With several hands the name has to be said; with none it is said that there is none."""
    peer.sandboxes.append(sandbox_pb2.Sandbox(sandbox_id=BOX, session_id=SESSION, hand="box"))
    assert "box, build" in handmesh("files", SESSION).stderr
    assert handmesh("files", SESSION, "--hand", "box").stdout == ""
    assert "it has box, build" in handmesh("files", SESSION, "--hand", "other").stderr
    peer.sandboxes.clear()
    assert "no sandbox" in handmesh("files", SESSION).stderr

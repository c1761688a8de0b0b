"""The commands for sessions as a whole: archive, delete, fork, export, import."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from handmesh.session.v1 import config_pb2, event_pb2
from tests.cli.peer import Peer

Command = Callable[..., Result]


@pytest.fixture
def session(peer: Peer) -> str:
    """A session with six events, which are two pages."""
    session_id = peer.start("sess_" + "a" * 26)
    for number in range(5):
        text = f'[{{"type":"text","text":"{number} \\u65e5"}}]'
        peer.append(session_id, "client", message_received=event_pb2.MessageReceived(content_json=text))
    return session_id


def test_archive_and_back(peer: Peer, handmesh: Command, session: str) -> None:
    """It says how to undo it, and undoes it."""
    result = handmesh("archive", session)
    assert result.exit_code == 0 and "--restore" in result.stdout
    assert peer.archived == {session}
    assert handmesh("archive", session, "--restore").stdout == "restored\n"
    assert peer.archived == set()


def test_delete_asks_first(peer: Peer, handmesh: Command, session: str) -> None:
    """Without a yes nothing is deleted; with one, or with --yes, it is."""
    assert handmesh("delete", session, text="n\n").exit_code == 1
    assert handmesh("delete", session, text="").exit_code == 1
    assert session in peer.items
    assert handmesh("delete", session, text="y\n").exit_code == 0
    assert session not in peer.items
    result = handmesh("delete", session, "--yes")
    assert result.exit_code == 1 and "SESSION_NOT_FOUND" in result.stderr


def test_fork_prints_an_id(peer: Peer, handmesh: Command, session: str) -> None:
    """Standard output is the new session's id; the position, title and labels are as they were given."""
    peer.configs[session] = config_pb2.SessionConfig(title="old", system="kept", labels={"k": "v"})
    made = handmesh("fork", session, "--at", "3", "--title", "new", "--label", "a=b").stdout.strip()
    assert peer.events(made) == peer.events(session)[:3]
    assert peer.configs[made] == config_pb2.SessionConfig(title="new", system="kept", labels={"k": "v", "a": "b"})
    whole = handmesh("fork", session).stdout.strip()
    assert peer.events(whole) == peer.events(session)


def test_export_and_import(peer: Peer, handmesh: Command, session: str, tmp_path: Path) -> None:
    """What is exported is imported as it was, from a file and from standard input."""
    exported = handmesh("export", session).stdout
    assert exported.isascii() and len(exported.splitlines()) == 8
    file = tmp_path / "log.jsonl"
    file.write_text(exported)
    for made in (handmesh("import", str(file)), handmesh("import", "-", text=exported)):
        assert made.exit_code == 0, made.stderr
        assert peer.events(made.stdout.strip()) == peer.events(session)


def test_a_wrong_file_reaches_nobody(peer: Peer, handmesh: Command, session: str, tmp_path: Path) -> None:
    """A line that was changed is named, and nothing is sent; so is a file that is none, or is not there."""
    exported = handmesh("export", session).stdout
    before = dict(peer.items)
    result = handmesh("import", "-", text=exported.replace("2 ", "3 "))
    assert result.exit_code == 2 and "event 4" in result.stderr and "LOG_INVALID" in result.stderr
    file = tmp_path / "noise"
    file.write_bytes(b"\xff\xfe\x00" * 50)
    assert handmesh("import", str(file)).exit_code == 2
    assert handmesh("import", str(tmp_path / "missing")).exit_code == 2
    assert peer.items == before


def test_an_event_of_an_unknown_kind_is_not_left_out(peer: Peer, handmesh: Command, session: str) -> None:
    """JSON cannot hold what this version does not know, so the export fails and says where."""
    peer.append(session, ignorable=True)
    result = handmesh("export", session)
    assert result.exit_code == 2 and "event 7" in result.stderr


def test_export_carries_blobs(peer: Peer, handmesh: Command, session: str) -> None:
    """What lies beside the log is in the file, unless it is not wanted; the import gives it back."""
    data = bytes(range(256)) * 16
    blob = event_pb2.BlobRef(blob_id="blob_" + "0" * 26, media_type="image/png", size=len(data))
    blob.sha256 = hashlib.sha256(data).hexdigest()
    peer.blobs[session, blob.blob_id] = (blob, data)
    exported = handmesh("export", session).stdout
    made = handmesh("import", "-", text=exported).stdout.strip()
    assert peer.blobs[made, blob.blob_id] == (blob, data)
    bare = handmesh("import", "-", "--without-blobs", text=exported).stdout.strip()
    assert (bare, blob.blob_id) not in peer.blobs
    assert len(handmesh("export", session, "--without-blobs").stdout.splitlines()) == 8
    peer.blobs[session, blob.blob_id] = (blob, b"damaged")
    result = handmesh("export", session)
    assert result.exit_code != 0 and "BLOB_DAMAGED" in result.stderr

"""What the command says of harness types, and of sessions that wait for one."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from typer.testing import Result

from handmesh.cli import waiting
from handmesh.harness.v1.harness_pb2 import HarnessType
from handmesh.session.v1 import event_pb2
from handmesh.session.v1.config_pb2 import SessionConfig
from tests.cli.peer import Peer

Command = Callable[..., Result]


def done(peer: Peer, session_id: str, position: int) -> None:
    """Ends the turn as a harness does."""
    peer.append(
        session_id, turn_ended=event_pb2.TurnEnded(reason=event_pb2.TURN_END_REASON_DONE, read_position=position)
    )


def late(peer: Peer, session_id: str, position: int) -> None:
    """Does so when the command has had the time to wonder."""
    time.sleep(0.5)
    done(peer, session_id, position)


def test_the_types_of_the_mesh(peer: Peer, handmesh: Command) -> None:
    """Each with how many serve it and for how many sessions more, what it is, and why it cannot be had."""
    peer.types += [
        HarnessType(name="claude_code", description="Claude Code.", unavailable="pip install 'handmesh[claude-code]'"),
        HarnessType(name="echo", description="Answers with the text."),
    ]
    peer.served |= {"echo": (2, 7), "theirs": (1, 1)}
    result = handmesh("harness", "types")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:3] for row in rows[1:]] == [
        ["claude_code", "-", "-"],
        ["echo", "2", "7"],
        ["messages", "1", "100"],
        ["theirs", "1", "1"],
    ]
    assert "Not available: pip install 'handmesh[claude-code]'." in result.stdout
    assert "handmesh move ID --harness NAME" in result.stderr
    assert len(handmesh("harness", "types", "--json").stdout.splitlines()) == 4


def test_the_types_when_no_harness_answers(peer: Peer, handmesh: Command) -> None:
    """What is served elsewhere is listed all the same."""
    peer.types, peer.served = [], {"theirs": (1, 1)}
    result = handmesh("harness", "types")
    assert result.exit_code == 0 and "theirs" in result.stdout


def test_a_session_of_a_type(peer: Peer, handmesh: Command) -> None:
    """`run --harness` makes a session of that type; one that is there keeps its own."""
    peer.brain = done
    assert handmesh("run", "x", "--harness", "echo").exit_code == 0
    ((session_id, config),) = peer.configs.items()
    assert config.harness == "echo"
    refused = handmesh("run", "x", "--harness", "echo", "--session", session_id)
    assert refused.exit_code == 2 and "leave out what would configure a new one" in refused.stderr


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ({"messages": (1, 5)}, "no harness of type echo runs: the session waits for one"),
        ({"echo": (2, 0)}, "all harnesses of type echo are at work: the session waits for one"),
        ({"echo": (1, 1)}, ""),
    ],
)
def test_a_run_that_nobody_takes_up_says_why(
    peer: Peer, handmesh: Command, monkeypatch: pytest.MonkeyPatch, served: dict[str, tuple[int, int]], said: str
) -> None:
    """After a moment without a word from a harness it is said what is the matter, and how to help."""
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.05)
    peer.brain, peer.served = late, served
    result = handmesh("run", "x", "--harness", "echo")
    assert result.exit_code == 0
    assert said in result.stderr and ("handmesh harness types" in result.stderr) == bool(said)


def test_a_run_that_is_taken_up_says_nothing(peer: Peer, handmesh: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a harness was heard nobody wonders, however long it takes."""

    def woken(peer: Peer, session_id: str, position: int) -> None:
        peer.append(session_id, harness_woke=event_pb2.HarnessWoke(harness="echo"))
        late(peer, session_id, position)

    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.2)
    peer.brain, peer.served = woken, {}
    assert "waits" not in handmesh("run", "x", "--harness", "echo").stderr


def test_a_session_is_moved(peer: Peer, handmesh: Command) -> None:
    """Nothing but its type changes, also when the session changes meanwhile; who will not be served is told."""
    session_id = peer.start("s")
    peer.configs[session_id] = SessionConfig(title="kept")
    peer.meanwhile = 3
    result = handmesh("move", "s", "--harness", "echo")
    assert (result.exit_code, result.stdout) == (0, "moved from messages to echo\n")
    assert "no harness of type echo runs" in result.stderr
    assert (peer.configs["s"].harness, peer.configs["s"].title) == ("echo", "kept")
    back = handmesh("move", "s", "--harness", "messages")
    assert (back.stdout, back.stderr) == ("moved from echo to messages\n", "")


def test_a_session_that_never_keeps_still_is_not_moved(peer: Peer, handmesh: Command) -> None:
    """The mesh's refusal is said in the end."""
    peer.start("s")
    peer.meanwhile = 1_000
    result = handmesh("move", "s", "--harness", "echo")
    assert result.exit_code != 0 and "the log has moved on" in result.stderr

"""The commands that look at sessions and speak to them, against a peer on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import json_format
from typer.testing import CliRunner, Result

from handmesh.cli.__main__ import app
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2
from tests.cli.peer import KEY, Peer

Command = Callable[..., Result]


def test_sessions_are_a_table(peer: Peer, handmesh: Command) -> None:
    """Each session is a line: its id whole, what it does, how long it is, its title made safe."""
    for number in range(5):
        session_id = peer.start(f"sess_{number:026d}")
        peer.configs[session_id] = config_pb2.SessionConfig(title=f"title {number} \x1b[31m")
    result = handmesh("sessions")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split() == ["session", "status", "began", "turns", "events", "tokens", "cost", "title"]
    assert [line.split()[0] for line in lines[1:]] == sorted(peer.items, reverse=True)
    assert lines[1].endswith("title 4 \\x1b[31m")


def test_sessions_as_json_are_the_contracts(peer: Peer, handmesh: Command) -> None:
    """One line for each session, which any protobuf library reads back; --limit bounds them."""
    for number in range(5):
        peer.start(f"sess_{number:026d}")
    lines = handmesh("sessions", "--json", "--limit", "4").stdout.splitlines()
    read = [json_format.Parse(line, session_pb2.Session()) for line in lines]
    assert [session.session_id for session in read] == sorted(peer.items, reverse=True)[:4]


def test_no_sessions_say_how_to_start_one(handmesh: Command) -> None:
    """An empty list helps, and leaves standard output empty for programs."""
    result = handmesh("sessions")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "handmesh run" in result.stderr


def test_events_are_lines(peer: Peer, handmesh: Command) -> None:
    """A log is a line for each event: position, time, emitter, kind, content."""
    peer.start("s")
    peer.append("s", "client", message_received=event_pb2.MessageReceived(content_json='[{"type":"text","text":"hi"}]'))
    lines = handmesh("events", "s").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert lines[1].split()[2:] == ["client", "message_received", "hi"]


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ((), list(range(1, 11))),
        (("--from", "3", "--to", "7"), [3, 4, 5, 6]),
        (("--last", "4"), [7, 8, 9, 10]),
        (("--to", "5", "--last", "2"), [3, 4]),
        (("--kind", "session_started"), [1]),
        (("--from", "99"), []),
    ],
)
def test_events_take_slices(peer: Peer, handmesh: Command, options: tuple[str, ...], positions: list[int]) -> None:
    """The slices are those of the contract: from inclusive, to exclusive, the last so many."""
    peer.start("s")
    for _ in range(9):
        peer.append("s", message_received=event_pb2.MessageReceived())
    lines = handmesh("events", "s", "--json", *options).stdout.splitlines()
    assert [int(json.loads(line)["position"]) for line in lines] == positions


def test_events_as_json_are_the_log(peer: Peer, handmesh: Command) -> None:
    """What is printed is the log itself: each line parses back to the event, and holds nothing a terminal obeys."""
    peer.start("s")
    peer.append("s", message_received=event_pb2.MessageReceived(content_json='[{"text":"\u202e\x1b[31m日本"}]'))
    printed = handmesh("events", "s", "--json").stdout
    assert printed.isascii()
    assert "\x1b" not in printed
    assert [json_format.Parse(line, event_pb2.Event()) for line in printed.splitlines()] == peer.events("s")


def test_following_goes_on_until_the_session_ends(peer: Peer, handmesh: Command) -> None:
    """--follow prints what is there, then what comes, each event once; an ended session has nothing to come."""
    peer.start("s")
    for _ in range(4):
        peer.append("s", message_received=event_pb2.MessageReceived())
    peer.brain = lambda peer, session_id, position: peer.append(
        session_id, "session", session_ended=event_pb2.SessionEnded()
    )
    peer.on_watch = lambda: peer._append("s", event_pb2.Event(message_received=event_pb2.MessageReceived()), "client")
    result = handmesh("events", "s", "--follow", "--last", "2")
    assert [int(line.split()[0]) for line in result.stdout.splitlines()] == [4, 5, 6, 7]


def test_uses_of_credentials_are_a_table(peer: Peer, handmesh: Command) -> None:
    """Which, where, for which call and how it ended, made safe; other events are not in it; JSON is the contract's."""
    peer.start("s")
    used = event_pb2.CredentialUsed(
        credential_id="cred_1", vault_id="vault_1", server="shop\x1b[31m", execution_id="toolu_1", result="ok"
    )
    peer.append("s", "vault_proxy", credential_used=used)
    peer.append("s", "harness", turn_ended=event_pb2.TurnEnded())
    refused = event_pb2.DoorRefused(door="git", target="https://h/o/n", reason="GIT_PUSH_DENIED")
    peer.start("t")
    peer.append("t", "vault_proxy", door_refused=refused)
    lines = handmesh("vault", "audit", "s").stdout.splitlines()
    assert lines[0].split() == ["time", "session", "credential", "where", "call", "result"]
    assert [line.split()[2:] for line in lines[1:]] == [["s", "cred_1", "shop\\x1b[31m", "toolu_1", "ok"]]
    lines = handmesh("vault", "audit").stdout.splitlines()
    assert lines[2].split()[2:] == ["t", "-", "https://h/o/n", "git", "door", "GIT_PUSH_DENIED"]
    [line] = handmesh("vault", "audit", "s", "--json").stdout.splitlines()
    assert json_format.Parse(line, session_pb2.AuditEntry()).event.credential_used == used


def test_a_session_without_credentials_says_so(peer: Peer, handmesh: Command) -> None:
    """Standard output stays empty for programs."""
    peer.start("s")
    result = handmesh("vault", "audit", "s")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No credential" in result.stderr


def test_send_says_where_to_look(peer: Peer, handmesh: Command) -> None:
    """A message is sent and not waited for."""
    peer.start("s")
    result = handmesh("send", "s", "-", text="from standard input\n")
    assert result.exit_code == 0
    assert "position 2" in result.stdout
    assert json.loads(peer.events("s")[1].message_received.content_json)[0]["text"] == "from standard input\n"


def test_interrupt_wake_and_end(peer: Peer, handmesh: Command) -> None:
    """The small verbs do what they say, and say what they did."""
    peer.start("s")
    assert handmesh("interrupt", "s").exit_code == 0
    assert handmesh("wake", "s").stdout == "started\n"
    assert handmesh("end", "s", "--reason", "enough").exit_code == 0
    assert [event.WhichOneof("kind") for event in peer.events("s")] == [
        "session_started",
        "interrupt_requested",
        "session_ended",
    ]
    assert peer.events("s")[-1].session_ended.reason == "enough"


def test_the_key_is_printed_alone(handmesh: Command) -> None:
    """`$(handmesh key)` works in a shell."""
    assert handmesh("key").stdout == f"{KEY}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("events", "sess_nowhere"), 1, ["no such session [SESSION_NOT_FOUND]", "handmesh sessions"]),
        (("events", "s", "--follow", "--to", "3"), 2, ["--follow"]),
        (("events", "s", "--from", "0"), 2, ["--from"]),
        (("events",), 2, ["ID"]),
        (("send", "s", "  "), 2, ["empty"]),
        (("sessions", "--status", "sleepy"), 2, ["sleepy", "idle", "waiting"]),
        (("sessions", "--label", "red"), 2, ["KEY=VALUE"]),
        (("run", ""), 2, ["empty"]),
        (("run", "x", "--hand", "A=b"), 2, ["NAME=ENVIRONMENT"]),
        (("run", "x", "--session", "s", "--model", "m"), 2, ["--session"]),
        (("run", "x", "--timeout", "0"), 2, ["--timeout"]),
        (("nonsense",), 2, ["nonsense"]),
    ],
)
def test_problems_are_said_with_a_way_out(
    peer: Peer, handmesh: Command, arguments: tuple[str, ...], code: int, words: list[str]
) -> None:
    """What is wrong goes to standard error, with what was expected; nothing is sent or printed otherwise."""
    peer.start("s")
    result = handmesh(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert not [word for word in words if word not in result.stderr]
    assert len(peer.events("s")) == 1


@pytest.mark.parametrize("arguments", [("sessions",), ("events", "s"), ("run", "x"), ("wake", "s"), ("key",)])
def test_without_a_mesh_every_command_says_how_to_start_one(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Nobody has to know what a data directory is to get going."""
    environment = {"HANDMESH_DATA_DIR": str(tmp_path), "HANDMESH_ADDRESS": "", "HANDMESH_API_KEY": ""}
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 1
    assert "handmesh up" in result.stderr


def test_a_mesh_that_does_not_answer_is_said(peer: Peer, handmesh: Command) -> None:
    """A launcher that runs without its services is told from one that does not run."""
    peer.stop()
    result = handmesh("sessions")
    assert result.exit_code == 1
    assert "handmesh doctor" in result.stderr


def test_help_teaches(handmesh: Command) -> None:
    """The help shows examples as they are typed, one a line, and every command has a line."""
    text = handmesh("--help").stdout
    assert '\n    handmesh run "list the files"' in text
    for command in (
        "up",
        "down",
        "run",
        "sessions",
        "events",
        "send",
        "interrupt",
        "wake",
        "raise",
        "end",
        "key",
        "doctor",
    ):
        assert f"\n  {command} " in text
    assert "124 --timeout" in handmesh("run", "--help").stdout
    assert "\n    handmesh events ID --last 5 " in handmesh("events", "--help").stdout


def test_the_scripted_model_takes_its_own_options(handmesh: Command, tmp_path: Path) -> None:
    """`handmesh model` hands its options on, and its exit code back."""
    script = tmp_path / "script.yaml"
    script.write_text("turns: [{say: [{text: hi}]}]")
    assert handmesh("model", "--check", "--script", str(script)).exit_code == 0
    script.write_text("turns: 3")
    assert handmesh("model", "--check", "--script", str(script)).exit_code == 2


def test_the_version_is_told(handmesh: Command) -> None:
    """`handmesh --version` is what a bug report begins with."""
    result = handmesh("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("handmesh ")

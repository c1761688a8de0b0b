"""`handmesh run`: what is printed where, when it ends, and with which code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from google.protobuf import json_format
from typer.testing import Result

from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2
from tests.cli.peer import Peer

Command = Callable[..., Result]


def reply(*blocks: dict[str, object]) -> event_pb2.ModelReplied:
    return event_pb2.ModelReplied(content_json=json.dumps(blocks))


def ending(reason: str, answer: str = "") -> Callable[[Peer, str, int], None]:
    """Makes a brain that answers and ends its turn for the given reason."""

    def brain(peer: Peer, session_id: str, position: int) -> None:
        if answer:
            peer.append(session_id, model_replied=reply({"type": "text", "text": answer}))
        value = event_pb2.TurnEndReason.Value(f"TURN_END_REASON_{reason}")
        peer.append(session_id, turn_ended=event_pb2.TurnEnded(reason=value, read_position=position))

    return brain


@pytest.mark.parametrize(
    ("reason", "code"), [("DONE", 0), ("FAILED", 1), ("REFUSED", 3), ("LIMIT", 4), ("INTERRUPTED", 5)]
)
def test_the_exit_code_says_how_the_turn_ended(peer: Peer, handmesh: Command, reason: str, code: int) -> None:
    """Scripts branch on the exit code."""
    peer.brain = ending(reason)
    assert handmesh("run", "do it").exit_code == code


def test_standard_output_is_the_models_text_alone(peer: Peer, handmesh: Command) -> None:
    """`handmesh run ... > answer.txt` gives the answer; session, tools and what to do next are on standard error."""

    def brain(peer: Peer, session_id: str, position: int) -> None:
        peer.show(session_id, event_id="r1", text="I lo")
        call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
        peer.append(session_id, event_id="r1", model_replied=reply({"type": "text", "text": "I look."}, call))
        result = tool_pb2.ToolResult(output="a.txt", outcome=tool_pb2.TOOL_OUTCOME_OK)
        peer.append(session_id, tool_finished=event_pb2.ToolFinished(tool_use_id="t1", result=result))
        ending("DONE", "One file.")(peer, session_id, position)

    peer.brain = brain
    result = handmesh("run", "list the files")
    assert result.stdout == "I look.\nOne file.\n"
    (session_id,) = peer.items
    for part in (f"session {session_id}", "→ bash: ls", "a.txt", "turn ended: done", f"--session {session_id}"):
        assert part in result.stderr


def test_json_is_every_event_and_nothing_else(peer: Peer, handmesh: Command) -> None:
    """--json prints the events from the message on, as protobuf JSON lines; previews are none."""
    peer.brain = ending("DONE", "hi")
    result = handmesh("run", "do it", "--json")
    (session_id,) = peer.items
    printed = [json_format.Parse(line, event_pb2.Event()) for line in result.stdout.splitlines()]
    assert printed == peer.events(session_id)[1:]


def test_options_reach_the_session(peer: Peer, handmesh: Command) -> None:
    """What is configured on the command line is what the session is."""
    peer.brain = ending("DONE")
    handmesh("run", "x", "--model", "m", "--environment", "docker", "--mcp", "notes=http://n/mcp", "--vault", "v")
    (config,) = peer.configs.values()
    assert (config.model, config.hands["main"].environment) == ("m", "docker")
    assert (config.mcp_servers[0].name, config.mcp_servers[0].url, config.vault_ids) == ("notes", "http://n/mcp", ["v"])


def test_a_session_goes_on(peer: Peer, handmesh: Command) -> None:
    """--session says the task to a session that is there, and only shows what comes after it."""
    session_id = peer.start("s")
    peer.append(session_id, model_replied=reply({"type": "text", "text": "old"}))
    peer.brain = ending("DONE", "new")
    result = handmesh("run", "more", "--session", "s")
    assert (result.exit_code, result.stdout) == (0, "new\n")


def test_an_earlier_turns_end_is_not_ours(peer: Peer, handmesh: Command) -> None:
    """A turn that ends without having read our message is another one: following goes on."""

    def brain(peer: Peer, session_id: str, position: int) -> None:
        earlier = event_pb2.TurnEnded(reason=event_pb2.TURN_END_REASON_FAILED, read_position=position - 1)
        peer.append(session_id, turn_ended=earlier)
        ending("DONE", "ours")(peer, session_id, position)

    peer.start("s")
    peer.brain = brain
    assert handmesh("run", "more", "--session", "s").exit_code == 0


def test_an_ended_session_ends_the_run(peer: Peer, handmesh: Command) -> None:
    """Somebody may end the session in the middle: nothing will come any more."""
    peer.brain = lambda peer, session_id, position: peer.append(
        session_id, "session", session_ended=event_pb2.SessionEnded()
    )
    assert handmesh("run", "x").exit_code == 1


def test_an_ended_session_takes_no_task(peer: Peer, handmesh: Command) -> None:
    """The mesh's refusal is said."""
    peer.start("s")
    peer.append("s", "session", session_ended=event_pb2.SessionEnded())
    result = handmesh("run", "x", "--session", "s")
    assert result.exit_code == 1
    assert "SESSION_ENDED" in result.stderr


def test_breaks_in_between_do_not_show(peer: Peer, handmesh: Command) -> None:
    """A connection that breaks during a run changes nothing of what is printed."""
    peer.brain = ending("DONE", "whole")
    peer.break_after = [1, 1]
    assert handmesh("run", "x").stdout == "whole\n"


def test_a_timeout_asks_the_agent_to_stop(peer: Peer, handmesh: Command) -> None:
    """--timeout ends the waiting with 124, and does not leave an agent at work that nobody waits for."""
    result = handmesh("run", "x", "--timeout", "0.1")
    (session_id,) = peer.items
    assert result.exit_code == 124
    assert peer.events(session_id)[-1].HasField("interrupt_requested")


class Running:
    """`handmesh run` as a process of its own, for signals."""

    def __init__(self, data_directory: Path) -> None:
        command = [sys.executable, "-m", "handmesh.cli", "run", "x"]
        environment = {**os.environ, "HANDMESH_DATA_DIR": str(data_directory)}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def until(self, word: str) -> None:
        """Reads what is said until a word comes."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return
        raise AssertionError(f"it never said {word!r}")

    def end(self) -> int:
        self.process.communicate(timeout=20)
        return self.process.returncode


def test_ctrl_c_asks_the_agent_to_stop_and_waits_for_it(peer: Peer, data_directory: Path) -> None:
    """The first Ctrl-C interrupts the turn: the log has the request, and the command waits for the end."""

    def brain(peer: Peer, session_id: str, position: int) -> None:
        with peer.changed:
            peer.changed.wait_for(lambda: peer.events(session_id)[-1].HasField("interrupt_requested"), 20)
        ending("INTERRUPTED")(peer, session_id, position)

    peer.brain = brain
    with Running(data_directory) as running:
        running.until("session")
        running.press_ctrl_c()
        running.until("turn ended: interrupted")
        assert running.end() == 130


def test_a_second_ctrl_c_leaves(peer: Peer, data_directory: Path) -> None:
    """An agent that does not stop holds nobody up: the second Ctrl-C leaves, and one interrupt was asked for."""
    with Running(data_directory) as running:
        running.until("session")
        running.press_ctrl_c()
        running.until("asking the agent to stop")
        running.press_ctrl_c()
        assert running.end() == 130
    (session_id,) = peer.items
    kinds = [event.WhichOneof("kind") for event in peer.events(session_id)]
    assert kinds.count("interrupt_requested") <= 1

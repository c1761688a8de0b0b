"""Runs the demo: `python -m handmesh.demo`. Exits with 0 when everything that must hold does, else with 1."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from google.protobuf.json_format import MessageToJson

from handmesh.cli.following import Item
from handmesh.cli.lines import kind_of
from handmesh.cli.printing import console, print_event
from handmesh.cli.transcript import Transcript
from handmesh.client import HandmeshError, Session
from handmesh.demo import proof
from handmesh.demo.narration import Narrator
from handmesh.demo.stage import (
    SERVER,
    Stage,
    calls_served,
    mesh_of_its_own,
    server_address,
    set_up,
    status_without_token,
)
from handmesh.demo.story import HAND, StoryError, first_turn, sandbox_of, second_turn
from handmesh.launcher.errors import LaunchError
from handmesh.session.v1 import event_pb2

DOCKER_ENVIRONMENT = "docker"
UNAUTHORIZED = 401


def main() -> int:
    """Runs the demo and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m handmesh.demo", description=__doc__)
    parser.add_argument("--docker", action="store_true", help="the hand is a Docker container, not bubblewrap")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep everything in this new folder")
    arguments = parser.parse_args()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's notes about connections are no part of the story
    narrator = Narrator(console())
    environment = DOCKER_ENVIRONMENT if arguments.docker else ""
    try:
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
            good = asyncio.run(perform(arguments.keep.absolute(), narrator, environment))
        else:
            with tempfile.TemporaryDirectory(prefix="handmesh-demo-") as directory:
                good = asyncio.run(perform(Path(directory), narrator, environment))
    except (HandmeshError, LaunchError, StoryError) as problem:
        return _failed(narrator, str(problem))
    except TimeoutError:
        return _failed(narrator, "it took too long")
    except KeyboardInterrupt:
        return 130
    if not good:
        return _failed(narrator, "something that must hold does not")
    narrator.out.print(f"\ndemo: ok ({narrator.seconds:.0f} s)", style="bold green")
    return 0


async def perform(directory: Path, narrator: Narrator, environment: str) -> bool:
    """Plays the whole demo below `directory`; returns whether everything holds that must."""
    narrator.step("A mesh starts on this machine", "nats-server, OpenBao, four services; the model is scripted")
    server = server_address()
    async with mesh_of_its_own(directory, server) as mesh:
        parts = ", ".join(f"{part} {pid}" for part, pid in mesh.pids.items())
        narrator.say(f"healthy after {narrator.seconds:.1f} s: {parts}")
        narrator.step("An MCP server starts, and OpenBao alone gets the token for it", "MCP server, OpenBao")
        async with set_up(directory, mesh, server) as stage:
            status = await asyncio.to_thread(status_without_token, stage.server_url)
            narrator.say(f"{stage.server_url} answers callers without the token with {status}")
            narrator.step("A session: the model's text as it streams, and tools in an isolated hand", "log, sandbox")
            transcript = Transcript(narrator.out, sys.stdout)

            def show(item: Item) -> None:
                if isinstance(item, event_pb2.Event):
                    transcript.show(item)
                else:
                    transcript.preview(item)

            session = await first_turn(stage, narrator, show, environment)
            narrator.step("A second turn, with a command that takes its time", "the same session, the same hand")
            call = await second_turn(stage, narrator, session, show)
            return status == UNAUTHORIZED and await _prove(stage, narrator, session, call)


async def _prove(stage: Stage, narrator: Narrator, session: Session, call: str) -> bool:
    """Prints the log and says what holds; returns whether all does."""
    narrator.step("The log: everything that happened, and all that a harness knows", "read back from NATS JetStream")
    events = [event async for event in session.events()]
    for event in events:
        print_event(narrator.out, event)
    narrator.step("What must hold")
    executions = [each.execution_id for each in await stage.client.executions(await sandbox_of(session))]
    findings = [
        proof.dense_positions(events),
        proof.turns_done(events, turns=2),
        proof.one_result_per_call(events),
        proof.all_calls_went_well(events),
        proof.taken_over(events, call),
        proof.ran_once(_last_output(events)),
        proof.same_executions(events, HAND, executions),
        proof.same_calls(events, SERVER, await asyncio.to_thread(calls_served, stage.server_url)),
        proof.secret_is_nowhere(stage.token, _places(stage, events)),
    ]
    for finding in findings:
        narrator.finding(finding)
    return all(finding.holds for finding in findings)


def _last_output(events: list[event_pb2.Event]) -> str:
    """Returns what the last tool said: the file that the slow job had written to."""
    return [event.tool_finished.result.output for event in events if kind_of(event) == "tool_finished"][-1]


def _places(stage: Stage, events: list[event_pb2.Event]) -> dict[str, bytes]:
    """Returns all that the mesh has written down: the exported log, every log file, every store."""
    places = {
        "the exported log": b"\n".join(event.SerializeToString() for event in events),
        "the exported log as JSON": "\n".join(MessageToJson(event) for event in events).encode(),
    }
    for path in stage.data_directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            places[str(path.relative_to(stage.data_directory))] = path.read_bytes()
    return places


def _failed(narrator: Narrator, why: str) -> int:
    narrator.out.print(f"\ndemo: failed: {why}", style="bold red")
    return 1


if __name__ == "__main__":
    sys.exit(main())

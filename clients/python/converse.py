"""Gives an agent a task and sees it through: answers its tool, decides what it asks, and prints all that happens.

    HANDMESH_API_KEY=... python converse.py --address 127.0.0.1:7401 "look into order 7"

The agent has one tool of ours, `lookup_order`, and has to ask before it runs `bash`. docs/clients.md explains it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import lines
from mesh_client import Mesh, MeshError, Session

from handmesh.session.v1.config_pb2 import TOOL_POLICY_ACTION_ASK, CustomTool, SessionConfig, ToolPolicy
from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import Preview

CONFIG = SessionConfig(
    title="converse",
    custom_tools=[
        CustomTool(
            name="lookup_order",
            description="Tells how an order stands.",
            input_schema_json='{"type":"object","properties":{"order_id":{"type":"string"}},"required":["order_id"]}',
        )
    ],
    tool_policies=[ToolPolicy(pattern="bash", action=TOOL_POLICY_ACTION_ASK)],
)


def main() -> int:
    """Returns the exit code: 0 when the turn has ended, 1 when the mesh refused something or is away, 2 for misuse."""
    parser = argparse.ArgumentParser(description="Gives an agent a task and sees it through.")
    parser.add_argument("--address", required=True, help="host:port of the session service")
    parser.add_argument("--ca", type=Path, help="PEM file of the authority to trust")
    parser.add_argument("--session", help="goes on with this session")
    parser.add_argument("--from", type=int, default=1, dest="start", help="first position to print")
    parser.add_argument("--deny", action="store_true", help="declines what the agent asks for")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for which a mesh that is away is tried")
    parser.add_argument("task", nargs="?")
    options = parser.parse_args()
    api_key = os.environ.get("HANDMESH_API_KEY", "")
    if not api_key or not (options.task or options.session):
        parser.error("HANDMESH_API_KEY has to be set, and a task or a session to be given")
    try:
        with Mesh(options.address, api_key, options.ca, options.patience) as mesh:
            converse(mesh, options)
    except MeshError as error:
        show({"error": lines.of_error(error)})
        return 1
    return 0


def converse(mesh: Mesh, options: argparse.Namespace) -> None:
    """Begins, or goes on, and follows the session until the turn has ended."""
    said = 0
    if options.session:
        session = mesh.session(options.session)
        said = session.send(options.task) if options.task else 0
    else:
        session = mesh.create(CONFIG, options.task)
    show({"session": session.id})
    for it in session.watch(options.start, previews=True):
        if isinstance(it, Preview):
            show(lines.of_preview(it))
            continue
        show(lines.of_event(it))
        try:
            react(session, it, allowed=not options.deny)
        except MeshError as error:
            if error.reason not in ("TOOL_CALL_SETTLED", "TOOL_CALL_UNKNOWN"):
                raise
            show({"refused": lines.of_error(error)})  # somebody else was first
        if it.HasField("turn_ended") and it.position > said:
            return


def react(session: Session, event: Event, *, allowed: bool) -> None:
    """Does what an event asks of a client."""
    match event.WhichOneof("kind"):
        case "custom_tool_requested":
            asked = event.custom_tool_requested
            order = json.loads(asked.input_json).get("order_id", "?")
            session.answer(asked.tool_use_id, f"order {order} is paid")
        case "tool_confirmation_requested":
            session.decide(event.tool_confirmation_requested, allowed, "" if allowed else "Not now.")


def show(line: dict[str, Any]) -> None:
    """Prints one line."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())

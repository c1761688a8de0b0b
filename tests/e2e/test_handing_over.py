"""A hand changes its owner on a real mesh: by the model's own tool, and by the command."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.session.v1.config_pb2 import ChildLimits, HandSpec, SessionConfig
from tests.e2e.test_mesh import ends, only, outcomes, turn

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

TOOLS = ["start_session", "wait_for_session", "send_message", "hand_over"]


async def test_a_model_hands_a_hand_to_a_child(client: Client) -> None:
    """What was in it is there for the child; the parent's next call gets an empty one; both logs tell the same."""
    config = SessionConfig(child_limits=ChildLimits(), mesh_tools=TOOLS)
    session = await client.create_session(config, "fill a hand")
    events = await turn(session)
    assert (outcomes(events), ends(events)) == (["OK"] * 6, ["DONE"]), only(events, "tool_finished")
    gone = only(events, "hand_transferred")[0]
    first, second = only(events, "sandbox_provisioned")
    assert (gone.hand, gone.sandbox_id, first.sandbox_id) == ("main", first.sandbox_id, gone.sandbox_id)
    assert second.sandbox_id != first.sandbox_id
    results = {it.tool_use_id: it.result.output for it in only(events, "tool_finished")}
    assert any("nothing left" in output for output in results.values())
    assert "I found: from above" in json.dumps(list(results.values()))
    child = client.session(gone.to_session_id)
    heard = [event async for event in child.events()]
    came = only(heard, "hand_attached")[0]
    assert (came.hand, came.sandbox_id, came.from_session_id) == ("gift", first.sandbox_id, session.id)
    assert [it.sandbox_id for it in only(heard, "tool_started")] == [first.sandbox_id]


async def test_the_command_makes_moves_shares_and_ends_hands(mesh: Mesh, client: Client) -> None:
    """A hand that outlives sessions is attached, transferred, shared, detached and released, each by its name."""
    one = await client.create_session(SessionConfig(no_hands=True))
    two = await client.create_session(SessionConfig(hands={"own": HandSpec()}))

    async def hand(*words: str) -> list[dict[str, object]]:
        command = [sys.executable, "-m", "handmesh.cli", "hand", *words]
        environment = {**os.environ, "HANDMESH_DATA_DIR": str(mesh.files.data_directory)}
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert process.returncode == 0, words
        return [json.loads(line) for line in said.splitlines()]

    (made,) = await hand("create", "bench", "--description", "for tests", "--json")
    (there,) = await hand("attach", "bench", one.id, "--as", "tool", "--json")
    assert (there["sandboxId"], there["sessionId"], there["hand"]) == (made["sandboxId"], one.id, "tool")
    (moved,) = await hand("transfer", f"{one.id}/tool", two.id, "--settle", "0", "--json")
    assert (moved["sessionId"], moved["generation"]) == (two.id, "3")
    (shared,) = await hand("share", "bench", one.id, "--json")
    assert shared["readers"] == [{"sessionId": one.id, "hand": "bench"}]
    (out,) = await hand("detach", "bench", "--json")
    assert ("sessionId" not in out, out["standingHand"]) == (True, "bench")
    await hand("release", "bench")
    kinds = [event.WhichOneof("kind") async for event in one.events()]
    assert [kind for kind in kinds if kind.startswith("hand_")] == [
        "hand_attached",
        "hand_transferred",
        "hand_attached",
        "hand_detached",
    ]

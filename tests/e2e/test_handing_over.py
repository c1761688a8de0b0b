"""Hands change their owners on a real mesh, by the model's own tool and by the command; many work side by side."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.session.v1.config_pb2 import ChildLimits, HandSpec, McpServer, SessionConfig
from tests.e2e.test_mesh import ends, only, outcomes, turn
from tests.e2e.test_remote_hands import serving

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


@pytest.mark.docker
async def test_a_slow_hand_and_a_dead_server_cost_their_own_calls_only(client: Client, tmp_path: Path) -> None:
    """Side by side: bubblewrap, docker, a hand that dialled out and stands still, a standing one, a dead server.

    The others have their results while one stands still; it has its own when it goes on.
    """
    await client.hands.create("many")
    token = (await client.hand_tokens.create("far")).token
    config = SessionConfig(
        hands={
            "box": HandSpec(environment="default"),
            "build": HandSpec(environment="docker"),
            "far": HandSpec(environment="far"),
            "tool": HandSpec(standing_hand="many", description="the shared one"),
        },
        mcp_servers=[McpServer(name="shop", url="http://127.0.0.1:9/mcp")],
    )
    command = ("-m", "handmesh.cli", "hand", "serve", "--root", str(tmp_path))
    async with serving(client, "far", token, *command) as worker:
        session = await client.create_session(config)
        worker.send_signal(signal.SIGSTOP)
        await session.send("every hand")
        finished: list[str] = []
        async with asyncio.timeout(60):
            async for event in session.watch():
                if event.HasField("tool_finished"):
                    finished.append(event.tool_finished.result.output)
                if len(finished) == 4:
                    break
        worker.send_signal(signal.SIGCONT)
        events = await turn(session)
    assert sorted(finished[1:]) == ["box", "build", "tool"] and "no tool named shop__lookup_order" in finished[0]
    assert only(events, "tool_finished")[-1].result.output == "far"
    assert [it.hand for it in only(events, "hand_attached")] == ["tool"]
    assert sorted(it.hand for it in only(events, "sandbox_provisioned")) == ["box", "build", "far"]
    described = {
        it.hand: json.loads(it.tools_json)[0]["description"] for it in only(events, "tools_offered") if it.digest
    }
    assert "the shared one" in described["tool"]
    assert ends(events) == ["DONE"]

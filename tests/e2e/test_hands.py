"""Several hands in one session on a real mesh: apart, made anew one at a time, and never at work twice."""

from __future__ import annotations

import asyncio
import json

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from handmesh.session.v1.event_pb2 import Event
from tests.drills.size import FULL, size
from tests.e2e.test_mesh import ends, kinds, only, outcomes, turn

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

ENVIRONMENTS = ["default", pytest.param("docker", marks=pytest.mark.docker)]  # of the second hand
LINES = size(120, 400)


def two(environment: str) -> SessionConfig:
    return SessionConfig(hands={"box": HandSpec(environment="default"), "build": HandSpec(environment=environment)})


def by_hand(events: list[Event], kind: str) -> list[tuple[str, str]]:
    """Returns hand and output, in the order in which the calls started."""
    outputs = {it.tool_use_id: it.result.output for it in only(events, "tool_finished")}
    return [(it.hand, outputs[it.tool_use_id]) for it in only(events, kind)]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
async def test_hands_are_apart_and_are_lost_one_at_a_time(client: Client, environment: str) -> None:
    """Each has a workspace of its own; when one is released, its next call is told so and the one after gets another.

    The other hand keeps its sandbox, and tools are offered once for each hand, with what tells them apart.
    """
    session = await client.create_session(two(environment), "two hands")
    events = await turn(session)
    first = {it.hand: it.sandbox_id for it in only(events, "sandbox_provisioned")}
    assert len(set(first.values())) == 2
    assert sorted(by_hand(events, "tool_started")[:2]) == [("box", "box"), ("build", "build")]
    for offer, name in zip(only(events, "tools_offered"), ("default", environment), strict=True):
        tools = json.loads(offer.tools_json)
        assert [tool["name"] for tool in tools][:2] == [f"{offer.hand}__bash", f"{offer.hand}__read"]
        assert all(f"On the hand `{offer.hand}` ({name}: " in tool["description"] for tool in tools)

    await client.release(first["box"])
    await session.send("two hands")
    events = await turn(session, turns=2)
    assert sorted(outcomes(events)) == ["GONE", *["OK"] * 7]
    assert sorted((it.hand, it.generation) for it in only(events, "sandbox_provisioned")) == [
        ("box", 1),
        ("box", 2),
        ("build", 1),
    ]
    assert sorted(by_hand(events, "tool_started")[-2:]) == [("box", "outputs\ndone"), ("build", "outputs\nwhere\ndone")]
    assert (kinds(events).count("tools_offered"), ends(events)) == (2, ["DONE", "DONE"])


async def test_a_hand_that_cannot_be_looked_up_costs_only_its_own_calls(client: Client) -> None:
    """The other hand's calls run; the model is told that there is no such tool, and the turn ends well."""
    events = await turn(await client.create_session(two("nowhere"), "two hands"))
    assert [(it.part, it.reason) for it in only(events, "error_raised")] == [("hand", "ENVIRONMENT_UNKNOWN")]
    assert [hand for hand, _ in by_hand(events, "tool_started")] == ["box", "box"]
    assert (sorted(outcomes(events)), ends(events)) == (["OK", "OK", "TOOL_ERROR", "TOOL_ERROR"], ["DONE"])


@pytest.mark.docker
@pytest.mark.parametrize("victim", ["harness", "sandbox"])
async def test_a_kill_during_a_command_costs_nothing(mesh: Mesh, client: Client, victim: str) -> None:
    """SIGKILL half-way: on bubblewrap and on docker the command has run once, and all that it printed is delivered."""
    session = await client.create_session(two("docker"), "endure" if FULL else "outlast")
    started = 0
    async for event in session.watch():
        started += event.HasField("tool_started")
        if started == 2:
            break
    await mesh.kill(victim)
    await mesh.restart(victim)
    events = await turn(session)
    whole = "\n".join([*map(str, range(1, LINES + 1)), "run"])
    assert sorted(by_hand(events, "tool_started")) == [("box", whole), ("build", whole)]
    assert kinds(events).count("sandbox_provisioned") == 2
    assert (outcomes(events), ends(events)) == (["OK", "OK"], ["DONE"])
    assert kinds(events).count("harness_woke") == (2 if victim == "harness" else 1)


async def test_output_that_is_no_text_goes_through_the_whole_mesh(client: Client) -> None:
    """Odd bytes, noise, characters where the cut falls, odd names: in the log as text, and the turn ends well."""
    events = await turn(await client.create_session(content="noise"))
    assert (outcomes(events), ends(events)) == (["OK"] * 5, ["DONE"])
    said = {it.tool_use_id: it.result for it in only(events, "tool_finished")}
    results = [said[call["id"]] for call in json.loads(only(events, "model_replied")[0].content_json)]
    assert results[0].output == "\ufffd" * 6
    cut = results[2]
    assert cut.truncated and cut.output.startswith("€€€") and cut.output.endswith("€€€")
    assert "\ufffd" not in cut.output
    assert results[3].output.startswith("odd")


async def test_a_silent_command_is_waited_for(client: Client) -> None:
    """Nothing between a tool and its caller loses patience: 90 s in a full drill."""
    session = await client.create_session(content="long silence" if FULL else "silence")
    async with asyncio.timeout(110):
        async for event in session.watch():
            if event.HasField("turn_ended"):
                break
    assert [it.result.output for it in only([event async for event in session.events()], "tool_finished")] == ["done"]

"""Sessions that start sessions, through the model's tools, on real parts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from handmesh.client import Client, Session
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import Budgets, ChildLimits, SessionConfig
from handmesh.session.v1.event_pb2 import Event
from tests.e2e.test_mesh import ends, kinds, last_words, only, outcomes, turn

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

TOOLS = ["start_session", "send_message", "wait_for_session", "end_session", "list_sessions"]
SECONDS = 30.0


def config(children: int = 4, depth: int = 1, **fields: Any) -> SessionConfig:
    """A session that may start others."""
    limits = ChildLimits(max_children=children, max_depth=depth, budgets=Budgets(max_turns=9))
    return SessionConfig(mesh_tools=TOOLS, child_limits=limits, **fields)


async def until(session: Session, kind: str, times: int = 1) -> list[Event]:
    """Follows a session until so many events of a kind are there."""
    found: list[Event] = []
    async with asyncio.timeout(SECONDS):
        async for event in session.watch():
            found.append(event)
            if kinds(found).count(kind) == times:
                break
    return found


def results(events: list[Event]) -> list[dict[str, Any]]:
    """Returns what the tools said."""
    return [json.loads(it.result.output) for it in only(events, "tool_finished")]


async def running(client: Client, session_id: str) -> bool:
    """Says whether a command of the session runs."""
    found = [await client.executions(box.sandbox_id) for box in await client.sandboxes(session_id)]
    return any(it.running for executions in found for it in executions)


async def test_two_children_at_once(client: Client) -> None:
    """Both are started in one reply and work side by side; their answers come back; one is written to, one ended; the
    logs are linked both ways."""
    parent = await client.create_session(config(), "two children")
    events: list[Event] = []
    async with asyncio.timeout(SECONDS):
        async for event in parent.watch():
            events.append(event)
            if event.HasField("turn_ended") and last_words(events).startswith("I heard: "):
                break  # what the child wrote came within the first turn, or began a second one
    assert set(ends(events)) == {"DONE"} and set(outcomes(events)) == {"OK"}
    started = only(events, "child_started")
    first, second = (client.session(each["session"]) for each in results(events)[:2])
    if results(events)[0]["title"] == "second":
        first, second = second, first
    told = {each["session"]: each for each in results(events) if "reply" in each}
    assert (told[first.id]["reply"], told[first.id]["status"]) == ("First: one", "idle")
    assert (told[second.id]["reply"], told[second.id]["last_turn"]) == ("Second.", "done")
    assert told[first.id]["tokens"] > 0
    [ended] = only(events, "child_ended")
    assert (ended.child_session_id, ended.reason) == (first.id, "enough")
    assert second.id in last_words(events)
    assert [it.from_session_id for it in only(events, "message_received")] == ["", second.id]
    below = await turn(second, turns=2)
    assert below[0].session_started.config.parent_session_id == parent.id
    assert below[0].session_started.config.no_hands and "sandbox_provisioned" not in kinds(below)
    assert [it.from_session_id for it in only(below, "message_received")] == [parent.id, parent.id]
    calls = {it.tool_use_id for it in only(events, "tool_started") if it.name == "start_session"}
    assert {it.tool_use_id for it in started} == calls
    assert {it.child_session_id for it in only(events, "child_rested")} >= {first.id, second.id}


async def test_limits_are_told_to_the_model(client: Client) -> None:
    """One child where one may be; a hand that is not there, a session that is not its own: values, as mistakes are."""
    events = await turn(await client.create_session(config(children=1), "too many"))
    assert sorted(outcomes(events)) == ["OK", "TOOL_ERROR", "TOOL_ERROR", "TOOL_ERROR"]
    said = " ".join(it.result.output for it in only(events, "tool_finished"))
    assert "may start 1 sessions in all" in said and "this session's hands are: main" in said
    assert "no such session" in said
    assert kinds(events).count("child_started") == 1


async def test_a_session_that_asks_for_nothing_has_no_such_tools(client: Client) -> None:
    """Names without limits offer nothing but the tool to write with."""
    session = await client.create_session(SessionConfig(mesh_tools=TOOLS, no_hands=True), "hello")
    [offer] = only(await turn(session), "tools_offered")
    assert [tool["name"] for tool in json.loads(offer.tools_json)] == ["send_message"]


async def test_an_interrupt_stops_those_below(client: Client) -> None:
    """The parent waits, the child's command runs: one interrupt, and both turns end with their calls settled."""
    parent = await client.create_session(config(), "be patient")
    events = await until(parent, "tool_started", 2)
    child = client.session(only(events, "child_started")[0].child_session_id)
    await until(child, "tool_started")
    await parent.interrupt()
    for session in (parent, child):
        assert ends(await turn(session)) == ["INTERRUPTED"]
    assert outcomes(await turn(child)) == ["INTERRUPTED"]


async def test_children_end_with_their_parent(client: Client) -> None:
    """Nothing goes on below a session that has ended."""
    parent = await client.create_session(config(), "be patient")
    events = await until(parent, "tool_started", 2)
    child = client.session(only(events, "child_started")[0].child_session_id)
    await until(child, "tool_started")
    await parent.end()
    assert (await child.get()).status == session_pb2.SESSION_STATUS_ENDED
    async with asyncio.timeout(SECONDS):
        while await running(client, child.id):
            await asyncio.sleep(0.05)

"""The mesh's own tools: offered when a session asks for them, run without a hand, and again to the same effect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import CustomTool, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import Event, HarnessWoke, InterruptRequested
from services.harness.config import Config
from services.harness.core import ToolSpec
from services.harness.mesh.calls import MeshCalls, checked
from services.kit.errors import Conflict, Gone, Unavailable
from tests.harness.test_loop import outcomes, run
from tests.support.harness_ports import Diary, MemoryHands, MemoryLog, MemoryServers, ScriptedModel, ports, said

NOTE = SessionConfig(mesh_tools=["note"], no_hands=True)
CALL = ("note", {"text": "milk"})


async def test_a_call_is_said_to_start_and_runs_without_a_hand() -> None:
    """Offered as `mesh`, started on `mesh` without a sandbox, settled once; it acts under the session's grant."""
    log, diary, model = MemoryLog(NOTE), Diary(), ScriptedModel(said(t1=CALL), said())
    await run(log, ports(model, mesh=[diary]))
    offer, started, finished = (log.only(kind)[0] for kind in ("tools_offered", "tool_started", "tool_finished"))
    assert (offer.hand, [tool["name"] for tool in json.loads(offer.tools_json)]) == ("mesh", ["note"])
    assert (started.hand, started.sandbox_id, started.name) == ("mesh", "", "note")
    assert (diary.notes, finished.result.output) == ({"t1": "milk"}, f"kept for {log.session_id} under grant")
    assert [tool["name"] for tool in model.requests[0]["tools"]] == ["note"]


async def test_a_session_that_asks_for_nothing_has_none() -> None:
    """Then nothing is looked up and nothing is in the log: logs of before are decided as they were."""
    log, model = MemoryLog(SessionConfig(no_hands=True)), ScriptedModel(said())
    await run(log, ports(model, mesh=[Diary()]))
    assert "tools_offered" not in log.kinds()
    assert "tools" not in model.requests[0]


async def test_a_tool_of_the_models_api_is_named_by_its_type() -> None:
    """The request and the log have its type and name, and nothing that the API would refuse."""
    log, model = MemoryLog(SessionConfig(mesh_tools=["memory"], no_hands=True)), ScriptedModel(said())
    await run(log, ports(model, mesh=[Diary()]))
    described = [{"type": "memory_20250818", "name": "memory"}]
    assert json.loads(log.only("tools_offered")[0].tools_json) == described
    assert [{k: v for k, v in tool.items() if k != "cache_control"} for tool in model.requests[0]["tools"]] == described


def test_other_models_are_told_what_the_api_would_have_told() -> None:
    """A tool of the API's own is an ordinary one elsewhere; one that no family has is left out."""
    calls, config = MeshCalls([Diary()]), Config(mesh_tools=("memory",))
    known, unknown = (ToolSpec(name, "", "", type=f"{name}_20250818") for name in ("memory", "other"))
    bash = ToolSpec("bash", "Runs.", '{"type":"object"}')
    assert [spec.definition()["name"] for spec in calls.described([bash, known, unknown], config)] == ["bash", "memory"]
    assert calls.described([known], config)[0].definition()["input_schema"] == {"type": "object"}


async def test_names_have_no_prefix_and_no_hand_takes_them() -> None:
    """A client's own tool takes a name before the mesh does, and the mesh before any hand."""
    hands = MemoryHands()
    hands.names = ["bash", "note", "wait"]
    mine = CustomTool(name="wait", description="Mine.", input_schema_json='{"type":"object"}')
    config = SessionConfig(mesh_tools=["note", "wait"], custom_tools=[mine])
    log, diary = MemoryLog(config), Diary()
    await run(log, ports(ScriptedModel(said(t1=CALL, t2=("wait", {}))), hands, mesh=[diary]))
    assert diary.asked == ["t1"]
    assert [it.tool_use_id for it in log.only("custom_tool_requested")] == ["t2"]


async def test_a_policy_forbids_by_name() -> None:
    """Policies hold for the mesh's tools as for any other."""
    rule = ToolPolicy(pattern="no*", action=ToolPolicyAction.TOOL_POLICY_ACTION_DENY)
    log, diary = MemoryLog(SessionConfig(mesh_tools=["note"], tool_policies=[rule])), Diary()
    await run(log, ports(ScriptedModel(said(t1=CALL), said()), mesh=[diary]))
    assert (diary.asked, outcomes(log)) == ([], ["DENIED"])


@pytest.mark.parametrize(
    ("given", "wrong"),
    [({}, "'text' is a required property"), ({"text": 1}, "text: 1 is not of type 'string'"), ({"text": None}, "None")],
)
async def test_an_input_that_the_schema_does_not_take_runs_nothing(given: dict[str, Any], wrong: str) -> None:
    """The model is told what is wrong; the tool is not asked."""
    log, diary = MemoryLog(NOTE), Diary()
    await run(log, ports(ScriptedModel(said(t1=("note", given)), said()), mesh=[diary]))
    assert (diary.asked, outcomes(log)) == ([], ["TOOL_ERROR"])
    assert wrong in log.only("tool_finished")[0].result.output


def test_an_input_is_checked_whatever_it_is() -> None:
    """No JSON, half characters and bottomless nesting are told, and what may be left out may be null."""
    spec = ToolSpec("t", "", '{"type":"object","properties":{"a":{"type":"string"}}}')
    for given in ("{", '{"a":"\\ud800"}', "[" * 100_000, "3", '"text"'):
        assert checked(spec, given)[1], given
    assert checked(spec, '{"a":null}') == ({}, "")


async def test_what_a_dead_harness_had_begun_is_sent_again() -> None:
    """The next harness sends the open call again with the same execution id, and it is not doubled."""
    log, diary = MemoryLog(NOTE), Diary()
    await run(log, ports(ScriptedModel(said(t1=CALL), said()), mesh=[diary]))
    cut = next(at for at, event in enumerate(log.events) if event.HasField("tool_finished"))
    del log.events[cut:]
    await run(log, ports(ScriptedModel(said()), mesh=[diary]))
    assert (diary.asked, diary.notes) == (["t1", "t1"], {"t1": "milk"})
    assert log.kinds().count("tool_started") == 1
    assert outcomes(log) == ["OK"]


async def test_a_service_that_is_away_for_a_moment_is_asked_again() -> None:
    """Then the call is as good as any; what never comes back is told as lost, and raised."""
    log, diary = MemoryLog(NOTE), Diary()
    clock = iter(range(1_000_000_000, 2_000_000_000))
    diary.refusals = [Unavailable("SESSION_UNAVAILABLE", "away")]
    world = ports(ScriptedModel(said(t1=CALL), said()), mesh=[diary])
    object.__setattr__(world, "now", lambda: next(clock) / 100)
    await run(log, world)
    assert outcomes(log) == ["OK"]

    log, diary = MemoryLog(NOTE), Diary()
    diary.refusals = [Gone("SESSION_NOT_FOUND", "no such session")]
    await run(log, ports(ScriptedModel(said(t1=CALL), said()), mesh=[diary]))
    assert outcomes(log) == ["UNKNOWN"]
    assert [(it.part, it.reason) for it in log.only("error_raised")] == [("session", "SESSION_NOT_FOUND")]


async def test_a_harness_that_is_fenced_settles_nothing() -> None:
    """A stale epoch ends the run: the call belongs to the next harness."""
    log, diary = MemoryLog(NOTE), Diary()
    diary.refusals = [Conflict("EPOCH_STALE", "a newer harness")]
    with pytest.raises(Conflict):
        await run(log, ports(ScriptedModel(said(t1=CALL), said()), mesh=[diary]))
    assert outcomes(log) == []


async def test_an_interrupt_ends_what_waits() -> None:
    """A call of the mesh's that waits is settled as interrupted at once; hands and servers are not asked about it."""
    log, diary = MemoryLog(SessionConfig(mesh_tools=["wait"])), Diary()
    hands, servers = MemoryHands(), MemoryServers()
    world = ports(ScriptedModel(said(t1=("wait", {}))), hands, servers, [diary])
    running = asyncio.create_task(run(log, world))
    await diary.waiting.wait()
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()))
    await running
    assert (outcomes(log), hands.cancelled, hands.asked) == (["INTERRUPTED"], [], [])


async def test_a_session_that_loses_its_tools_is_told() -> None:
    """A call of a tool that this harness does not have any more is a value for the model."""
    log, diary = MemoryLog(NOTE), Diary()
    await run(log, ports(ScriptedModel(said(t1=CALL), said()), mesh=[diary]))
    cut = next(at for at, event in enumerate(log.events) if event.HasField("tool_finished"))
    del log.events[cut:]
    await log.add(Event(event_id="other", harness_woke=HarnessWoke()))
    await run(log, ports(ScriptedModel(said())))
    assert outcomes(log) == ["TOOL_ERROR"]

"""Several hands in one session: each is offered, made, lost and made anew by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import CustomTool, HandSpec, SessionConfig
from handmesh.session.v1.event_pb2 import DoorRefused, Event, InterruptRequested
from services.harness.core import ToolSpec
from services.harness.ports import Toolbox
from services.harness.turn.offers import offered
from services.kit.errors import Refused
from tests.harness.test_loop import ends, outcomes, run
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, message, ports, said

TWO = SessionConfig(hands={"box": HandSpec(environment="default"), "build": HandSpec(environment="docker")})
BOX = ("box__bash", {"command": "ls"})
BUILD = ("build__bash", {"command": "make"})


def made(log: MemoryLog) -> list[tuple[str, int]]:
    return [(it.hand, it.generation) for it in log.only("sandbox_provisioned")]


def described(model: ScriptedModel) -> dict[str, str]:
    return {tool["name"]: tool["description"] for tool in model.requests[-1]["tools"]}


async def test_the_model_chooses_a_hand_by_what_it_is_told() -> None:
    """Each hand's tools carry its name, its environment and what the operator says of that; one hand alone does not."""
    model = ScriptedModel(said())
    await run(MemoryLog(TWO), ports(model))
    about = "On the hand `{}` ({}: For tests.), which shares nothing with other hands. Runs a command."
    assert described(model) == {
        "box__bash": about.format("box", "default"),
        "build__bash": about.format("build", "docker"),
    }
    alone = ScriptedModel(said())
    await run(MemoryLog(SessionConfig(hands={"build": HandSpec()})), ports(alone))
    assert described(alone) == {"bash": "Runs a command."}


async def test_each_hand_is_made_by_its_own_first_call() -> None:
    """A hand that nobody calls is never made; the hand is asked by the tool's own name."""
    log, hands = MemoryLog(TWO), MemoryHands()
    await run(log, ports(ScriptedModel(said(t1=BUILD), said(t2=BUILD), said()), hands))
    assert made(log) == [("build", 1)]
    assert [tool for _, tool in hands.ran] == ["bash", "bash"]


async def test_hands_of_one_reply_are_made_side_by_side() -> None:
    """Neither waits for the other: both have been asked for before either is there."""
    log, hands = MemoryLog(TWO), MemoryHands()
    hands.slow = {"box": asyncio.Event(), "build": asyncio.Event()}
    running = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=BOX, t2=BUILD), said()), hands)))
    while sorted(hands.asked) != ["box", "build"]:
        await asyncio.sleep(0)
    for gate in hands.slow.values():
        gate.set()
    await running
    assert sorted(made(log)) == [("box", 1), ("build", 1)]
    assert len({sandbox for sandbox, _ in hands.ran}) == 2


async def test_a_slow_hand_holds_up_its_own_calls_only() -> None:
    """The other hand's call has its result while the slow one is still being made, also with a server's among them."""
    log, hands = MemoryLog(TWO), MemoryHands()
    hands.slow = {"build": asyncio.Event()}
    running = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=BOX, t2=BUILD), said()), hands)))
    while "tool_finished" not in log.kinds():
        await asyncio.sleep(0)
    assert ([it.tool_use_id for it in log.only("tool_finished")], made(log)) == (["t1"], [("box", 1)])
    hands.slow["build"].set()
    await running
    assert (outcomes(log), ends(log)) == (["OK", "OK"], ["DONE"])


async def test_a_dead_hand_costs_its_own_calls_only() -> None:
    """Its call is told why; the other hand's runs."""
    log, hands = MemoryLog(TWO), MemoryHands()
    provision = hands.provision

    async def some(session_id: str, hand: str, *more: Any) -> Any:
        if hand == "build":
            raise Refused("ISOLATION_UNAVAILABLE", "no engine")
        return await provision(session_id, hand, *more)

    hands.provision = some  # type: ignore[method-assign,assignment]
    await run(log, ports(ScriptedModel(said(t1=BOX, t2=BUILD), said()), hands))
    results = {it.tool_use_id: it.result.output for it in log.only("tool_finished")}
    assert results == {"t1": "bash ran", "t2": "The hand build could not be provisioned: no engine"}


async def test_a_lost_sandbox_is_made_anew_by_the_next_call_of_its_own_hand() -> None:
    """Two calls find out at once, which is said once; the other hand keeps its sandbox."""
    log, hands = MemoryLog(TWO), MemoryHands()

    async def lose() -> None:
        del hands.sandboxes["box/1"]

    calls = (said(t1=BOX, t2=BUILD), lose, said(t3=BOX, t4=BOX), said(t5=BOX, t6=BUILD), said())
    await run(log, ports(ScriptedModel(*calls), hands))
    assert [(it.hand, it.reason) for it in log.only("hand_detached")] == [("box", "the sandbox is gone")]
    assert sorted(made(log)) == [("box", 1), ("box", 2), ("build", 1)]
    assert sorted(outcomes(log)) == ["GONE", "GONE", "OK", "OK", "OK", "OK"]
    assert ends(log) == ["DONE"]


async def test_tools_are_offered_once_for_each_hand() -> None:
    """Over turns and harnesses; only a hand whose look-up failed is asked again, by the next turn."""
    log, hands = MemoryLog(TWO), MemoryHands()
    hands.unknown = {"docker"}
    first = ScriptedModel(said())
    await run(log, ports(first, hands))
    assert (set(described(first)), ends(log)) == ({"box__bash"}, ["DONE"])
    assert [it.reason for it in log.only("error_raised")] == ["ENVIRONMENT_UNKNOWN"]
    hands.unknown = set()
    for number in range(2):
        await log.add(message("again", f"m{number}"))
        later = ScriptedModel(said())
        await run(log, ports(later, hands))
        assert set(described(later)) == {"box__bash", "build__bash"}
    assert [(it.hand, bool(it.digest)) for it in log.only("tools_offered")] == [
        ("box", True),
        ("build", False),
        ("build", True),
    ]


async def test_an_interrupt_asks_each_hand_by_its_own_names() -> None:
    """What a cancelled call had said is fetched under the name that the hand knows."""
    log = MemoryLog(TWO)
    hands = MemoryHands(lambda tool, input: asyncio.Event().wait())
    running = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=BOX, t2=BUILD)), hands)))
    while len(hands.executions) < 2:
        await asyncio.sleep(0)
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()))
    await running
    assert outcomes(log) == ["INTERRUPTED", "INTERRUPTED"]
    assert {tool for _, tool in hands.ran} == {"bash"}


async def test_a_dead_hand_settles_no_call_of_a_client() -> None:
    """A client's own tool named like one of the hand's is the client's, whatever becomes of the hand."""
    schema = '{"type":"object"}'
    config = SessionConfig(custom_tools=[CustomTool(name="bash", description="Mine.", input_schema_json=schema)])
    log, hands = MemoryLog(config), MemoryHands()
    hands.names = ["bash", "read"]
    hands.refusal = Refused("ISOLATION_UNAVAILABLE", "no user namespaces")
    await run(log, ports(ScriptedModel(said(t1=("bash", {}), t2=("read", {}))), hands))
    assert [it.tool_use_id for it in log.only("tool_finished")] == ["t2"]
    assert [it.tool_use_id for it in log.only("custom_tool_requested")] == ["t1"]


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 124, "bash"])
async def test_a_tool_that_the_models_api_would_refuse_is_left_out(name: str) -> None:
    """With its hand's name it has at most 128 characters, of those that are allowed, and no double."""
    log, hands = MemoryLog(TWO), MemoryHands()
    hands.names = ["bash", name]
    model = ScriptedModel(said())
    await run(log, ports(model, hands))
    assert set(described(model)) == {"box__bash", "build__bash"}
    assert [it.reason for it in log.only("error_raised")] == ["TOOL_SCHEMA_INVALID"] * 2


def test_a_tools_name_may_be_as_long_as_the_api_takes() -> None:
    """128 characters with the hand's name are one tool, 129 are none."""
    tools = [ToolSpec("x" * length, "", "{}") for length in (94, 95)]
    specs, left_out = offered("h" * 32, True, Toolbox(tools))
    assert ([len(spec.name) for spec in specs], left_out) == ([128], ["x" * 95])


async def test_the_model_is_told_what_a_door_refused() -> None:
    """The vault proxy says it while the call runs: the request behind the call holds it, behind the result."""
    log = MemoryLog()
    refused = DoorRefused(
        door="egress", target="evil.example:443", reason="EGRESS_DENIED", message="only packages.example"
    )

    async def work(tool: str, input: str) -> None:
        await log.add(Event(event_id="door-1", door_refused=refused))

    model = ScriptedModel(said(t1=("bash", {"command": "curl"})), said())
    await run(log, ports(model, MemoryHands(work)))
    result, told = model.requests[-1]["messages"][-1]["content"]
    assert result["type"] == "tool_result"
    assert "- egress: evil.example:443: only packages.example (EGRESS_DENIED)" in told["text"]

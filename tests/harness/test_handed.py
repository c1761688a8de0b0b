"""Hands that come to a session and leave it: the model is told, uses them, and no call is lost or run too late."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from handmesh.session.v1.config_pb2 import HandSpec, McpServer, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import Event, HandAttached, HandDetached, HandTransferred
from services.harness.core import ToolResult, ToolSpec
from services.harness.ports import Sandbox, Standing, Toolbox
from services.kit.errors import Refused
from tests.harness.test_loop import ends, outcomes, run
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, message, ports, said

BOX, OTHER = "sbx_" + "b" * 26, "sess_" + "9" * 26
LS = ("bash", {"command": "ls"})
BOX_LS = ("box__bash", {"command": "ls"})


def came(hand: str = "box", sandbox_id: str = BOX, **fields: Any) -> Event:
    it = HandAttached(hand=hand, sandbox_id=sandbox_id, generation=2, from_session_id=OTHER, **fields)
    return Event(event_id=f"attach-{sandbox_id}-2", hand_attached=it, emitter="sandbox")


def went(hand: str = "box", sandbox_id: str = BOX) -> Event:
    it = HandTransferred(hand=hand, sandbox_id=sandbox_id, to_session_id=OTHER, generation=2)
    return Event(event_id=f"transfer-{sandbox_id}-2", hand_transferred=it, emitter="sandbox")


def hands_with_box() -> MemoryHands:
    hands = MemoryHands()
    hands.sandboxes["box"] = BOX
    return hands


def reminder(text: str) -> str:
    return f"<system-reminder>{text}</system-reminder>"


def names(model: ScriptedModel) -> list[list[str]]:
    return [[tool["name"] for tool in request.get("tools", ())] for request in model.requests]


def last_texts(model: ScriptedModel) -> list[str]:
    return [block["text"] for block in model.requests[-1]["messages"][-1]["content"] if block["type"] == "text"]


async def test_a_hand_that_comes_during_a_turn_is_of_use_in_it() -> None:
    """Its tools are offered under its name, behind the others, whose names stay; the model is told beside a result."""
    log, hands = MemoryLog(), hands_with_box()
    model = ScriptedModel(lambda: log.add(came(description="Runs the tests.")), said(t1=LS), said(t2=BOX_LS), said())
    await run(log, ports(model, hands))
    assert names(model) == [["bash"], ["bash", "box__bash"], ["bash", "box__bash"]]
    result, told = model.requests[1]["messages"][-1]["content"]
    assert (result["type"], told["text"]) == (
        "tool_result",
        reminder("The hand `box` was handed to this session. Its tools are `box__...`. Runs the tests."),
    )
    assert "Runs the tests." in model.requests[1]["tools"][1]["description"]
    assert [(it.hand, it.sandbox_id) for it in log.only("tool_started")][1] == ("box", BOX)
    assert (hands.ran[1], outcomes(log), ends(log)) == ((BOX, "bash"), ["OK", "OK"], ["DONE"])


async def test_a_hand_that_came_while_nobody_worked_is_told_with_the_next_message() -> None:
    """Before the message, in the order of the log; another harness that takes the session up knows it too."""
    log = MemoryLog()
    await run(log, ports(ScriptedModel(said())))
    await log.add(came(), message("use it", "m2"))
    model = ScriptedModel(said(t1=BOX_LS), said())
    await run(log, ports(model, hands_with_box()))
    first = [block["text"] for block in model.requests[0]["messages"][-1]["content"]]
    assert first == [
        reminder("The hand `box` was handed to this session. Its tools are `box__...`."),
        "use it",
    ]
    assert (outcomes(log), ends(log)) == (["OK"], ["DONE", "DONE"])


async def test_a_running_call_keeps_its_result_when_the_hand_leaves() -> None:
    """The hand's tools are gone then; a call that comes too late is told where the hand is, and runs nowhere."""
    log = MemoryLog(SessionConfig(no_hands=True))
    await log.add(came())
    gate = asyncio.Event()

    async def work(tool: str, input: str) -> None:
        await log.add(went())
        await gate.wait()

    hands = MemoryHands(work)
    hands.sandboxes["box"] = BOX
    model = ScriptedModel(said(t1=BOX_LS), said(t2=BOX_LS), said())
    running = asyncio.create_task(run(log, ports(model, hands)))
    while "hand_transferred" not in log.kinds():
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    gate.set()
    await running
    assert [it.result.output for it in log.only("tool_finished")] == [
        "bash ran",
        f"This session does not have the hand box any more. It went to session {OTHER}.",
    ]
    assert (len(hands.ran), outcomes(log)) == (1, ["OK", "GONE"])
    assert names(model) == [["box__bash"], [], []]
    assert reminder(f"The hand `box` went to session {OTHER}, with all that is in it.") in json.dumps(model.requests[1])


async def test_a_dead_harness_call_is_settled_after_the_hand_left() -> None:
    """The next harness asks the hand for the result by the call's id, though the hand is another session's by then."""
    log, hands = MemoryLog(SessionConfig(no_hands=True)), hands_with_box()
    await log.add(came())
    stuck = asyncio.Event()
    hands.work = lambda tool, input: stuck.wait()
    first = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=BOX_LS)), hands)))
    while not hands.ran:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    await log.add(went())
    stuck.set()
    await run(log, ports(ScriptedModel(said()), hands))
    assert ([it.result.output for it in log.only("tool_finished")], len(hands.ran)) == (["bash ran"], 1)


async def test_a_call_that_meets_a_hand_that_leaves_is_told_so() -> None:
    """Refused by the hand before the log says anything: it did not run, and nobody says that the sandbox is gone."""
    log, hands = MemoryLog(), MemoryHands()

    async def refuse(*_: Any) -> ToolResult:
        raise Refused("HAND_TRANSFERRED", f"this hand went to session {OTHER}", session_id=OTHER)

    hands.execute = refuse  # type: ignore[method-assign]
    await run(log, ports(ScriptedModel(said(t1=LS), said()), hands))
    told = f"This call did not run: this hand went to session {OTHER}."
    assert [it.result.output for it in log.only("tool_finished")] == [told]
    assert (outcomes(log), log.only("hand_detached"), log.only("error_raised")) == (["GONE"], [], [])


async def test_a_hand_of_the_configuration_that_was_given_away_is_made_anew() -> None:
    """By its next call, as another sandbox; the model is told that the one it had went."""
    log, hands = MemoryLog(), MemoryHands()
    model = ScriptedModel(
        said(t1=LS), lambda: log.add(went("main", hands.sandboxes["main/1"])), said(t2=LS), said(t3=LS), said()
    )
    await run(log, ports(model, hands))
    assert [it.generation for it in log.only("sandbox_provisioned")] == [1, 2]
    assert len({it.sandbox_id for it in log.only("tool_started")}) == 2
    assert "The hand `main` went to session" in json.dumps(model.requests[2])
    assert (outcomes(log), ends(log)) == (["OK"] * 3, ["DONE"])


async def test_a_shared_hand_offers_what_reads() -> None:
    """And is taken back: then its tools are gone, and the model is told why."""
    log, hands = MemoryLog(SessionConfig(no_hands=True)), hands_with_box()
    taken = HandDetached(hand="box", sandbox_id=BOX, reason="it is not shared with this session any more")

    async def tools(spec: bytes, under: Standing, sandbox_id: str = "") -> Toolbox:
        assert sandbox_id == BOX
        reads = {"bash": False, "read": True}
        return Toolbox([ToolSpec(name, name, '{"type":"object"}', read_only=it) for name, it in reads.items()])

    hands.tools = tools  # type: ignore[method-assign]
    await log.add(came(read_only=True))
    model = ScriptedModel(
        said(t1=("box__read", {})),
        lambda: log.add(Event(event_id="u", hand_detached=taken, emitter="sandbox")),
        said(t2=("box__read", {})),
        said(),
    )
    await run(log, ports(model, hands))
    assert names(model) == [["box__read"], ["box__read"], []]
    assert outcomes(log) == ["OK", "GONE"]
    assert last_texts(model) == [reminder("The hand `box` was taken from this session: " + taken.reason + ".")]


async def test_a_standing_hand_is_attached_by_its_first_call() -> None:
    """Instead of making a sandbox: the log says so by the sandbox service's event, and the call goes there."""
    log, hands = MemoryLog(SessionConfig(hands={"box": HandSpec(standing_hand="bench")})), MemoryHands()

    async def attach(session_id: str, hand: str, spec: bytes, generation: int, under: Standing) -> Sandbox:
        assert HandSpec.FromString(spec).standing_hand == "bench"
        hands.sandboxes[hand] = BOX
        await log.add(came())
        return Sandbox(BOX, "default", attached=True)

    hands.provision = attach  # type: ignore[method-assign]
    model = ScriptedModel(said(t1=LS), said(t2=LS), said())
    await run(log, ports(model, hands))
    assert [it.sandbox_id for it in log.only("tool_started")] == [BOX, BOX]
    assert (log.only("sandbox_provisioned"), outcomes(log), ends(log)) == ([], ["OK", "OK"], ["DONE"])
    assert "handed to this session" not in json.dumps(model.requests)


async def test_policies_hold_for_hands_that_came() -> None:
    """A rule for `bash` means it on every hand; a server's tools are not meant by it."""
    deny = ToolPolicy(pattern="bash", action=ToolPolicyAction.TOOL_POLICY_ACTION_DENY)
    config = SessionConfig(no_hands=True, tool_policies=[deny], mcp_servers=[McpServer(name="shop", url="https://x")])
    log, hands = MemoryLog(config), hands_with_box()
    await log.add(came())
    await run(log, ports(ScriptedModel(said(t1=BOX_LS, t2=("shop__buy", {})), said()), hands))
    assert (sorted(outcomes(log)), hands.ran) == (["DENIED", "OK"], [])

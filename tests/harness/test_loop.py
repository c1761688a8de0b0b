"""The shell: what a turn writes, and what crashes, interrupts and other harnesses do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome
from handmesh.session.v1.config_pb2 import McpServer, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import Event, HarnessWoke, InterruptRequested, ToolConfirmed, TurnEndReason
from services.harness.loops.messages import make
from services.harness.ports import Appended, ModelFailure, Ports
from services.harness.runs import Run
from services.kit.errors import Gone, Invalid, Refused, Unavailable
from tests.support.harness_ports import (
    MemoryHands,
    MemoryLog,
    MemoryServers,
    ScriptedModel,
    Told,
    message,
    ports,
    said,
)

LS = ("bash", {"command": "ls"})
OVERLOADED = ModelFailure("MODEL_OVERLOADED", "too much to do", retryable=True)


async def run(log: MemoryLog, world: Ports) -> Told:
    told = Told()
    await make().run(log, world, "test", told)
    return told


def outcomes(log: MemoryLog) -> list[str]:
    return [ToolOutcome.Name(it.result.outcome).removeprefix("TOOL_OUTCOME_") for it in log.only("tool_finished")]


def ends(log: MemoryLog) -> list[str]:
    return [TurnEndReason.Name(it.reason).removeprefix("TURN_END_REASON_") for it in log.only("turn_ended")]


async def test_a_turn_with_a_tool_writes_intent_before_effect() -> None:
    """ToolStarted lies before the call, the sandbox is made by it, and each reply says what it had read."""
    log, model = MemoryLog(), ScriptedModel(said("look", t1=LS), said("there"))
    told = await run(log, ports(model))
    assert log.kinds()[2:] == [
        "harness_woke",
        "tools_offered",
        "model_replied",
        "sandbox_provisioned",
        "tool_started",
        "tool_finished",
        "model_replied",
        "turn_ended",
    ]
    assert [it.read_position for it in log.only("model_replied")] == [4, 8]
    assert told.epochs == [3]
    assert [tool["name"] for tool in model.requests[0]["tools"]] == ["bash"]
    assert ends(log) == ["DONE"]


async def test_a_session_with_nothing_to_do_is_left_alone() -> None:
    """Waking it again writes nothing."""
    log = MemoryLog()
    await run(log, ports(ScriptedModel(said())))
    before = len(log.events)
    assert (await run(log, ports(ScriptedModel()))).epochs == []
    assert len(log.events) == before


async def test_a_harness_that_dies_in_a_tool_is_replaced_and_the_tool_runs_once() -> None:
    """The second harness attaches to the execution by its id: one ToolStarted, one run, one result."""
    release = asyncio.Event()
    log, hands = MemoryLog(), MemoryHands(lambda tool, input: release.wait())
    first = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=LS)), hands)))
    while "tool_started" not in log.kinds() or not hands.executions:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    release.set()
    await run(log, ports(ScriptedModel(said("after")), hands))
    assert list(hands.executions) == ["t1"]
    assert log.kinds().count("tool_started") == log.kinds().count("tool_finished") == 1
    assert log.kinds().count("harness_woke") == 2
    assert outcomes(log) == ["OK"]


async def test_calls_at_work_are_told_as_long_as_they_are() -> None:
    """`ListRuns` names each tool that a run waits for, with its hand, and none that has ended."""
    release = asyncio.Event()
    log, hands, told = MemoryLog(), MemoryHands(lambda tool, input: release.wait()), Run("sess")
    model = ScriptedModel(said(t1=LS, t2=LS), said("done"))
    working = asyncio.create_task(make().run(log, ports(model, hands), "test", told))
    while len(hands.executions) < 2:
        await asyncio.sleep(0)
    assert {(it.tool_use_id, it.tool, it.hand) for it in told.running} == {
        ("t1", "bash", "main"),
        ("t2", "bash", "main"),
    }
    release.set()
    await working
    assert told.running == ()


async def test_an_interrupt_stops_the_model_at_once() -> None:
    """The stream is cut, its previews are discarded, and the turn ends without a reply."""
    log = MemoryLog()
    interrupt = Event(event_id="i", interrupt_requested=InterruptRequested())

    async def interrupted() -> None:
        await log.add(interrupt)
        await asyncio.Event().wait()

    await run(log, ports(ScriptedModel(interrupted, said())))
    assert "model_replied" not in log.kinds()
    assert ends(log) == ["INTERRUPTED"]
    assert log.shown[-1].discarded


async def test_an_interrupt_settles_every_call() -> None:
    """Running calls are cancelled and tell what they had said; the next message is answered."""
    log = MemoryLog()
    hands = MemoryHands(lambda tool, input: asyncio.Event().wait())
    model = ScriptedModel(said(t1=LS, t2=LS), said("again"))
    running = asyncio.create_task(run(log, ports(model, hands)))
    while len(hands.executions) < 2:
        await asyncio.sleep(0)
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()))
    await log.add(message("go on", "m2"))
    await running
    assert sorted(hands.cancelled) == ["t1", "t2"]
    assert outcomes(log) == ["INTERRUPTED", "INTERRUPTED"]
    assert ends(log) == ["INTERRUPTED", "DONE"]
    told = model.requests[-1]["messages"][-1]["content"]
    assert [block["type"] for block in told] == ["tool_result", "tool_result", "text"]


async def test_a_harness_leaves_when_another_one_woke() -> None:
    """After a newer HarnessWoke nothing of the old one is written, not even its answer."""
    log = MemoryLog()

    async def overtaken() -> None:
        await log.add(Event(event_id="other", harness_woke=HarnessWoke(harness="messages")))

    await run(log, ports(ScriptedModel(overtaken, said("late"))))
    assert log.kinds()[-1] == "harness_woke"


async def test_an_overloaded_model_is_asked_again_and_the_log_shows_it() -> None:
    """Two failures, two RetryScheduled, one answer."""
    log = MemoryLog()
    await run(log, ports(ScriptedModel(OVERLOADED, OVERLOADED, said())))
    assert [(it.reason, it.attempt) for it in log.only("retry_scheduled")] == [
        ("MODEL_OVERLOADED", 1),
        ("MODEL_OVERLOADED", 2),
    ]
    assert ends(log) == ["DONE"]


async def test_a_refused_key_ends_the_turn_and_not_the_session() -> None:
    """The log says why; the next message is tried again."""
    log = MemoryLog()
    refused = ModelFailure("MODEL_KEY_REFUSED", "no", retryable=False)
    await run(log, ports(ScriptedModel(refused)))
    assert [(it.part, it.reason) for it in log.only("error_raised")] == [("model", "MODEL_KEY_REFUSED")]
    await log.add(message("again", "m2"))
    await run(log, ports(ScriptedModel(said())))
    assert ends(log) == ["FAILED", "DONE"]


async def test_retries_end() -> None:
    """A model that never answers ends the turn as FAILED, after a bounded number of tries."""
    log = MemoryLog()
    await run(log, ports(ScriptedModel(*[OVERLOADED] * 50)))
    assert log.kinds().count("retry_scheduled") == 6
    assert ends(log) == ["FAILED"]


async def test_a_sandbox_that_is_gone_is_a_tool_error_and_the_next_call_gets_a_new_one() -> None:
    """Cattle: the model decides, the generation counts."""
    log, hands = MemoryLog(), MemoryHands()

    async def lost() -> None:
        hands.sandboxes.clear()

    await run(log, ports(ScriptedModel(said(t1=LS), lost, said(t2=LS), said(t3=LS), said()), hands))
    assert outcomes(log) == ["OK", "GONE", "OK"]
    assert [it.generation for it in log.only("sandbox_provisioned")] == [1, 2]


async def test_a_hand_that_cannot_be_made_costs_only_its_calls() -> None:
    """The model is told why; the log has the reason for the operator."""
    log, hands = MemoryLog(), MemoryHands()
    hands.refusal = Refused("ISOLATION_UNAVAILABLE", "no user namespaces: allow the process backend")
    await run(log, ports(ScriptedModel(said(t1=LS), said()), hands))
    assert outcomes(log) == ["GONE"]
    assert "no user namespaces" in log.only("tool_finished")[0].result.output
    assert [(it.part, it.reason) for it in log.only("error_raised")] == [("hand", "ISOLATION_UNAVAILABLE")]


SHOP = SessionConfig(no_hands=True, mcp_servers=[McpServer(name="shop", url="https://shop.example/mcp")])
BUY = ("shop__buy", {})


async def test_a_servers_call_is_never_sent_twice() -> None:
    """Lost on the way: the outcome is unknown to the model, and the log says which part failed."""
    log, servers = MemoryLog(SHOP), MemoryServers()
    servers.refusal = Unavailable("SERVER_UNAVAILABLE", "down")
    await run(log, ports(ScriptedModel(said(t1=BUY), said()), servers=servers))
    assert servers.calls == [("t1", False)]
    assert outcomes(log) == ["UNKNOWN"]
    assert [it.part for it in log.only("error_raised")] == ["vault_proxy"]


class WeakLog(MemoryLog):
    """Cannot be reached once for each kind of event that is named."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self._weak = set(kinds)

    async def emit(self, events: Sequence[Event], epoch: int, expected_position: int | None) -> Appended:
        if (kind := events[0].WhichOneof("kind") or "") in self._weak:
            self._weak.discard(kind)
            raise Unavailable("LOG_UNAVAILABLE", "the log's store does not answer")
        return await super().emit(events, epoch, expected_position)


async def test_an_event_that_had_to_wait_for_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason and how long it took are with the event; those that were taken at once have neither."""
    monkeypatch.setattr("services.harness.journal.PAUSE_SECONDS", 0.01)
    log = WeakLog("tool_finished")
    await run(log, ports(ScriptedModel(said(t1=LS), said())))
    late = [event for event in log.events if event.HasField("delay")]
    assert [(it.WhichOneof("kind"), it.delay.reason) for it in late] == [("tool_finished", "LOG_UNAVAILABLE")]
    assert late[0].delay.duration.ToMilliseconds() >= 10


async def test_a_service_that_did_not_answer_is_named_in_the_log() -> None:
    """Whether it answered with an error, or nobody answered, is told apart; and how long it was called."""
    for answered, named in ((True, ""), (False, "vault_proxy")):
        log, servers = MemoryLog(SHOP), MemoryServers()
        servers.refusal = Unavailable("VAULT_PROXY_UNAVAILABLE", "away")
        servers.refusal.answered = answered
        await run(log, ports(ScriptedModel(said(t1=BUY), said()), servers=servers))
        (error,) = log.only("error_raised")
        assert (error.silent_service, error.HasField("since_time")) == (named, True)


async def test_an_answer_says_how_long_it_took() -> None:
    """From the request to the first piece, and to the end; a failure has the API's status."""
    refused = ModelFailure("MODEL_OVERLOADED", "too much", retryable=True, http_status=529)
    log = MemoryLog()
    await run(log, ports(ScriptedModel(refused, said("words"))))
    assert [it.http_status for it in log.only("retry_scheduled")] == [529]
    (reply,) = log.only("model_replied")
    assert reply.times.HasField("ask_time") and reply.times.HasField("whole")


async def test_a_servers_call_of_a_dead_harness_is_only_attached_to() -> None:
    """`attach_only`: when the proxy has forgotten it, nobody can tell, and it is not run again."""
    log, servers = MemoryLog(SHOP), MemoryServers()
    blocked = asyncio.Event()
    execute = servers.execute

    async def slow(*args: object, **more: object) -> object:
        await blocked.wait()
        return await execute(*args, **more)  # type: ignore[arg-type]

    servers.execute = slow  # type: ignore[method-assign,assignment]
    first = asyncio.create_task(run(log, ports(ScriptedModel(said(t1=BUY)), servers=servers)))
    while "tool_started" not in log.kinds():
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    servers.execute = execute  # type: ignore[method-assign]
    servers.refusal = Gone("EXECUTION_UNKNOWN", "never heard of it")
    await run(log, ports(ScriptedModel(said()), servers=servers))
    assert servers.calls == [("t1", True)]
    assert outcomes(log) == ["UNKNOWN"]


async def test_a_dead_server_costs_only_itself() -> None:
    """The turn goes on without its tools, the log says so, and the next turn asks again."""
    config = SessionConfig(mcp_servers=SHOP.mcp_servers)
    log, servers = MemoryLog(config), MemoryServers()
    servers.problems = [("shop", "", "SERVER_UNAVAILABLE", "connection refused")]
    model = ScriptedModel(said(), said())
    await run(log, ports(model, servers=servers))
    assert [tool["name"] for tool in model.requests[0]["tools"]] == ["bash"]
    assert [it.reason for it in log.only("error_raised")] == ["SERVER_UNAVAILABLE"]
    servers.problems = []
    await log.add(message("again", "m2"))
    await run(log, ports(model, servers=servers))
    assert [tool["name"] for tool in model.requests[1]["tools"]] == ["bash", "shop__buy"]


async def test_input_that_the_hand_refuses_is_told_to_the_model() -> None:
    """TOOL_INPUT_INVALID is the model's mistake: a tool error, not a failure of ours."""
    log, hands = MemoryLog(), MemoryHands()

    async def refuse(*_: object) -> None:
        raise Invalid("TOOL_INPUT_INVALID", "command is required")

    hands.execute = refuse  # type: ignore[method-assign,assignment]
    await run(log, ports(ScriptedModel(said(t1=("bash", {})), said()), hands))
    assert outcomes(log) == ["TOOL_ERROR"]
    assert log.only("tool_finished")[0].result.output == "command is required"


async def test_a_message_during_the_answer_is_answered_in_the_same_run() -> None:
    """It lies behind the reply in the next request, and no TurnEnded comes between."""
    log = MemoryLog()

    async def interject() -> None:
        await log.add(message("and?", "m2"))

    model = ScriptedModel(interject, said("one"), said("two"))
    await run(log, ports(model))
    roles = [it["role"] for it in model.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert ends(log) == ["DONE"]


@pytest.mark.parametrize(("allowed", "outcome"), [(True, "OK"), (False, "DENIED")])
async def test_a_person_decides_while_no_harness_waits(allowed: bool, outcome: str) -> None:
    """Asked once, the run ends; after the decision another run goes on from the log."""
    rule = ToolPolicy(pattern="bash", action=ToolPolicyAction.TOOL_POLICY_ACTION_ASK)
    log, hands = MemoryLog(SessionConfig(tool_policies=[rule])), MemoryHands()
    await run(log, ports(ScriptedModel(said(t1=LS)), hands))
    assert log.kinds()[-1] == "tool_confirmation_requested"
    seen = log.only("tool_confirmation_requested")[0].call_hash
    decision = ToolConfirmed(tool_use_id="t1", allowed=allowed, call_hash=seen)
    await log.add(Event(event_id="yes", tool_confirmed=decision))
    await run(log, ports(ScriptedModel(said()), hands))
    assert outcomes(log) == [outcome]
    assert bool(hands.executions) == allowed


async def test_a_long_wait_for_the_model_holds_no_process() -> None:
    """The run ends with the time of the retry, so that its claim can say when the session is wanted again."""
    log = MemoryLog()
    later = ModelFailure("MODEL_RATE_LIMITED", "later", retryable=True, retry_after=50.0)
    world = replace(ports(ScriptedModel(later)), now=lambda: 1_000.0)
    assert await make().run(log, world, "test", Told()) == 1_050.0
    assert log.kinds()[-1] == "retry_scheduled"
    assert await make().run(log, world, "test", Told()) == 1_050.0
    assert log.kinds()[-1] == "retry_scheduled"  # and waking it too early writes nothing
    assert await make().run(log, replace(ports(ScriptedModel(said())), now=lambda: 1_050.0), "test", Told()) is None
    assert ends(log) == ["DONE"]

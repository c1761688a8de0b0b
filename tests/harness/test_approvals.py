"""Approvals and clients' own tools: what a person allows is what runs, once; the first answer counts, or the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome
from handmesh.sandbox.v1.tool_pb2 import ToolResult as ToolResultMessage
from handmesh.session.v1.config_pb2 import CustomTool, HandSpec, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import CustomToolAnswered, Event, InterruptRequested, ToolConfirmed
from services.harness.core import (
    Config,
    ConfirmationAsked,
    Confirmed,
    CustomAnswered,
    CustomAsked,
    Fact,
    Interrupt,
    Message,
    Offered,
    Policy,
    Replied,
    Started,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from services.harness.loops.messages import make
from services.harness.turn import core
from services.harness.turn.policies import policy_for
from services.harness.turn.state import State, fold_all
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, Told, message, ports, said

NOW = 1_000.0  # Unix time, seconds
SCHEMA = '{"type":"object"}'
BASH = ToolCall("t1", "bash", "{}")
ASK = ToolPolicyAction.TOOL_POLICY_ACTION_ASK


def called(config: Config, call: ToolCall, *facts: Fact) -> State:
    log = (
        Started(0, config),
        Message(0, '[{"type":"text","text":"hi"}]'),
        *(Offered(0, hand, (ToolSpec("bash", "", SCHEMA),)) for hand in config.hands),
        Replied(0, "[]", "tool_use", 2 + len(config.hands), (call,)),
        *facts,
    )
    return fold_all(replace(fact, position=place) for place, fact in enumerate(log, 1))


# --- which policy counts ---
BOX_BASH = ("box__bash", ("box", "bash", ToolSpec("box__bash", "", SCHEMA)))
ONE_BASH = ("bash", ("main", "bash", ToolSpec("bash", "", SCHEMA)))
BUY = ("shop__buy", ("shop", "shop__buy", ToolSpec("shop__buy", "", SCHEMA)))


@pytest.mark.parametrize(
    ("tool", "pattern", "meant"),
    [
        (BOX_BASH, "box__bash", True),
        (BOX_BASH, "bash", True),
        (BOX_BASH, "box__*", True),
        (BOX_BASH, "main__bash", False),
        (ONE_BASH, "main__bash", True),
        (ONE_BASH, "main__*", True),
        (ONE_BASH, "*", True),
        (BUY, "shop__*", True),
        (BUY, "buy", False),
        (BUY, "shop__b?y", False),
        (BUY, "shop__[b]uy", False),
    ],
)
def test_a_pattern_means_a_hands_tool_on_whatever_hand_and_a_servers_by_its_whole_name(
    tool: tuple[str, tuple[str, str, ToolSpec]], pattern: str, meant: bool
) -> None:
    """A rule holds however many hands a session has, no server can take a hand's rule, and only `*` is special."""
    config = Config(hands=("main", "box"), policies=(Policy(pattern, "DENY"),))
    assert (policy_for(config, *tool) == "DENY") is meant


def test_the_first_policy_that_matches_counts_and_none_allows() -> None:
    """An exception stands before the rule."""
    config = Config(policies=(Policy("bash", "ALLOW"), Policy("*", "DENY")))
    assert policy_for(config, *ONE_BASH) == "ALLOW"
    assert policy_for(config, "ask_user", None) == "DENY"
    assert policy_for(Config(), *ONE_BASH) == "ALLOW"


# --- what a decision is good for ---
ASKING = Config(policies=(Policy("bash", "ASK"),))
SEEN = ConfirmationAsked(0, "t1", "seen")


def test_an_approval_is_good_for_the_call_that_was_seen_and_no_other() -> None:
    """Whatever a log should hold, a call with another hash never reaches its hand."""
    assert isinstance(core.decide(called(ASKING, BASH, SEEN, Confirmed(0, "t1", True, "", "seen")), NOW), core.RunCalls)
    for other in ("", "another"):
        action = core.decide(called(ASKING, BASH, SEEN, Confirmed(0, "t1", True, "", other)), NOW)
        assert isinstance(action, core.FinishCall)
        assert action.result.outcome == "DENIED"


def test_the_first_decision_counts() -> None:
    """A later one changes nothing."""
    no, yes = Confirmed(0, "t1", False, "not now"), Confirmed(0, "t1", True, "", "seen")
    action = core.decide(called(ASKING, BASH, SEEN, no, yes), NOW)
    assert action == core.FinishCall(BASH, ToolResult("A person declined this call: not now", "DENIED"))


def test_a_call_waits_for_a_person_for_ever_and_no_process_waits_with_it() -> None:
    """The run is over until something happens: there is no time at which it would go on."""
    assert core.decide(called(ASKING, BASH, SEEN), 1e12) == core.Rest("a person has to decide first")


async def test_an_approval_survives_crashes_and_the_call_runs_once() -> None:
    """Harnesses die after asking, after the decision and in the tool: one request, one run, with the hash that was."""
    config = SessionConfig(tool_policies=[ToolPolicy(pattern="main__*", action=ASK)])
    log, hands = MemoryLog(config), MemoryHands()
    await make().run(log, ports(ScriptedModel(said(t1=("bash", {}))), hands), "first", Told())
    await make().run(log, ports(ScriptedModel(), hands), "second", Told())
    (request,) = log.only("tool_confirmation_requested")
    await log.add(Event(event_id="w", harness_woke={"harness": "messages"}))
    yes = ToolConfirmed(tool_use_id="t1", allowed=True, call_hash=request.call_hash)
    await log.add(Event(event_id="yes", tool_confirmed=yes))
    await make().run(log, ports(ScriptedModel(said()), hands), "third", Told())
    assert len(request.call_hash) == 64
    assert list(hands.executions) == ["t1"]
    assert log.kinds().count("tool_confirmation_requested") == log.kinds().count("tool_started") == 1


async def test_calls_that_need_no_person_do_not_wait_for_one() -> None:
    """Of two parallel calls on two hands the free one has run when the other one is asked about."""
    config = SessionConfig(
        hands={"a": HandSpec(), "b": HandSpec()}, tool_policies=[ToolPolicy(pattern="b__bash", action=ASK)]
    )
    log, hands = MemoryLog(config), MemoryHands()
    model = ScriptedModel(said(t1=("a__bash", {}), t2=("b__bash", {})))
    await make().run(log, ports(model, hands), "test", Told())
    assert list(hands.executions) == ["t1"]
    assert [it.tool_use_id for it in log.only("tool_confirmation_requested")] == ["t2"]


# --- clients' own tools ---
CUSTOM = Config(hands=(), custom_tools=(ToolSpec("ask", "", SCHEMA, timeout=30.0),))
CALL = ToolCall("t1", "ask", "{}")
ANSWER = CustomAnswered(0, "t1", ToolResult("42"))


def test_a_clients_tool_is_handed_out_with_its_time_and_settled_by_it() -> None:
    """Until then the session rests; then the call is TIMEOUT, unless an answer lies before."""
    assert core.decide(called(CUSTOM, CALL), NOW) == core.AskClient(CALL, NOW + 30.0)
    out = CustomAsked(0, "t1", NOW + 30.0)
    assert core.decide(called(CUSTOM, CALL, out), NOW) == core.Rest("a client has to answer first", NOW + 30.0)
    late = core.decide(called(CUSTOM, CALL, out), NOW + 30.0)
    assert isinstance(late, core.FinishCall)
    assert late.result.outcome == "TIMEOUT"
    assert core.decide(called(CUSTOM, CALL, out, ANSWER), NOW + 31.0) == core.FinishCall(CALL, ANSWER.result)


def test_an_answer_that_is_in_the_log_is_the_result_even_after_an_interrupt() -> None:
    """The client was told that it is taken."""
    state = called(CUSTOM, CALL, CustomAsked(0, "t1"), ANSWER, Interrupt(0))
    assert core.decide(state, NOW) == core.FinishCall(CALL, ANSWER.result)


def custom_session() -> MemoryLog:
    tool = CustomTool(name="ask", description="Asks.", input_schema_json=SCHEMA)
    tool.timeout.FromSeconds(30)
    return MemoryLog(SessionConfig(no_hands=True, custom_tools=[tool]))


def outcomes(log: MemoryLog) -> list[str]:
    return [ToolOutcome.Name(it.result.outcome).removeprefix("TOOL_OUTCOME_") for it in log.only("tool_finished")]


def answered(text: str) -> Event:
    result = ToolResultMessage(output=text, outcome=ToolOutcome.TOOL_OUTCOME_OK)
    return Event(event_id=text, custom_tool_answered=CustomToolAnswered(tool_use_id="t1", result=result))


async def test_a_run_ends_with_the_time_at_which_a_clients_tool_is_due() -> None:
    """The model is told the tool's schema; the run leaves; taken up at that time, it settles the call and goes on."""
    log, model = custom_session(), ScriptedModel(said(t1=("ask", {"what": "name"})), said())
    world = replace(ports(model), now=lambda: NOW)
    assert await make().run(log, world, "test", Told()) == NOW + 30.0
    assert model.requests[0]["tools"][0]["input_schema"] == {"type": "object"}
    (request,) = log.only("custom_tool_requested")
    assert (request.input_json, request.due_time.seconds) == ('{"what": "name"}', int(NOW + 30.0))
    assert await make().run(log, replace(world, now=lambda: NOW + 30.0), "test", Told()) is None
    assert outcomes(log) == ["TIMEOUT"]
    assert log.kinds()[-1] == "turn_ended"


async def test_a_clients_answer_goes_to_the_model_as_it_is() -> None:
    """Any client may answer; the run that follows has the answer as the call's result."""
    log, model = custom_session(), ScriptedModel(said(t1=("ask", {})), said())
    world = replace(ports(model), now=lambda: NOW)
    await make().run(log, world, "test", Told())
    await log.add(answered("Ada"))
    await make().run(log, world, "test", Told())
    assert outcomes(log) == ["OK"]
    assert model.requests[1]["messages"][-1]["content"][0]["content"][0]["text"] == "Ada"


# --- steering ---
async def test_an_interrupt_with_a_message_in_one_batch_ends_the_turn_and_begins_the_next() -> None:
    """The open call is settled, and the message that came with the interrupt is read once, by the next turn."""
    log, model = custom_session(), ScriptedModel(said(t1=("ask", {})), said())
    world = replace(ports(model), now=lambda: NOW)
    await make().run(log, world, "test", Told())
    await log.add(Event(event_id="stop", interrupt_requested=InterruptRequested()), message("rather this", "m2"))
    await make().run(log, world, "test", Told())
    assert outcomes(log) == ["INTERRUPTED"]
    assert [it.read_position for it in log.only("turn_ended")] == [log.kinds().index("interrupt_requested") + 1, 11]
    told = [block for said in model.requests[1]["messages"] for block in said["content"]]
    assert [block["text"] for block in told if block.get("text") == "rather this"] == ["rather this"]


async def test_messages_that_wait_keep_their_order_and_are_read_once() -> None:
    """Three messages while the model answers are read together, in order, by the next request."""
    log = MemoryLog()

    async def speak() -> None:
        for number in range(3):
            await log.add(message(f"number {number}", f"n{number}"))

    model = ScriptedModel(speak, said("one"), said("two"))
    await make().run(log, ports(model), "test", Told())
    texts = [block.get("text") for block in model.requests[1]["messages"][-1]["content"]]
    assert texts == ["number 0", "number 1", "number 2"]
    assert log.kinds().count("model_replied") == 2

"""Budgets: what is used is counted from the log, a budget that is reached pauses, one that is raised lets it go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from handmesh.session.v1.config_pb2 import Budgets as BudgetsMessage
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import ConfigChanged, Event, InterruptRequested
from services.harness.core import (
    CallFinished,
    CallStarted,
    Config,
    Configured,
    ConfirmationAsked,
    CustomAsked,
    Ended,
    Fact,
    Interrupt,
    Message,
    Offered,
    Paused,
    Policy,
    Provisioned,
    Replied,
    Started,
    ToolCall,
    ToolResult,
    ToolSpec,
    Woke,
)
from services.harness.loops.messages import make
from services.harness.model_profiles import DEAREST, MODEL_PROFILES
from services.harness.turn import core
from services.harness.turn.state import State, fold_all
from services.harness.usage import Budgets, Reached, Usage
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, Told, message, ports, said

NOW = 1_000.0  # Unix time, seconds
HI = '[{"type":"text","text":"hi"}]'
SCHEMA = '{"type":"object"}'
BASH = (ToolSpec("bash", "", SCHEMA),)
CALLS = tuple(ToolCall(f"t{n}", "bash", "{}") for n in (1, 2, 3))
USED = Usage(10, 20, 30, 40, 500)


def log_of(budgets: Budgets, *facts: Fact, config: Config | None = None) -> State:
    start = (Started(0, replace(config or Config(), budgets=budgets)), Message(0, HI), Offered(0, "main", BASH))
    return fold_all(replace(fact, position=place) for place, fact in enumerate((*start, *facts), 1))


DONE = (Replied(0, "[]", "end_turn", 3, usage=USED), Ended(0, "DONE", 4), Message(0, HI))


@pytest.mark.parametrize(
    ("budgets", "reached"),
    [
        (Budgets(max_turns=1), Reached("max_turns", 1, 1)),
        (Budgets(max_tokens=100), Reached("max_tokens", 100, 100)),
        (Budgets(max_cost_micros=499), Reached("max_cost_micros", 499, 500)),
        (Budgets(max_turns=2, max_tokens=101, max_cost_micros=501, max_tool_calls=1), None),
    ],
)
def test_what_was_used_is_looked_at_before_the_model_is_asked(budgets: Budgets, reached: Reached | None) -> None:
    """Turns, tokens of all four classes and cost: at the limit the session pauses, below it the model is asked."""
    assert core.decide(log_of(budgets, *DONE), NOW) == (core.Pause(reached) if reached else core.AskModel(6))


def test_a_running_turn_is_not_stopped_by_the_number_of_turns() -> None:
    """`max_turns` counts turns that have ended: the last one that may begin is carried through."""
    state = log_of(Budgets(max_turns=1), Replied(0, "[]", "pause_turn", 3))
    assert core.decide(state, NOW) == core.AskModel(4)


def test_a_paused_session_rests_until_the_budget_is_raised() -> None:
    """A message does not end the pause; a configuration with the same limit pauses again, a higher one goes on."""
    paused = (*DONE, Paused(0, "max_turns"), Message(0, HI))
    budgets = Budgets(max_turns=1)
    assert core.decide(log_of(budgets, *paused), NOW) == core.Rest("the budget max_turns is used up")
    same = log_of(budgets, *paused, Configured(0, Config(budgets=budgets)))
    assert core.decide(same, NOW) == core.Pause(Reached("max_turns", 1, 1))
    raised = log_of(budgets, *paused, Configured(0, Config(budgets=Budgets(max_turns=2))))
    assert core.decide(raised, NOW) == core.AskModel(9)


def test_a_raised_budget_holds_in_the_open_turn_and_the_rest_of_the_configuration_after_it() -> None:
    """So a paused turn goes on where it stopped, with the tools and the system prompt that it began with."""
    other = Config(system="another", budgets=Budgets(max_tokens=1_000))
    state = log_of(Budgets(max_tokens=1), *DONE, Paused(0, "max_tokens"), Configured(0, other))
    assert (state.config.system, state.config.budgets.max_tokens) == ("", 1_000)
    assert core.decide(state, NOW) == core.AskModel(8)


def test_an_interrupt_ends_a_paused_turn() -> None:
    """Nobody has to raise a budget to be rid of a turn; the next message is looked at anew."""
    budgets = Budgets(max_model_calls_per_turn=1)
    paused = (Replied(0, "[]", "pause_turn", 3), Paused(0, "max_model_calls_per_turn"), Interrupt(0))
    assert core.decide(log_of(budgets, *paused), NOW) == core.EndTurn("INTERRUPTED", 6)
    again = log_of(budgets, *paused, Ended(0, "INTERRUPTED", 6), Message(0, HI))
    assert core.decide(again, NOW) == core.AskModel(8)


def test_calls_beyond_the_budget_wait_and_those_within_run() -> None:
    """Two of three parallel calls run; when they have ended the session pauses; raised, the third one runs."""
    budgets = Budgets(max_tool_calls=2)
    called = (Replied(0, "[]", "tool_use", 3, CALLS), Provisioned(0, "main", "box", 1))
    action = core.decide(log_of(budgets, *called), NOW)
    assert isinstance(action, core.RunCalls)
    assert [run.call.id for run in action.calls] == ["t1", "t2"]
    started = (*called, CallStarted(0, "t1", 1, "main", "box"), CallStarted(0, "t2", 1, "main", "box"))
    action = core.decide(log_of(budgets, *started), NOW)
    assert isinstance(action, core.RunCalls)
    assert [run.call.id for run in action.calls] == ["t1", "t2"]
    ended = (*started, CallFinished(0, "t1", ToolResult("")), CallFinished(0, "t2", ToolResult("")))
    assert core.decide(log_of(budgets, *ended), NOW) == core.Pause(Reached("max_tool_calls", 2, 2))
    raised = (*ended, Paused(0, "max_tool_calls"), Configured(0, Config(budgets=Budgets(max_tool_calls=3))))
    action = core.decide(log_of(budgets, *raised), NOW)
    assert isinstance(action, core.RunCalls)
    assert [run.call.id for run in action.calls] == ["t3"]


def test_a_clients_tools_count_as_tool_calls() -> None:
    """A custom tool is not handed out beyond the budget."""
    config = Config(custom_tools=(ToolSpec("ask", "", SCHEMA),))
    called = Replied(0, "[]", "tool_use", 3, (ToolCall("a", "ask", "{}"), ToolCall("b", "ask", "{}")))
    asked = log_of(Budgets(max_tool_calls=1), called, CustomAsked(0, "a"), config=config)
    assert core.decide(asked, NOW) == core.Pause(Reached("max_tool_calls", 1, 1))


def test_time_counts_while_a_harness_works_and_not_while_nobody_does() -> None:
    """Between two events of one harness, and from its last one on; not before it woke, nor while a person decides."""
    work = (
        Woke(0, time=100.0),
        Replied(0, "[]", "tool_use", 3, CALLS[:1], time=110.0),
        ConfirmationAsked(0, "t1", time=111.0),
        Interrupt(0, time=500.0),
        Woke(0, time=600.0),
    )
    state = log_of(Budgets(max_wall_time=20.0), *work)
    assert state.used.worked == 11.0
    assert core.due(state, 601.0) == 609.0


def test_the_time_that_is_used_up_stops_even_what_runs() -> None:
    """The shell is told when to ask again; then it pauses, and later goes on with the same call."""
    ran = (
        Replied(0, "[]", "tool_use", 3, CALLS[:1]),
        Provisioned(0, "main", "box", 1),
        Woke(0, time=100.0),
        CallStarted(0, "t1", 1, "main", "box", time=101.0),
    )
    state = log_of(Budgets(max_wall_time=20.0), *ran)
    assert isinstance(core.decide(state, 119.0), core.RunCalls)
    assert core.due(state, 119.0) == 120.0
    assert core.decide(state, 121.5) == core.Pause(Reached("max_wall_time", 20_000, 21_500))
    raised = Configured(0, Config(budgets=Budgets(max_wall_time=60.0)))
    later = log_of(Budgets(max_wall_time=20.0), *ran, Paused(0, "max_wall_time", time=121.5), raised)
    assert isinstance(core.decide(later, 121.5), core.RunCalls)


def test_no_budget_stands_in_the_way_of_an_end() -> None:
    """What needs no model and no hand is always done: a turn's end, a result that is there."""
    spent = Budgets(max_turns=1, max_tokens=1, max_cost_micros=1, max_wall_time=1.0, max_tool_calls=1)
    state = log_of(spent, Woke(0, time=1.0), Replied(0, "[]", "end_turn", 4, usage=USED, time=5.0))
    assert core.decide(state, NOW) == core.EndTurn("DONE", 5)
    denied = Config(policies=(Policy("bash", "DENY"),))
    state = log_of(spent, Woke(0, time=1.0), Replied(0, "[]", "tool_use", 4, CALLS[:1], time=5.0), config=denied)
    assert isinstance(core.decide(state, NOW), core.FinishCall)


# --- prices ---
def test_an_answer_without_a_price_counts_at_the_highest() -> None:
    """The log says nothing of its cost, which an older harness may have written; a limit of cost holds all the same."""
    usage = Usage(input=1_000_000)
    assert DEAREST.of(usage) == max(profile.price.input for profile in MODEL_PROFILES.values())
    unpriced = replace(DONE[0], usage=usage, priced=False)
    state = log_of(Budgets(max_cost_micros=10), unpriced, *DONE[1:])
    assert core.decide(state, NOW) == core.Pause(Reached("max_cost_micros", 10, DEAREST.of(usage)))
    assert state.used.in_turn.cost_micros == 0


# --- the shell ---
async def test_a_budget_pauses_the_session_and_a_raised_one_goes_on_where_it_stopped() -> None:
    """One BudgetReached, no more requests; after the raise the same turn ends, with what it used."""
    log = MemoryLog(SessionConfig(budgets=BudgetsMessage(max_tool_calls=1)))
    hands, ls = MemoryHands(), ("bash", {"command": "ls"})
    model = ScriptedModel(said(t1=ls), said(t2=ls), said())
    assert await make().run(log, ports(model, hands), "test", Told()) is None
    assert [(it.budget, it.limit, it.used) for it in log.only("budget_reached")] == [("max_tool_calls", 1, 1)]
    assert len(model.requests) == 2
    before = len(log.events)
    await log.add(message("hurry", "m2"))
    await make().run(log, ports(model, hands), "test", Told())
    assert len(log.events) == before + 1
    raised = SessionConfig(budgets=BudgetsMessage(max_tool_calls=2))
    await log.add(Event(event_id="raise", config_changed=ConfigChanged(config=raised)))
    await make().run(log, ports(model, hands), "test", Told())
    assert list(hands.executions) == ["t1", "t2"]
    assert [it.usage.output_tokens for it in log.only("turn_ended")] == [3]


async def test_time_pauses_a_turn_in_the_middle_of_a_tool() -> None:
    """The harness leaves while the hand goes on; an interrupt settles the call."""
    config = SessionConfig(budgets=BudgetsMessage())
    config.budgets.max_wall_time.FromMilliseconds(50)
    never = asyncio.Event()
    log, hands = MemoryLog(config), MemoryHands(lambda tool, input: never.wait())
    log.clock = NOW
    world = replace(
        ports(ScriptedModel(said(t1=("bash", {}))), hands), now=lambda: NOW + (1.0 if hands.executions else 0.0)
    )
    await make().run(log, world, "test", Told())
    assert log.kinds()[-1] == "budget_reached"
    assert not hands.cancelled
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()))
    await make().run(log, world, "test", Told())
    assert hands.cancelled == ["t1"]
    assert log.kinds()[-2:] == ["tool_finished", "turn_ended"]

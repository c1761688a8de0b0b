"""The brain's rules: whatever crashes and whoever speaks when, every call is answered once and every message read."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.harness.core import (
    CallFinished,
    CallStarted,
    Config,
    Configured,
    ConfirmationAsked,
    Confirmed,
    CustomAnswered,
    CustomAsked,
    Detached,
    Ended,
    Fact,
    Interrupt,
    Message,
    Offered,
    Policy,
    Provisioned,
    Replied,
    Retry,
    SessionOver,
    Started,
    ToolCall,
    ToolResult,
    ToolSpec,
    Unknown,
    Woke,
)
from services.harness.loops.messages.view import view
from services.harness.turn import core, policies
from services.harness.turn.state import State, fold, fold_all
from services.harness.usage import Budgets, Reached

NOW = 1_000.0  # Unix time, seconds
SCHEMA = '{"type":"object"}'
CONFIG = Config(
    hands=("main", "box"),
    servers=("shop",),
    custom_tools=(ToolSpec("ask_user", "", SCHEMA),),
    policies=(Policy("shop__buy", "ASK"), Policy("*__rm", "DENY")),
)
OFFERED = ("main__bash", "box__bash", "box__rm", "shop__buy", "shop__look")
TOOLS = (*OFFERED, "ask_user", "no_such_tool")


class World:
    """A shell around `decide`: one log, and things that go wrong."""

    def __init__(self, script: list[tuple[str, ...]]) -> None:
        self.log: list[Fact] = []
        self.script = script
        self.effects: dict[str, int] = {}
        self.add(Started(0, CONFIG))
        self.add(Message(0, '[{"type":"text","text":"hi"}]'))

    def add(self, fact: Fact) -> None:
        self.log.append(replace(fact, position=len(self.log) + 1))

    def state(self) -> State:
        return fold_all(self.log)

    def step(self, crash: str | None, intruder: Fact | None) -> bool:
        """One decision; `crash` loses what was decided before or after its effect. False: nothing left to do."""
        state = self.state()
        action = core.decide(state, NOW)
        if isinstance(intruder, Detached):
            made = state.sandboxes.get(intruder.hand)
            intruder = replace(intruder, sandbox_id=made.sandbox_id if made else "none")
        if intruder is not None:
            self.add(intruder)  # while we were busy
        if crash == "before":
            self.add(Woke(0))
            return True
        if isinstance(action, core.Rest):
            return self.answer(state) or intruder is not None
        self.do(action, state, crash)
        return True

    def do(self, action: core.Action, state: State, crash: str | None) -> None:
        moved = len(self.log) != state.head  # decisions are dropped when the log has moved on, facts are not
        match action:
            case core.EndTurn(reason=reason, read=read) if not moved:
                self.add(Ended(0, reason, read))
            case core.AskConfirmation(call=call) if not moved:
                self.add(ConfirmationAsked(0, call.id))
            case core.AskClient(call=call) if not moved:
                self.add(CustomAsked(0, call.id))
            case core.FinishCall(call=call, result=result):
                self.finish(call.id, result)
            case core.Settle(calls=calls):
                for call in calls:
                    self.finish(call.call.id, ToolResult("stopped", "INTERRUPTED"))
            case core.LookUpTools(hands=hands, servers=servers):
                for hand in (*hands, *servers):
                    tools = [name for name in OFFERED if name.startswith(f"{hand}__")]
                    self.add(Offered(0, hand, tuple(ToolSpec(name, "", SCHEMA) for name in tools)))
            case core.RunCalls(calls=calls, provision=hands):
                for hand in hands:
                    self.add(Provisioned(0, hand, f"box{len(self.log)}", state.generations.get(hand, 0) + 1))
                for run in calls:
                    self.run(run, crash)
            case core.AskModel(read=read) if crash is None:
                replies = sum(isinstance(fact, Replied) for fact in self.log)
                names = self.script[replies] if replies < len(self.script) else ()
                calls = tuple(ToolCall(f"t{replies}.{n}", name, "{}") for n, name in enumerate(names))
                self.add(Replied(0, "[]", "tool_use" if calls else "end_turn", read, calls))
            case _:
                pass

    def run(self, run: core.RunCall, crash: str | None) -> None:
        assert run.sandbox_id or run.hand == "shop", "a hand's call runs in a sandbox"
        hands = {fact.sandbox_id: fact.hand for fact in self.log if isinstance(fact, Provisioned)}
        assert run.hand == hands.get(run.sandbox_id, "shop"), "and in one of its own hand's"
        if run.started is None:
            self.add(CallStarted(0, run.call.id, 0, run.hand, run.sandbox_id))
        self.effects.setdefault(run.call.id, 0)
        if self.effects[run.call.id] == 0:
            self.effects[run.call.id] = 1  # the hand runs an execution id once
        if crash is None:
            self.finish(run.call.id, ToolResult("ran"))
        else:
            self.add(Woke(0))

    def finish(self, id: str, result: ToolResult) -> None:
        if not any(isinstance(fact, CallFinished) and fact.id == id for fact in self.log):  # the log's own rule
            self.add(CallFinished(0, id, result))

    def answer(self, state: State) -> bool:
        """A person and a client answer what waits for them."""
        for call in state.calls.values():
            if call.result is None and call.asked and call.verdict is None:
                self.add(Confirmed(0, call.call.id, allowed=len(self.log) % 2 == 0))
                return True
            if call.result is None and call.handed_out and call.answer is None:
                self.add(CustomAnswered(0, call.call.id, ToolResult("yes")))
                return True
        return False


scripts = st.lists(st.lists(st.sampled_from(TOOLS), max_size=3).map(tuple), max_size=4)
intruders = st.sampled_from(
    [
        None,
        None,
        None,
        Interrupt(0),
        Message(0, '[{"type":"text","text":"more"}]'),
        Woke(0),
        Detached(0, "main", ""),
        Detached(0, "box", ""),
    ]
)
troubles = st.lists(st.tuples(st.sampled_from([None, None, "before", "after"]), intruders), max_size=40)


@settings(max_examples=500, deadline=None)
@given(scripts, troubles)
def test_any_harness_can_take_up_any_session(script: list[tuple[str, ...]], troubles: list) -> None:
    """Every call has one result, every message is read or interrupted, a denied call never runs, and it ends."""
    world = World(script)
    for turn in range(500):
        if not world.step(*(troubles[turn] if turn < len(troubles) else (None, None))):
            break
    else:
        raise AssertionError("never rests")
    log = world.log
    called = {call.id: call for fact in log if isinstance(fact, Replied) for call in fact.calls}
    answered = [fact.id for fact in log if isinstance(fact, CallFinished)]
    assert sorted(called) == sorted(answered)
    for id, call in called.items():
        if call.name in ("box__rm", "ask_user", "no_such_tool"):
            assert id not in world.effects
    started = [fact.id for fact in log if isinstance(fact, CallStarted)]
    assert sorted(started) == sorted(world.effects) == sorted(set(started))
    for fact in log:
        if isinstance(fact, Ended):
            before = {other.id for other in log if isinstance(other, CallFinished) and other.position < fact.position}
            assert before >= {
                call.id for it in log if isinstance(it, Replied) and it.position < fact.position for call in it.calls
            }
        if isinstance(fact, Message):
            read = any(isinstance(other, Replied) and other.read >= fact.position for other in log)
            stopped = any(isinstance(other, Interrupt) and other.position > fact.position for other in log)
            assert read or stopped
    assert isinstance(core.decide(world.state(), NOW), core.Rest)


@settings(max_examples=200, deadline=None)
@given(scripts, troubles)
def test_folding_one_by_one_is_folding_the_whole(script: list[tuple[str, ...]], troubles: list) -> None:
    """`decide(fold(...))` after every event is what a harness decides that reads the whole log anew."""
    world = World(script)
    state = State()
    read = 0
    for trouble in troubles:
        world.step(*trouble)
        for fact in world.log[read:]:
            state = fold(state, fact)
        read = len(world.log)
        assert core.decide(state, NOW) == core.decide(world.state(), NOW)


def _log(*facts: Fact) -> State:
    return fold_all(replace(fact, position=place) for place, fact in enumerate(facts, 1))


HELLO = (
    Started(0, Config()),
    Message(0, '[{"type":"text","text":"hi"}]'),
    Offered(0, "main", (ToolSpec("bash", "", SCHEMA),)),
)
BASH = ToolCall("t1", "bash", '{"command":"ls"}')


def test_a_message_that_lands_while_the_model_answers_is_read_next() -> None:
    """The log's order is not the order of cause: position 4 is newer than what the reply at 5 had read."""
    state = _log(*HELLO, Message(0, '[{"type":"text","text":"and"}]'), Replied(0, "[]", "end_turn", 3))
    assert core.decide(state, NOW) == core.AskModel(5)


def test_a_call_of_an_older_epoch_is_sent_again_not_started_again() -> None:
    """A woken harness attaches: `started` is set, so no second ToolStarted is emitted."""
    started = CallStarted(0, "t1", 1, "main", "box")
    state = _log(*HELLO, Replied(0, "[]", "tool_use", 3, (BASH,)), Provisioned(0, "main", "box", 1), started, Woke(0))
    action = core.decide(state, NOW)
    assert isinstance(action, core.RunCalls)
    assert action.calls[0].started == replace(started, position=6)


def test_no_sandbox_is_made_before_the_first_call() -> None:
    """Hands are provisioned by the first tool call, never before."""
    assert core.decide(_log(*HELLO), NOW) == core.AskModel(3)
    assert core.decide(_log(*HELLO, Replied(0, "[]", "tool_use", 3, (BASH,))), NOW) == core.RunCalls((), ("main",))


def test_a_call_that_broke_off_never_runs() -> None:
    """`max_tokens` inside a tool's input: the model is told, the input is not executed."""
    cut = replace(BASH, cut=True)
    action = core.decide(_log(*HELLO, Replied(0, "[]", "max_tokens", 3, (cut,))), NOW)
    assert isinstance(action, core.FinishCall)
    assert action.result.outcome == "TOOL_ERROR"


def test_pause_turn_goes_on() -> None:
    """`pause_turn` is not an end: the model is asked again."""
    assert core.decide(_log(*HELLO, Replied(0, "[]", "pause_turn", 3)), NOW) == core.AskModel(4)


def test_stop_reasons_end_turns_as_what_they_are() -> None:
    """A refusal and a length limit are said, not passed off as done."""
    for stop_reason, reason in {"end_turn": "DONE", "refusal": "REFUSED", "max_tokens": "LIMIT"}.items():
        assert core.decide(_log(*HELLO, Replied(0, "[]", stop_reason, 3)), NOW) == core.EndTurn(reason, 4)


def test_the_limit_of_model_calls_pauses() -> None:
    """`max_model_calls_per_turn` reached pauses the session instead of asking again."""
    limited = (Started(0, Config(budgets=Budgets(max_model_calls_per_turn=1))), *HELLO[1:])
    call = ToolCall("t1", "nothing", "{}")
    state = _log(*limited, Replied(0, "[]", "tool_use", 3, (call,)), CallFinished(0, "t1", ToolResult("no")))
    assert core.decide(state, NOW) == core.Pause(Reached("max_model_calls_per_turn", 1, 1))


def test_an_event_of_an_unknown_kind_stops_the_harness() -> None:
    """A log that is only half understood is not acted on."""
    assert isinstance(core.decide(_log(*HELLO, Unknown(0, "new_kind")), NOW), core.Rest)


def test_an_ended_session_is_left_alone() -> None:
    """Nothing is done after SessionEnded."""
    assert isinstance(core.decide(_log(*HELLO, SessionOver(0)), NOW), core.Rest)


def test_an_interrupt_of_an_idle_session_changes_nothing() -> None:
    """A later message is answered although an old interrupt was never needed."""
    idle = (*HELLO, Replied(0, "[]", "end_turn", 3), Ended(0, "DONE", 4), Interrupt(0))
    assert isinstance(core.decide(_log(*idle), NOW), core.Rest)
    assert core.decide(_log(*idle, HELLO[1]), NOW) == core.AskModel(7)


def test_a_failed_call_of_the_model_is_a_rest_until_its_time() -> None:
    """Nobody holds the session until a retry is due; then, and not before, the model is asked."""
    state = _log(*HELLO, Retry(0, 1, NOW + 60))
    assert core.decide(state, NOW) == core.Rest("the model is asked again later", NOW + 60)
    assert core.decide(state, NOW + 60) == core.AskModel(4)


def test_tools_of_several_hands_carry_the_hand_in_their_name() -> None:
    """`hand__tool` reaches the hand as `tool`."""
    config = Config(hands=("a", "b"))
    offers = [Offered(0, hand, (ToolSpec(f"{hand}__bash", "", SCHEMA),)) for hand in config.hands]
    routes = policies.routes_of(_log(Started(0, config), *offers))
    assert {name: route[:2] for name, route in routes.items()} == {
        "a__bash": ("a", "bash"),
        "b__bash": ("b", "bash"),
    }
    assert json.loads(routes["a__bash"][2].schema) == {"type": "object"}


TWO = (
    Started(0, Config(hands=("box", "build"), hand_specs=(b"1", b"2"))),
    Message(0, '[{"type":"text","text":"hi"}]'),
    Offered(0, "box", (ToolSpec("box__bash", "", SCHEMA),)),
    Offered(0, "build", (ToolSpec("build__bash", "", SCHEMA),)),
)
BOTH = (ToolCall("t1", "box__bash", "{}"), ToolCall("t2", "build__bash", "{}"))


def test_a_hand_that_is_there_does_not_wait_for_one_that_is_not() -> None:
    """Of two calls one runs while the other's sandbox is being made; without any sandbox both are made at once."""
    called = (*TWO, Replied(0, "[]", "tool_use", 4, BOTH))
    assert core.decide(_log(*called), NOW) == core.RunCalls((), ("box", "build"))
    action = core.decide(_log(*called, Provisioned(0, "build", "sbx", 1)), NOW)
    assert isinstance(action, core.RunCalls)
    assert ([run.call.id for run in action.calls], action.provision) == (["t2"], ("box",))


def test_a_lost_sandbox_costs_its_own_hand_only() -> None:
    """The other hand keeps its sandbox; and what is said late of an old sandbox is not said of the new one."""
    made = (*TWO, Provisioned(0, "box", "one", 1), Provisioned(0, "build", "two", 1), Detached(0, "box", "one"))
    assert set(_log(*made).sandboxes) == {"build"}
    again = _log(*made, Provisioned(0, "box", "three", 2), Detached(0, "box", "one"))
    assert again.sandboxes["box"].sandbox_id == "three"


def test_a_hand_that_was_changed_gets_another_sandbox() -> None:
    """A new environment for a hand's name is a new hand; the others keep what they have."""
    made = (*TWO, Provisioned(0, "box", "one", 1), Provisioned(0, "build", "two", 1))
    turned = (*made, Replied(0, "[]", "end_turn", 6), Ended(0, "DONE", 7))
    other = Configured(0, Config(hands=("box", "build"), hand_specs=(b"1", b"another")))
    state = _log(*turned, other)
    assert (set(state.sandboxes), state.generations) == ({"box"}, {"box": 1, "build": 1})


def test_a_clients_own_tool_takes_the_place_of_a_hands() -> None:
    """Two tools of one name are refused by the model's API: the client's is the one that is offered and asked for."""
    config = Config(custom_tools=(ToolSpec("bash", "The client's.", SCHEMA),))
    log = (Started(0, config), *HELLO[1:])
    assert [tool["description"] for tool in view(_log(*log), "m").request["tools"]] == ["The client's."]
    assert core.decide(_log(*log, Replied(0, "[]", "tool_use", 3, (BASH,))), NOW) == core.AskClient(BASH)

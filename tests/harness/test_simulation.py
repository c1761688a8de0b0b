"""10,000 interleavings of two harnesses over one log: who dies, stops or speaks when is chosen by seeded numbers.

The log admits what the session service admits, by its own code. A failure prints the shortest list of numbers that
still shows it: `Simulation([...]).run()` plays it again.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from services.harness.core import (
    CallFinished,
    CallStarted,
    Config,
    Confirmed,
    CustomAnswered,
    Ended,
    Fact,
    Interrupt,
    Message,
    Offered,
    Provisioned,
    Replied,
    Started,
    ToolCall,
    ToolResult,
    Woke,
)
from services.harness.loops.messages.told import conversation
from services.harness.turn import core
from services.harness.turn.state import State, fold, fold_all
from services.session.core import Status, status
from services.session.verify import check, check_acknowledged
from tests.support.simulation import Simulation

SEEDS = 10_000
BATCHES = 10
LONGEST = 240  # choices of one interleaving


def violations(simulation: Simulation) -> list[str]:
    """Returns what is wrong after a simulation has come to rest."""
    log = simulation.log
    found = [str(each) for each in (*check(log.seen), *check_acknowledged(log.seen, log.acknowledged))]
    found += _executions(simulation) + _reading(log.facts) + _answers(log.facts)
    state = fold_all(log.facts)
    action = core.decide(state, log.now)
    if not isinstance(action, core.Rest):
        found.append(f"I12 it rests, and is to {action}")
    if status(log.state) not in (Status.IDLE, Status.ENDED):
        found.append(f"I12 it rests, and is {status(log.state).name}")
    if not log.state.ended and log.state.message > log.state.settled:
        found.append("I8 a message is not dealt with")
    return found


def _executions(simulation: Simulation) -> list[str]:
    """I6 and I7: what ran, ran once, was announced before, and was allowed."""
    log, runs = simulation.log, simulation.world.runs
    kinds = {(seen.fact.kind, seen.fact.tool_use_id) for seen in log.seen}
    names = {call.id: call.name for fact in log.facts if isinstance(fact, Replied) for call in fact.calls}
    allowed = {fact.id for fact in log.facts if isinstance(fact, Confirmed) and fact.allowed}
    asked = {id for kind, id in kinds if kind == "tool_confirmation_requested"}
    found = [f"I6 {id} ran twice" for id in set(runs) if runs.count(id) > 1]
    found += [f"I6 {id} ran without a tool_started" for id in runs if ("tool_started", id) not in kinds]
    found += [f"I7 {id} ran though nobody allowed it" for id in runs if id in asked - allowed]
    return found + [f"I7 {names[id]} never reaches a hand" for id in runs if names[id] in ("ask_user", "no_such_tool")]


def _answers(facts: list[Fact]) -> list[str]:
    """I5: what a client has answered is the call's result, and no other."""
    results = {fact.id: fact.result for fact in facts if isinstance(fact, CallFinished)}
    lost = [it.id for it in facts if isinstance(it, CustomAnswered) and results.get(it.id, it.result) != it.result]
    return [f"I5 the answer to {id} is not its result" for id in lost]


def _reading(facts: list[Fact]) -> list[str]:
    """I8: every message is read once, in order; what a turn has read it has answered, unless it was interrupted."""
    found, reads, settled = [], 0, 0
    for fact in facts:
        if isinstance(fact, Replied):
            if not reads <= fact.read < fact.position:
                found.append(f"I8 the reply at {fact.position} has read up to {fact.read}, the one before {reads}")
            reads = fact.read
        elif isinstance(fact, Ended):
            if not settled <= fact.read < fact.position:
                found.append(f"I8 the turn that ends at {fact.position} has read up to {fact.read} after {settled}")
            unanswered = [it.position for it in facts if isinstance(it, Message) and reads < it.position <= fact.read]
            if unanswered and fact.reason == "DONE":
                found.append(f"I8 the turn ended at {fact.position} without an answer to {unanswered}")
            if fact.reason == "INTERRUPTED" and not isinstance(facts[fact.read - 1], Interrupt):
                found.append(f"I8 nobody interrupted the turn that ends at {fact.position}")
            settled = fact.read
    told = [fact.position for fact in reversed(conversation(fold_all(facts))) if isinstance(fact, Message)]
    if told != [fact.position for fact in facts if isinstance(fact, Message)]:
        found.append(f"I8 the model is told the messages {told}")
    return found


def outcome(numbers: list[int]) -> list[str]:
    """Plays an interleaving and says what is wrong with it."""
    simulation = Simulation(numbers)
    try:
        simulation.run()
    except AssertionError as failure:
        return [f"I12 {failure}"]
    return violations(simulation)


def shortest(numbers: list[int]) -> list[int]:
    """Shrinks an interleaving that goes wrong: leaves out and calms whatever it goes wrong without."""
    size = len(numbers)
    while size:
        for start in range(0, len(numbers), size):
            shorter = numbers[:start] + numbers[start + size :]
            calmer = numbers[:start] + [0] * len(numbers[start : start + size]) + numbers[start + size :]
            for tried in (shorter, calmer):
                if tried != numbers and len(tried) <= len(numbers) and outcome(tried):
                    numbers = tried
                    break
        size //= 2
    return numbers


def numbers_of(seed: int) -> list[int]:
    """Makes a seed's choices."""
    chosen = random.Random(seed)
    return [chosen.getrandbits(16) for _ in range(chosen.randrange(20, LONGEST))]


@pytest.mark.parametrize("batch", range(BATCHES))
def test_two_harnesses_keep_the_invariants_whatever_happens(batch: int) -> None:
    """I1 to I8 hold for the log and the world, and the session always comes to rest (I12)."""
    for seed in range(batch, SEEDS, BATCHES):
        numbers = numbers_of(seed)
        if outcome(numbers):
            least = shortest(numbers)
            raise AssertionError(f"seed {seed}: {outcome(least)} after {least}")


@pytest.mark.parametrize("seed", range(40))
def test_deciding_by_a_whole_log_is_folding_it_one_by_one(seed: int) -> None:
    """At each position of a log, two harnesses that read it at different speeds decide the same."""
    simulation = Simulation(numbers_of(seed))
    simulation.run()
    facts = simulation.log.facts
    state = fold_all(facts[:1])
    for position in range(1, len(facts)):
        state = fold_all(facts[position : position + 1], state)
        now = facts[position].time
        assert core.decide(state, now) == core.decide(fold_all(facts[: position + 1]), now)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_due_is_the_next_moment_at_which_the_decision_may_change(seed: int) -> None:
    """Without a new event, `decide` says the same until `due`: nobody has to look more often."""
    simulation = Simulation(numbers_of(seed))
    simulation.run()
    facts = simulation.log.facts
    for position in range(1, len(facts) + 1):
        state, now = fold_all(facts[:position]), facts[position - 1].time
        due = core.due(state, now)
        later = now + 10_000.0 if due is None else due - 0.001
        first, second = core.decide(state, now), core.decide(state, later)
        if isinstance(first, core.AskClient | core.Pause):  # they say how late it is
            assert type(first) is type(second)
        else:
            assert first == second


def _turns(count: int) -> list[Fact]:
    """Makes a log of many turns, each with a call."""
    facts: list[Fact] = [Started(0, Config()), Offered(0, "main", ()), Provisioned(0, "main", "box", 1)]
    for turn in range(count):
        call = ToolCall(f"t{turn}", "bash", "{}")
        facts += [
            Message(0, "[]"),
            Message(0, "[]"),
            Woke(0),
            Replied(0, "[]", "tool_use", len(facts) + 3, (call,)),
            CallStarted(0, call.id, len(facts) + 3, "main", "box"),
            CallFinished(0, call.id, ToolResult("ran")),
            Replied(0, "[]", "end_turn", len(facts) + 6),
            Ended(0, "DONE", len(facts) + 7),
        ]
    return [replace(fact, position=place, time=float(place)) for place, fact in enumerate(facts, 1)]


def _operations(state: State, facts: list[Fact]) -> list[int]:
    """Counts the calls that folding each of these facts and deciding after it makes."""
    counts = []
    for fact in facts:
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        state = fold(state, fact)
        core.decide(state, fact.time)
        sys.setprofile(None)
        counts.append(calls)
    return counts


def test_an_event_costs_the_same_however_long_the_log_is() -> None:
    """The same number of operations after 10 turns as after 2,000, on a state that holds no more."""
    facts = _turns(2_001)
    early, late = fold_all(facts[: 3 + 8 * 10]), fold_all(facts[: 3 + 8 * 2_000])
    assert _operations(early, facts[3 + 8 * 10 :][:8]) == _operations(late, facts[3 + 8 * 2_000 :])
    held = [sum(len(getattr(state, name)) for name in ("calls", "offers", "sandboxes")) for state in (early, late)]
    assert held[0] == held[1] == 2

"""The transition table, which docs/brain.md shows, is what the brain does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from services.harness.core import Fact
from services.harness.turn import core
from services.harness.turn.state import State, fold
from services.harness.turn.transitions import CALLS, STOPPING, TIME, TRANSITIONS
from services.session.core import Fact as Told
from services.session.emitters import CLIENT, EMITTERS, SESSION
from tests.harness.test_simulation import numbers_of
from tests.support.simulation import Simulation

Step = tuple[type[core.Action], str, type[core.Action]]
ROOT = Path(__file__).parents[2]
SEEDS = range(20_000, 21_000)


def steps_of(seed: int) -> set[Step]:
    """Lists a simulated log's steps: what was decided, the event by which that was done, and what was decided then."""
    simulation = Simulation(numbers_of(seed))
    simulation.run()
    found: set[Step] = set()
    state = State()
    for fact, told in zip(simulation.log.facts, (seen.fact for seen in simulation.log.seen), strict=True):
        before = core.decide(state, fact.time)
        if (isinstance(before, core.Rest) and before.until is None) or told.kind in TRANSITIONS[type(before)]:
            found |= _step(state, before, fact, told)
        state = fold(state, fact)
    return found


def _step(state: State, before: core.Action, fact: Fact, told: Told) -> set[Step]:
    after = core.decide(fold(state, fact), fact.time)
    return {(type(before), told.kind, type(after))}


def test_what_follows_what_is_in_the_table() -> None:
    """Each step of 1,000 simulated logs is a row of it, and each row but that of time is a step of some log."""
    steps = set().union(*map(steps_of, SEEDS))
    around = {
        "session_started",
        "session_ended",
        "harness_woke",
        "model_replied",
        "tools_offered",
        "sandbox_provisioned",
    }
    told = {step for step in steps if not (step[0] is core.Rest and step[1] in around)}
    assert {step for step in told if step[2] not in TRANSITIONS[step[0]].get(step[1], ())} == set()
    rows = {(action, event) for action, events in TRANSITIONS.items() for event in events if event != TIME}
    assert rows - {(action, event) for action, event, _ in told} == set()


def test_every_event_that_a_harness_or_a_client_may_append_is_in_the_table_or_around_it() -> None:
    """A new kind of event that matters to the brain needs a row."""
    named = {event for events in TRANSITIONS.values() for event in events} - {TIME}
    assert named <= set(EMITTERS)
    clients = {kind for kind, who in EMITTERS.items() if CLIENT in who} - {"custom"}
    assert clients | {"config_changed"} == set(TRANSITIONS[core.Rest]) - {TIME}
    assert EMITTERS["config_changed"] == {SESSION}


def test_every_action_has_its_row() -> None:
    """And its groups are of actions."""
    assert set(TRANSITIONS) == set(core.ACTIONS)
    assert {*CALLS, *STOPPING} <= set(core.ACTIONS)


def test_the_picture_is_drawn_from_the_table() -> None:
    """docs/brain.md shows what the table says: `python ci/brain_picture.py` draws it anew."""
    drawn = subprocess.run([sys.executable, "ci/brain_picture.py", "--check"], cwd=ROOT, check=False)
    assert drawn.returncode == 0

"""What sessions use and cost is shown, and a session that is paused at a budget says how it goes on."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from handmesh.cli import spending
from handmesh.cli.arguments import UsageError
from handmesh.session.v1 import config_pb2, event_pb2
from tests.cli.peer import Peer

Command = Callable[..., Result]
USED = event_pb2.TokenUsage(input_tokens=1_234)
REACHED = event_pb2.BudgetReached(budget="max_tokens", limit=1_000, used=1_234)


def paused(peer: Peer, session_id: str, position: int = 0) -> None:
    """Answers once, and comes to the end of its tokens."""
    peer.append(session_id, model_replied=event_pb2.ModelReplied(usage=USED, cost_micros=12_345))
    peer.append(session_id, budget_reached=REACHED)


def test_sessions_show_tokens_cost_and_for_what_they_are_paused(peer: Peer, handmesh: Command) -> None:
    """A session without a known cost has a dash; what to do about a paused one is on standard error."""
    paused(peer, peer.start("sess_2"))
    peer.append(peer.start("sess_1"), model_replied=event_pb2.ModelReplied(usage=USED))
    result = handmesh("sessions")
    shown = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "THEN", result.stdout)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines == [
        "session status began turns events tokens cost title",
        "sess_2 paused: tokens THEN 0 3 1,234 $0.0123",
        "sess_1 idle THEN 0 2 1,234 -",
    ]
    assert result.stderr == "sess_2 is paused; to go on: handmesh raise sess_2 tokens=MORE\n"


def test_a_run_that_is_paused_ends_and_says_how_to_go_on(peer: Peer, handmesh: Command) -> None:
    """Exit code 4: nobody has to wait for what will not come."""
    peer.brain = paused
    result = handmesh("run", "do it", "--budget", "tokens=1000")
    (session_id,) = peer.items
    assert result.exit_code == 4
    assert peer.configs[session_id].budgets == config_pb2.Budgets(max_tokens=1_000)
    notes = result.stderr.splitlines()
    assert notes == [
        f"session {session_id}",
        "paused: 1,234 of 1,000 tokens are used",
        f"paused: tokens; to go on: handmesh raise {session_id} tokens=MORE",
        f"look: handmesh events {session_id}   go on: handmesh run --session {session_id} ...",
    ]


def test_a_message_to_a_paused_session_is_not_waited_for(peer: Peer, handmesh: Command) -> None:
    """It is in the log, and waits there; the command says why, and ends."""
    paused(peer, peer.start("s"))
    result = handmesh("run", "hurry", "--session", "s")
    assert result.exit_code == 4
    assert "to go on: handmesh raise s tokens=MORE" in result.stderr
    assert peer.events("s")[-1].HasField("message_received")


def test_a_turn_says_what_it_used_and_cost(peer: Peer, handmesh: Command) -> None:
    """In `run` and in `events`."""

    def brain(peer: Peer, session_id: str, position: int) -> None:
        ended = event_pb2.TurnEnded(reason=1, read_position=position, usage=USED, cost_micros=1_234_500)
        peer.append(session_id, turn_ended=ended)

    peer.brain = brain
    assert "turn ended: done, 1,234 tokens, $1.2345" in handmesh("run", "do it").stderr
    (session_id,) = peer.items
    assert handmesh("events", session_id, "--last", "1").stdout.endswith("done, 1,234 tokens, $1.2345\n")


def test_raising_a_budget_lets_a_session_go_on(peer: Peer, handmesh: Command) -> None:
    """Only what is named changes; what was and what is now are printed."""
    session_id = peer.start("s")
    peer.configs["s"] = config_pb2.SessionConfig(
        system="Be brief.", budgets=config_pb2.Budgets(max_tokens=1_000, max_turns=3)
    )
    paused(peer, session_id)
    result = handmesh("raise", "s", "tokens=50000", "cost=2.50", "time=90", "turns=none")
    assert result.stdout.splitlines() == [
        "tokens: 1000 -> 50000",
        "cost: none -> 2.5",
        "time: none -> 90",
        "turns: 3 -> none",
        "it goes on. Look: handmesh events s --from 4 --follow",
    ]
    budgets = config_pb2.Budgets(max_tokens=50_000, max_cost_micros=2_500_000)
    budgets.max_wall_time.FromSeconds(90)
    assert peer.configs["s"] == config_pb2.SessionConfig(system="Be brief.", budgets=budgets)
    assert "paused" not in handmesh("sessions").stdout


@pytest.mark.parametrize("value", ["tokens", "tokens=", "tokens=0", "tokens=-1", "tokens=1.5", "cost=x", "speed=1", ""])
def test_a_wrong_budget_reaches_nobody(peer: Peer, handmesh: Command, value: str) -> None:
    """It is said with what was expected."""
    peer.start("s")
    result = handmesh("raise", "s", value)
    assert (result.exit_code, len(peer.events("s"))) == (2, 1)
    assert repr(value) in result.stderr


def test_every_budget_of_the_contract_has_a_name() -> None:
    """And no two the same."""
    fields = [budget.field for budget in spending.BUDGETS.values()]
    assert sorted(fields) == sorted(field.name for field in config_pb2.Budgets.DESCRIPTOR.fields)


@given(st.sampled_from(sorted(spending.BUDGETS)), st.integers(1, 10**9))
def test_what_is_written_is_read_again(name: str, amount: int) -> None:
    """A limit is printed as it is given."""
    budgets = spending.budgets_of([f"{name}={amount}"])
    assert spending.limit_of(budgets, name) == str(amount)
    assert spending.budgets_of([f"{name}=none"], budgets) == config_pb2.Budgets()


def test_the_smallest_amounts_are_kept() -> None:
    """A millionth of a dollar, a thousandth of a second; half of one is none."""
    assert spending.budgets_of(["cost=0.000001"]).max_cost_micros == 1
    assert spending.budgets_of(["time=0.001"]).max_wall_time.ToMilliseconds() == 1
    with pytest.raises(UsageError, match="above 0"):
        spending.budgets_of(["time=0.0004"])

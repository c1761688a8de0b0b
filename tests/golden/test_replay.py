"""What was recorded is decided again, for ever: a session of any release goes on in the next one as it would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome
from handmesh.session.v1.config_pb2 import Budgets
from handmesh.session.v1.event_pb2 import Event, TurnEndReason
from services.harness.turn import core
from services.session import codec
from services.session.emitters import EMITTERS, HARNESS
from services.session.verify import Seen, check
from tests.golden.record import SCENARIOS, decided

LOGS = sorted(Path(__file__).parent.glob("*/*.jsonl"))
ENOUGH = 50
OF_ANOTHER_TYPE = {
    "child_started",
    "child_ended",
    "child_rested",
    "hand_attached",
    "hand_transferred",
}
STOPS = {"end_turn", "stop_sequence", "tool_use", "pause_turn", "refusal"}
STOPS |= {"max_tokens", "model_context_window_exceeded"}
FAILURES = {
    "MODEL_RATE_LIMITED",
    "MODEL_OVERLOADED",
    "MODEL_UNAVAILABLE",
    "MODEL_STREAM_BROKEN",
    "MODEL_SILENT",
    "MODEL_REQUEST_REFUSED",
    "CONTEXT_FULL",
}


def read(log: Path) -> list[tuple[Event, dict[str, object]]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return [(ParseDict(line["event"], Event()), line["then"]) for line in lines]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_a_recorded_log_is_decided_as_it_was(log: Path) -> None:
    """At each position the action and what it is about are those that were recorded."""
    lines = read(log)
    events = [event for event, _ in lines]
    assert [decided(events[: position + 1]) for position in range(len(events))] == [then for _, then in lines]


def seen(event: Event) -> Seen:
    """An event as the session service would have stored it: the memory of a recording notes no emitters."""
    kind = event.WhichOneof("kind") or ""
    emitter = min(EMITTERS[kind], key=[HARNESS, *sorted(EMITTERS[kind])].index)
    epoch = event.position if event.HasField("harness_woke") else event.epoch
    emitter = "client" if kind == "custom" or not (epoch or kind) else emitter
    return Seen(event.position, codec.stored_fact(event, emitter), epoch, event.emit_time.ToNanoseconds())


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_a_recorded_log_is_one_that_can_be(log: Path) -> None:
    """The second opinion on logs finds nothing wrong with it, but for kinds of releases to come."""
    found = check([seen(event) for event, _ in read(log)])
    assert [it for it in found if "an unknown kind" not in it.message] == []


def test_every_scenario_is_recorded_and_every_action_decided_in_some() -> None:
    """A new scenario has to be recorded; a new action needs a scenario."""
    assert {log.stem for log in LOGS} >= set(SCENARIOS)
    assert len(LOGS) >= ENOUGH
    found = {name for log in LOGS for _, then in read(log) for name in then}
    assert found == {action.__name__ for action in core.ACTIONS}


def test_whatever_can_be_in_a_log_is_in_some() -> None:
    """Each kind that a harness or a client says, each way that an answer, a call or a turn ends, each failure that is
    tried again, each budget, more than one harness, and more than one hand."""
    events = [event for log in LOGS for event, _ in read(log)]
    kinds = {event.WhichOneof("kind") or "" for event in events}
    assert {kind for kind, who in EMITTERS.items() if who & {HARNESS, "client"}} - OF_ANOTHER_TYPE <= kinds
    assert {event.model_replied.stop_reason for event in events} > STOPS
    outcomes = {event.tool_finished.result.outcome for event in events if event.HasField("tool_finished")}
    assert outcomes == set(ToolOutcome.values()) - {ToolOutcome.TOOL_OUTCOME_UNSPECIFIED}
    ends = {event.turn_ended.reason for event in events if event.HasField("turn_ended")}
    assert ends == set(TurnEndReason.values()) - {TurnEndReason.TURN_END_REASON_UNSPECIFIED}
    assert {event.retry_scheduled.reason for event in events} > FAILURES
    assert {event.budget_reached.budget for event in events} > {field.name for field in Budgets.DESCRIPTOR.fields}

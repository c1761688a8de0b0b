"""What was recorded is decided again, for ever: a session of any release goes on in the next one as it would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import ParseDict

from handmesh.session.v1.event_pb2 import Event
from services.harness.loops.messages import core
from tests.golden.record import SCENARIOS, decided

LOGS = sorted(Path(__file__).parent.glob("*/*.jsonl"))


def read(log: Path) -> list[tuple[Event, dict[str, object]]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return [(ParseDict(line["event"], Event()), line["then"]) for line in lines]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_a_recorded_log_is_decided_as_it_was(log: Path) -> None:
    """At each position the action and what it is about are those that were recorded."""
    lines = read(log)
    events = [event for event, _ in lines]
    assert [decided(events[: position + 1]) for position in range(len(events))] == [then for _, then in lines]


def test_every_scenario_is_recorded_and_every_action_decided_in_some() -> None:
    """A new scenario has to be recorded; a new action needs a scenario."""
    assert {log.stem for log in LOGS} >= {scenario.__name__ for scenario in SCENARIOS}
    found = {name for log in LOGS for _, then in read(log) for name in then}
    assert found == {action.__name__ for action in core.ACTIONS}

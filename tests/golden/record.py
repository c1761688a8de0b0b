"""Records logs of this release, with what is decided at each position: `python -m tests.golden.record <release>`.

A log is a file of JSON lines: the first says which scenario it is, each other one is an event and the action that its
harness type decides on when it has read so far, at the event's time. What a release has recorded is never recorded
anew: later versions have to decide the same (`test_replay.py`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from handmesh.session.v1.event_pb2 import Event
from services.harness.adapters.codec import fact_of
from services.harness.turn import core
from services.harness.turn.state import fold_all
from tests.golden import answers, budgets, crashes, failures, first, places, summaries, waits
from tests.golden.recording import Scenario

SCENARIOS: dict[str, Scenario] = {
    **first.SCENARIOS,
    **answers.SCENARIOS,
    **failures.SCENARIOS,
    **waits.SCENARIOS,
    **budgets.SCENARIOS,
    **crashes.SCENARIOS,
    **places.SCENARIOS,
    **summaries.SCENARIOS,
}


def decided(events: Sequence[Event]) -> dict[str, Any]:
    """Says what is decided after these events, in words that outlive the code: the action, and what it is about."""
    action = core.decide(fold_all(map(fact_of, events)), events[-1].emit_time.ToNanoseconds() / 1e9)
    match action:
        case core.EndTurn(reason=reason, read=read):
            about: dict[str, Any] = {"reason": reason, "read": read}
        case core.FinishCall(call=call, result=result):
            about = {"call": call.id, "outcome": result.outcome}
        case core.AskConfirmation(call=call):
            about = {"call": call.id}
        case core.AskClient(call=call, due=due):
            about = {"call": call.id, "due": due}
        case core.LookUpTools(hands=hands, servers=servers):
            about = {"hands": list(hands), "servers": list(servers)}
        case core.RunCalls(calls=calls, provision=hands):
            runs = [
                {"call": run.call.id, "hand": run.hand, "sandbox_id": run.sandbox_id, "again": run.started is not None}
                for run in calls
            ]
            about = {"calls": runs, "provision": list(hands)}
        case core.Settle(calls=calls):
            about = {"calls": [call.call.id for call in calls]}
        case core.AskModel(read=read):
            about = {"read": read}
        case core.Pause(reached=reached):
            about = {"budget": reached.budget, "limit": reached.limit, "used": reached.used}
        case core.Rest(until=until):
            about = {"until": until}
    return {type(action).__name__: about}


def lines_of(name: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Makes a golden log."""
    lines: list[dict[str, Any]] = [{"scenario": name, "harness": "messages"}]
    for position, event in enumerate(events, 1):
        shown = MessageToDict(event, preserving_proto_field_name=True)
        lines.append({"event": shown, "then": decided(events[:position])})
    return lines


def main(release: str) -> None:
    """Records every scenario that the release has not recorded yet."""
    folder = Path(__file__).parent / release
    folder.mkdir(exist_ok=True)
    for name, scenario in SCENARIOS.items():
        file = folder / f"{name}.jsonl"
        if not file.exists():
            events = asyncio.run(scenario()).events
            file.write_text("".join(json.dumps(line) + "\n" for line in lines_of(name, events)))


if __name__ == "__main__":
    main(sys.argv[1])

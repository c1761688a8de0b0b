"""Draws docs/pictures/trace-*.svg from sessions that were recorded beside them; `--check` compares instead.

A recording is one JSON object: the log without what anybody wrote into it, and how the services answered.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict

from handmesh.cli import trace_drawing
from handmesh.diagnosis.evidence import Evidence, HarnessSeen, Hindrance, Probe, Process, RunSeen
from handmesh.diagnosis.verdict import diagnosed
from handmesh.session.v1.event_pb2 import Event

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
WIDTH = 110


def evidence_of(recorded: dict[str, Any]) -> Evidence:
    """Returns what was recorded, as it was found out."""
    harness = recorded["harness"]
    if harness is not None:
        run = harness["run"]
        if run is not None:
            run = RunSeen(**{**run, "hindrances": tuple(Hindrance(**each) for each in run["hindrances"])})
        harness = HarnessSeen(frozenset(harness["types"]), run)
    return Evidence(
        recorded["session_id"],
        recorded["now"],
        [ParseDict(each, Event()) for each in recorded["events"]],
        recorded["status"],
        "messages",
        {name: Probe(**each) for name, each in recorded["probes"].items()},
        {name: Process(each["instance"], each["began"]) for name, each in recorded["processes"].items()},
        harness,
        recorded["served"],
    )


def picture(recording: Path) -> str:
    """Returns a recording's picture."""
    evidence = evidence_of(json.loads(recording.read_text()))
    shown = trace_drawing.drawing(diagnosed(evidence), WIDTH, zone=UTC)
    return trace_drawing.svg_of(trace_drawing.recorded(shown, WIDTH), f"handmesh trace {evidence.session_id}")


def main() -> int:
    """Draws them, or tells whether they are as the recordings say."""
    recordings = sorted(PICTURES.glob("trace-*.json"))
    if "--check" in sys.argv:
        stale = [it.stem for it in recordings if it.with_suffix(".svg").read_text() != picture(it)]
        for name in stale:
            sys.stderr.write(f"docs/pictures/{name}.svg is not what is drawn now: run `make proto`\n")
        return 1 if stale else 0
    for recording in recordings:
        recording.with_suffix(".svg").write_text(picture(recording))
    return 0


if __name__ == "__main__":
    sys.exit(main())

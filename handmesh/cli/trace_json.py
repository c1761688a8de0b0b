"""A diagnosis as JSON, for programs. Pure. docs/trace.md tells the fields."""

from __future__ import annotations

from typing import Any

from handmesh.diagnosis.evidence import Finding
from handmesh.diagnosis.timeline import Mark, Span, Turn
from handmesh.diagnosis.verdict import Diagnosis


def as_json(seen: Diagnosis) -> dict[str, Any]:
    """Returns one object. Times are Unix time, in seconds."""
    evidence = seen.evidence
    return {
        "session_id": evidence.session_id,
        "time": round(evidence.now, 3),
        "status": evidence.status.lower(),
        "last_position": evidence.events[-1].position if evidence.events else 0,
        "verdict": _finding(seen.verdict),
        "others": [_finding(each) for each in seen.others],
        "services": {
            name: {"answers": probe.answered, "reason": probe.reason} for name, probe in evidence.probes.items()
        },
        "turns": [_turn(each, evidence.now) for each in seen.turns],
    }


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "part": found.part,
        "state": found.state,
        "code": found.code,
        "what": found.what,
        "seen": list(found.seen),
        "next": list(found.todo),
        "position": found.position,
        "time": round(found.time, 3),
        "reason": found.reason,
    }


def _turn(turn: Turn, now: float) -> dict[str, Any]:
    return {
        "number": turn.number,
        "first_position": turn.first,
        "last_position": turn.last,
        "begin": round(turn.begin, 3),
        "end": round(turn.end(now), 3) if turn.ended else None,
        "ended": turn.ended,
        "spans": [_span(each) for each in turn.spans],
        "marks": [_mark(each) for each in turn.marks],
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "kind": span.kind,
        "label": span.label,
        "position": span.position,
        "begin": round(span.begin, 3),
        "first": None if span.first is None else round(span.first, 3),
        "end": None if span.end is None else round(span.end, 3),
        "outcome": span.outcome,
        "fault": span.fault,
    }


def _mark(mark: Mark) -> dict[str, Any]:
    return {
        "kind": mark.kind,
        "label": mark.label,
        "position": mark.position,
        "time": round(mark.time, 3),
        "fault": mark.fault,
    }

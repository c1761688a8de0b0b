"""Which part failed: one word on one session, from all that is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from handmesh.diagnosis.evidence import Evidence, Finding
from handmesh.diagnosis.findings import findings_of
from handmesh.diagnosis.names import names_of
from handmesh.diagnosis.standing import ASKING, standing_of
from handmesh.diagnosis.timeline import APPROVAL, CLIENT, Turn, turns_of

NONE = Finding("", "none", "no-fault", "No fault")
_WAITING = {
    "PAUSED": "It is paused at a budget, and goes on when that is raised: no fault",
    "ENDED": "The session has ended: no fault",
    "IDLE": "It waits for a message: no fault",
    "RETRYING": "It waits to go on: no fault",
}


@dataclass(frozen=True)
class Diagnosis:
    """What became of a session. `verdict` is the one finding that counts; `others` are faults beside it, oldest first.

    The verdict's part is empty when nothing has failed.
    """

    evidence: Evidence
    turns: Sequence[Turn]
    verdict: Finding
    others: Sequence[Finding] = ()


def diagnosed(evidence: Evidence, turn: int = 0, plain: bool = False) -> Diagnosis:
    """Says what became of a session, or of one of its turns; `plain` shows the names of hands, servers and tools.

    What is in the way now counts first, then what ended the last turn, then the last of what it overcame.
    """
    turns = turns_of(evidence.events, names_of(evidence.events, plain))
    chosen = turns[turn - 1] if turn else turns[-1] if turns else None
    found = findings_of(chosen, evidence) if chosen is not None else []
    others = [each for it in turns if it is not chosen for each in findings_of(it, evidence)] if not turn else []
    now = standing_of(evidence) if not turn or chosen is turns[-1] else None
    verdict = now or _worst(found) or waiting_of(evidence)
    if verdict.part == "" and evidence.status == "RETRYING" and found:
        verdict = replace(found[-1], state="standing")
    elif evidence.status == "RETRYING" and now is None and verdict.state == "overcome":
        verdict = replace(verdict, state="standing")
    rest = [each for each in (*others, *found) if not _same(each, verdict)]
    shown = [turns[turn - 1]] if turn else turns
    return Diagnosis(evidence, shown, verdict, sorted(rest, key=lambda it: it.position))


def _same(one: Finding, other: Finding) -> bool:
    return (one.part, one.code, one.position) == (other.part, other.code, other.position)


def _worst(found: Sequence[Finding]) -> Finding | None:
    standing = [it for it in found if it.state == "standing"]
    return standing[-1] if standing else max(found, key=lambda it: it.position, default=None)


def waiting_of(evidence: Evidence) -> Finding:
    """Says what a session does that nothing is wrong with."""
    if evidence.status == "WAITING":
        return replace(NONE, state="waiting", code="waiting", what=_waits_for(evidence))
    if evidence.status in _WAITING:
        code = "waiting" if evidence.status != "ENDED" else "no-fault"
        return replace(NONE, state="waiting", code=code, what=_WAITING[evidence.status])
    run = evidence.harness.run if evidence.harness is not None else None
    if run is not None:
        since = f"for {max(0.0, evidence.now - run.step_time):.1f} s (epoch {run.epoch})"
        doing = "asks the model" if run.step == ASKING else "is at work"
        return replace(NONE, code="working", what=f"No fault: a harness {doing}, {since}")
    if evidence.status == "RUNNING":
        return replace(NONE, code="working", what="No fault: it is at work, or about to be taken up")
    return NONE


def _waits_for(evidence: Evidence) -> str:
    turns = turns_of(evidence.events, names_of(evidence.events))
    kinds = {span.kind for span in turns[-1].spans if span.end is None} if turns else set()
    if CLIENT in kinds and APPROVAL not in kinds:
        return "It waits for a client's tool: no fault"
    if APPROVAL in kinds and CLIENT not in kinds:
        return "It waits for a person to decide about a tool call: no fault"
    return "It waits for a person or a client: no fault"

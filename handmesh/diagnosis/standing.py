"""What holds a session up at this moment. Pure: what services answer, and how far the log is."""

from __future__ import annotations

from handmesh.diagnosis.blame import YOUNG_SECONDS, Silence, blamed
from handmesh.diagnosis.evidence import (
    HARNESS,
    MODEL,
    NETWORK,
    PART_OF,
    SERVICES,
    SESSION,
    Evidence,
    Finding,
    Hindrance,
    RunSeen,
)
from handmesh.diagnosis.names import reason_of, type_of
from handmesh.diagnosis.timeline import at
from handmesh.diagnosis.wording import REASONS, SERVICE_WORDS, Wording

NEEDS_A_HARNESS = frozenset({"RUNNING", "RETRYING"})
ASKING = "model"  # the step in which a harness asks the model
TAKEN_SECONDS = 10.0  # within which a harness takes up what is offered to it
SILENT_SECONDS = 20.0  # that a model may think before it is called silent
_SILENCES = {
    "SESSION_UNAVAILABLE": "session",
    "SANDBOX_UNAVAILABLE": "sandbox",
    "VAULT_PROXY_UNAVAILABLE": "vault_proxy",
}


def standing_of(evidence: Evidence) -> Finding | None:
    """Returns what is in the way now, or None when nothing is."""
    if evidence.probes and not any(probe.answered for probe in evidence.probes.values()):
        return _nobody(evidence)
    if not evidence.answers("session"):
        return _no_session(evidence)
    if (reason := evidence.probes["session"].reason if "session" in evidence.probes else "") in REASONS:
        seen = (f"the session service answers {reason}",)
        return _worded(REASONS[reason], seen, evidence.now, reason)
    if evidence.status == "DAMAGED":
        seen = ("its status is damaged: readable, never writable",)
        return _worded(REASONS["SESSION_DAMAGED"], seen, evidence.now, "SESSION_DAMAGED")
    if evidence.status in NEEDS_A_HARNESS:
        return _of_work(evidence)
    return None


def _worded(word: Wording, seen: tuple[str, ...], time: float, reason: str) -> Finding:
    return Finding(word.part, "standing", word.code, word.what, seen, word.todo, 0, time, reason)


def _nobody(evidence: Evidence) -> Finding:
    reasons = sorted({probe.reason for probe in evidence.probes.values()})
    return Finding(
        NETWORK,
        "standing",
        "network-to-you",
        "None of the four services answers you: the way to the mesh is cut, or the mesh is not up",
        (f"all of {', '.join(SERVICES)}: {', '.join(reasons)}",),
        ("On its machine: handmesh doctor. From elsewhere: is the address right, is the way open?",),
        time=evidence.now,
    )


def _no_session(evidence: Evidence) -> Finding:
    """The session service does not answer whoever asks. Whether it answers a harness tells service from network."""
    probe, harness = evidence.probes["session"], evidence.harness
    told_so = any(each.reason == "SESSION_UNAVAILABLE" for each in evidence.probes.values())
    if harness is not None and not probe.silent and not told_so and not _of("session", harness.hindrances):
        return Finding(
            NETWORK,
            "standing",
            "network-to-you",
            "The session service does not answer you, and does answer the harness",
            (f"you: {probe.reason}", "the harness has its stream of offers open"),
            ("Look at the way between you and the session service",),
            time=evidence.now,
            reason=probe.reason,
        )
    seen = [f"it does not answer you ({probe.reason})"]
    if harness is not None and (told := _of("session", harness.hindrances)):
        seen.append(f"it does not answer the harness either, for {evidence.now - told.since:.1f} s")
    seen += [
        f"the {SERVICE_WORDS[name]} says that it gets no answer from it either"
        for name, each in evidence.probes.items()
        if each.reason == "SESSION_UNAVAILABLE"
    ]
    how = "stands still or is cut off" if probe.silent else "is not there"
    return Finding(
        SESSION,
        "standing",
        "session-stalled" if probe.silent else "session-away",
        f"The session service {how}",
        seen,
        ("Start it again: nothing that it had acknowledged is lost. Its log says why it ended",),
        time=evidence.now,
        reason=probe.reason,
    )


def _of(service: str, hindrances: object) -> Hindrance | None:
    assert isinstance(hindrances, tuple | list)
    return next((it for it in hindrances if it.service == service), None)


# --- a session that needs a harness ---
def _of_work(evidence: Evidence) -> Finding | None:
    harness = evidence.harness
    if harness is None:
        return _told(evidence) if evidence.answers("harness") else _no_harness(evidence)
    if harness.run is not None:
        return _of_run(harness.run, evidence)
    if (away := _of("session", harness.hindrances)) is not None:
        silence = Silence("harness", "session", away.since, evidence.now, away.reason)
        return blamed(silence, evidence, "standing")
    return _nobody_claims(evidence)


def _told(evidence: Evidence) -> Finding | None:
    """The harness cannot say who asks, for it does not reach the session service, or it may not tell."""
    if evidence.probes["harness"].reason != "SESSION_UNAVAILABLE":
        return None
    silence = Silence("harness", "session", evidence.now - YOUNG_SECONDS, evidence.now, "SESSION_UNAVAILABLE")
    return blamed(silence, evidence, "standing")


def _of_run(run: RunSeen, evidence: Evidence) -> Finding | None:
    for it in run.hindrances:
        return _hindered(it, evidence)
    if run.step == ASKING:
        since = max(run.step_time, run.heard or 0.0)
        if evidence.now - since > SILENT_SECONDS:
            what = "The model was asked, and says nothing"
            seen = (f"the harness waits for {evidence.now - since:.0f} s (epoch {run.epoch})",)
            todo = ("It is asked again by itself when it stays silent",)
            return Finding(MODEL, "standing", "model-silent", what, seen, todo, run.epoch, evidence.now, "MODEL_SILENT")
    return None


def _hindered(it: Hindrance, evidence: Evidence) -> Finding:
    """A service that a run calls again and again."""
    reason = reason_of(it.reason)
    if not it.answered:
        return blamed(Silence("harness", it.service, it.since, evidence.now, reason), evidence, "standing")
    if reason in _SILENCES and _SILENCES[reason] != it.service:  # it speaks of a third one
        return blamed(Silence(it.service, _SILENCES[reason], it.since, evidence.now, reason), evidence, "standing")
    part = PART_OF[it.service]
    word = REASONS.get(reason) or Wording(part, f"{part}-failed", f"The {SERVICE_WORDS[it.service]} cannot do its work")
    seen = (f"it tells the harness so for {evidence.now - it.since:.1f} s: {reason or 'an unknown reason'}",)
    return _worded(word, seen, evidence.now, reason)


def _no_harness(evidence: Evidence) -> Finding | None:
    """The harness that was asked does not answer. Another one may be at work."""
    probe = evidence.probes.get("harness")
    quiet = evidence.now - _last_word(evidence)
    served = evidence.served or {}
    if probe is None or (evidence.harness_type in served and not probe.silent and quiet < TAKEN_SECONDS):
        return None
    kind = type_of(evidence.harness_type, served)
    claims = "nobody" if evidence.harness_type not in served else "another, or one that is not heard of yet,"
    seen = (
        f"it does not answer you ({probe.reason})",
        f"{claims} takes sessions of the type {kind}; the log is still for {quiet:.1f} s",
    )
    what = "The harness stands still" if probe.silent else "The harness is gone, and nobody has the session"
    todo = ("Start a harness: it takes the session up where the log ends",)
    code = "harness-stalled" if probe.silent else "harness-away"
    return Finding(HARNESS, "standing", code, what, seen, todo, time=evidence.now, reason=probe.reason)


def _nobody_claims(evidence: Evidence) -> Finding | None:
    """A harness answers, and is not at work on the session."""
    harness, served, quiet = evidence.harness, evidence.served, evidence.now - _last_word(evidence)
    assert harness is not None
    wanted, kind = evidence.harness_type, type_of(evidence.harness_type, served or ())
    if served is not None and wanted not in served:
        process = evidence.processes.get("harness")
        young = process is not None and evidence.now - process.began < YOUNG_SECONDS
        if wanted in harness.types and not harness.draining and not young:
            silence = Silence("harness", "session", _last_word(evidence), evidence.now, "SESSION_UNAVAILABLE")
            return blamed(silence, evidence, "standing")
        seen = (f"no harness takes sessions of the type {kind}",)
        what = "No harness is there for the session"
        todo = ("Start a harness of the type, or move the session: handmesh move",)
        if young:
            return None
        return Finding(HARNESS, "standing", "harness-none", what, seen, todo, time=evidence.now)
    if quiet < TAKEN_SECONDS:
        return None
    if served is not None and served.get(wanted, 0) <= 0:
        what, code = "Every harness has as many sessions as it takes", "harness-full"
        full = (f"there is no room for another session of the type {kind}", f"it waits for {quiet:.0f} s")
        todo = ("Start another harness, or raise HANDMESH_CAPACITY",)
        return Finding(HARNESS, "standing", code, what, full, todo, time=evidence.now)
    what = "A harness has room, and does not take the session up"
    seen = (f"the log is still for {quiet:.0f} s",)
    todo = ("handmesh wake SESSION offers it again",)
    return Finding(HARNESS, "standing", "harness-idle", what, seen, todo, time=evidence.now)


def _last_word(evidence: Evidence) -> float:
    return at(evidence.events[-1].emit_time) if evidence.events else evidence.now

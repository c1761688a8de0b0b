"""What in a turn's events speaks of a fault. Pure: the events alone, and what services say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from handmesh.diagnosis.blame import Silence, blamed
from handmesh.diagnosis.evidence import HAND, HARNESS, MODEL, NETWORK, PROXY, SESSION, Evidence, Finding
from handmesh.diagnosis.names import instance_of, reason_of
from handmesh.diagnosis.timeline import Turn, at, lasting, named
from handmesh.diagnosis.wording import AGAIN, NO_FAULT, OUTCOMES, REASONS, Wording
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2
from handmesh.session.v1.event_pb2 import Event

_PARTS = {"vault_proxy": PROXY, "session": SESSION, "harness": HARNESS, "hand": HAND, "model": MODEL}
_SILENT = {"SESSION_UNAVAILABLE": "session", "SANDBOX_UNAVAILABLE": "sandbox", "VAULT_PROXY_UNAVAILABLE": "vault_proxy"}
_CALLER = {"hand": "sandbox", "vault_proxy": "vault_proxy"}  # who gave an answer that speaks of a third service


PROMPT_SECONDS = 1.0  # within which a harness takes up what nobody has


def findings_of(turn: Turn, evidence: Evidence) -> list[Finding]:
    """Returns the faults that a turn's events tell of, in order. All are `overcome` but what ended the turn."""
    found: list[Finding] = []
    before = (it.harness_woke for it in reversed(evidence.events) if it.position < turn.first)
    owner = next((it for it in before if it.instance), event_pb2.HarnessWoke())
    for event in turn.events:
        found += _of_event(event, evidence)
        if event.HasField("harness_woke"):
            found += _taken_over(event, owner, turn)
            owner = event.harness_woke
    if turn.ended == "failed":
        found = _ended_by(turn, found)
    return _without_echoes(found)


def _ended_by(turn: Turn, found: list[Finding]) -> list[Finding]:
    """Marks what ended the turn: the error right before its end."""
    end = next(event for event in turn.events if event.HasField("turn_ended"))
    for number in range(len(found) - 1, -1, -1):
        if found[number].position < end.position:
            last = found[number]
            todo = last.todo if AGAIN in last.todo else (*_mended(last.todo), AGAIN)
            seen = (*last.seen, f"the turn ended for it at position {end.position}")
            return [*found[:number], *found[number + 1 :], replace(last, state="standing", seen=seen, todo=todo)]
    what = "The turn failed, and the log does not say why"
    seen = (f"position {end.position}: the turn ended as failed",)
    where = (end.position, at(end.emit_time))
    return [*found, Finding(HARNESS, "standing", "harness-unsaid", what, seen, (AGAIN,), *where)]


def _mended(todo: Sequence[str]) -> list[str]:
    return [each for each in todo if each != "It is asked again by itself"]


def _of_event(event: Event, evidence: Evidence) -> Iterator[Finding]:
    match event.WhichOneof("kind"):
        case "error_raised":
            yield from _of_error(event, event.error_raised, evidence)
        case "retry_scheduled":
            yield from _of_retry(event, event.retry_scheduled)
        case "tool_finished":
            outcome = named(tool_pb2.ToolOutcome, event.tool_finished.result.outcome, "TOOL_OUTCOME_")
            if outcome in OUTCOMES:
                yield _said(OUTCOMES[outcome], event, outcome, f"a tool call ended as {outcome.replace('_', ' ')}")
        case "credential_used" if event.credential_used.result not in ("ok", "refreshed"):
            reason = reason_of(event.credential_used.result)
            if reason in REASONS:
                yield _said(REASONS[reason], event, reason, f"a credential could not be used: {reason}")
    if event.HasField("delay"):
        yield from _of_delay(event, evidence)


def _of_delay(event: Event, evidence: Evidence) -> Iterator[Finding]:
    reason, end = reason_of(event.delay.reason), at(event.emit_time)
    begin = end - lasting(event.delay.duration)
    if reason == "SESSION_UNAVAILABLE":
        yield blamed(Silence("harness", "session", begin, end, reason, event.position), evidence, "overcome")
    elif reason in REASONS:
        yield _said(REASONS[reason], event, reason, f"an event waited {end - begin:.1f} s for the log: {reason}")


def _of_error(event: Event, it: event_pb2.ErrorRaised, evidence: Evidence) -> Iterator[Finding]:
    reason, end = reason_of(it.reason), at(event.emit_time)
    begin = at(it.since_time) if it.HasField("since_time") else end
    if reason in NO_FAULT:
        return
    if reason in _SILENT:
        service = _SILENT[reason]
        caller = "harness" if it.silent_service or it.part == "session" else _CALLER.get(it.part, "harness")
        yield blamed(Silence(caller, service, begin, end, reason, event.position), evidence, "overcome")
        return
    if _is_unreachable(it):
        yield _unreachable(event, reason)
        return
    part = _PARTS.get(it.part, HARNESS)
    word = REASONS.get(reason) or Wording(part, f"{part}-failed", "Something failed", (AGAIN,))
    if reason == "FULL" and part == PROXY:
        word = Wording(PROXY, "proxy-full", "The vault proxy has too much to do")
    yield _said(word, event, reason, f"{reason or 'an unknown reason'}{_answered(it)}")


def _of_retry(event: Event, it: event_pb2.RetryScheduled) -> Iterator[Finding]:
    reason = reason_of(it.reason)
    if _is_unreachable(it):
        yield _unreachable(event, reason)
        return
    word = REASONS.get(reason) or Wording(MODEL, "model-failed", "A call of the model failed")
    seen = f"{reason or 'an unknown reason'}{_answered(it)}, try {it.attempt}"
    yield _said(word, event, reason, seen)


def _is_unreachable(it: event_pb2.ErrorRaised | event_pb2.RetryScheduled) -> bool:
    return it.HasField("http_status") and it.http_status == 0


def _answered(it: event_pb2.ErrorRaised | event_pb2.RetryScheduled) -> str:
    return f", HTTP status {it.http_status}" if it.HasField("http_status") else ""


def _unreachable(event: Event, reason: str) -> Finding:
    word = Wording(
        NETWORK,
        "network-model",
        "The harness cannot open a connection to the model's API",
        ("Look at the way from the harness to the model's API: names, routes, proxies. Or nobody listens there",),
    )
    return _said(word, event, reason, f"{reason}, and no HTTP status: nothing was answered")


def _said(word: Wording, event: Event, reason: str, seen: str) -> Finding:
    where = (event.position, at(event.emit_time))
    evidence = (f"position {event.position}: {seen}",)
    return Finding(word.part, "overcome", word.code, word.what, evidence, word.todo, *where, reason)


def _taken_over(event: Event, before: event_pb2.HarnessWoke, turn: Turn) -> Iterator[Finding]:
    """A harness that took the session from another one in the middle of a turn."""
    it, owner = event.harness_woke, before.instance
    earlier = [each for each in turn.events if each.position < event.position]
    if not owner or it.cause == event_pb2.TAKEOVER_CAUSE_RETURNED or it.harness != before.harness:
        return
    if any(each.HasField("turn_ended") for each in earlier):
        return
    where = (event.position, at(event.emit_time))
    waited = where[1] - at(earlier[-1].emit_time) if earlier else 0.0
    begun = any(each.epoch for each in earlier)
    if not begun and not (it.cause == event_pb2.TAKEOVER_CAUSE_LOST and waited > PROMPT_SECONDS):
        return  # the one before had this turn never
    cause = named(event_pb2.TakeoverCause, it.cause, "TAKEOVER_CAUSE_").lower()
    seen = [f"position {event.position}: {instance_of(it.instance)} took over with epoch {event.position}"]
    seen.append(f"nothing was written for {waited:.1f} s before; why {instance_of(owner)} left: {cause}")
    if owner == it.instance:
        todo = ("Look at the network between the harness and the session service",)
        what = "The harness and the session service had lost each other, and the same harness came back"
        yield Finding(NETWORK, "overcome", "network-between", what, seen, todo, *where)
        return
    todo = (f"Look at the log of harness {instance_of(owner)}: did it die, was it stopped?",)
    what = "A harness was lost in the middle of a turn, and another one took over"
    yield Finding(HARNESS, "overcome", "harness-lost", what, seen, todo, *where)


def _without_echoes(found: Sequence[Finding]) -> list[Finding]:
    """Drops what only repeats: of a part and code the last one stays, with how often it was seen."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for each in found:
        key = (each.part, each.code, each.state)
        again = kept.pop(key, None)
        kept[key] = each if again is None else replace(each, seen=(*each.seen, f"first at position {again.position}"))
    return list(kept.values())

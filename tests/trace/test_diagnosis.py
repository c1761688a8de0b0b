"""The rules by which a part is named, one at a time: no mesh, only values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from handmesh.cli import exits
from handmesh.cli.trace_drawing import drawing, recorded
from handmesh.cli.trace_json import as_json
from handmesh.diagnosis.evidence import PARTS, Evidence, HarnessSeen, Hindrance, Probe, Process, RunSeen
from handmesh.diagnosis.names import names_of
from handmesh.diagnosis.timeline import MODEL, RETRY, at, turns_of
from handmesh.diagnosis.verdict import diagnosed
from handmesh.diagnosis.wording import REASONS
from handmesh.error.v1.error_reason_pb2 import ErrorReason
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2 as ev
from tests.trace.story import BEGIN, PROCESSES, WELL, Story

LOGS = sorted((Path(__file__).parents[1] / "golden").glob("*/*.jsonl"))
GONE = Probe(False, "UNAVAILABLE")
SILENT = Probe(False, "DEADLINE_EXCEEDED", silent=True)


def named(evidence: Evidence) -> tuple[str, str, str]:
    """Returns part, code and state of what is said."""
    found = diagnosed(evidence).verdict
    return found.part, found.code, found.state


def lost(silent_service: str = "sandbox", **more: Any) -> Story:
    """A call whose hand did not answer for two seconds, in a turn that went on."""
    reason = {"sandbox": "SANDBOX_UNAVAILABLE", "session": "SESSION_UNAVAILABLE"}[silent_service]
    error = ev.ErrorRaised(reason=reason, part="hand", silent_service=silent_service, retryable=True, **more)
    story = Story().begun().replied()
    error.since_time.FromNanoseconds(int(story.now * 1e9))
    return story.then(2.0, epoch=3, error_raised=error).replied().ended()


def test_a_service_that_served_all_the_while_was_cut_off() -> None:
    """It began before the trouble and never stood still: the way to it failed."""
    assert named(lost().evidence()) == ("network", "network-between", "overcome")


def test_a_service_that_began_since_was_away() -> None:
    """Its process is younger than the trouble."""
    young = {**PROCESSES, "sandbox": Process("x", BEGIN + 2.5)}
    assert named(lost().evidence(processes=young)) == ("hand", "hand-away", "overcome")


def test_a_service_that_stood_still_says_so() -> None:
    """A stall of its process covers the trouble."""
    stood = {**PROCESSES, "sandbox": Process("x", BEGIN - 60, ((BEGIN + 1, BEGIN + 4),))}
    assert named(lost().evidence(processes=stood)) == ("hand", "hand-stalled", "overcome")
    before = {**PROCESSES, "sandbox": Process("x", BEGIN - 60, ((BEGIN - 50, BEGIN - 40),))}
    assert named(lost().evidence(processes=before))[0] == "network"


def test_a_service_that_says_nothing_of_itself_is_named_with_a_doubt() -> None:
    """Without the process's own word the network cannot be told from the service, and the evidence says so."""
    found = diagnosed(lost().evidence(processes={})).verdict
    assert (found.part, found.code) == ("hand", "hand-away")
    assert any("not known" in each for each in found.seen)


def test_what_the_sandbox_service_did_not_reach_is_not_the_hand() -> None:
    """It answered, and spoke of the session service: that is named, or the way between those two."""
    error = ev.ErrorRaised(reason="SESSION_UNAVAILABLE", part="hand", retryable=True)
    story = Story().begun().then(epoch=3, error_raised=error).replied().ended()
    found = diagnosed(story.evidence()).verdict
    assert (found.part, found.code) == ("network", "network-between")
    assert "from the sandbox service to the session service" in found.what


@pytest.mark.parametrize(
    ("cause", "instance", "named_as"),
    [
        (ev.TAKEOVER_CAUSE_LOST, "two:2", ("harness", "harness-lost", "overcome")),
        (ev.TAKEOVER_CAUSE_IDLE, "two:2", ("harness", "harness-lost", "overcome")),
        (ev.TAKEOVER_CAUSE_UNSPECIFIED, "two:2", ("harness", "harness-lost", "overcome")),
        (ev.TAKEOVER_CAUSE_LOST, "one:1", ("network", "network-between", "overcome")),
        (ev.TAKEOVER_CAUSE_RETURNED, "two:2", ("", "waiting", "waiting")),
    ],
)
def test_a_takeover_in_a_turn_is_a_fault_unless_the_session_was_given_back(
    cause: ev.TakeoverCause.ValueType, instance: str, named_as: tuple[str, str, str]
) -> None:
    """A harness that was lost is one; the same one coming back is the network's; a drain is none."""
    story = Story().begun().replied().woke(instance, cause, after=2.0).replied().ended()
    assert named(story.evidence()) == named_as


def test_the_next_turns_harness_is_no_takeover() -> None:
    """A harness that died between two turns has cost nothing."""
    story = Story().begun().replied().ended()
    story.then(60.0, message_received=ev.MessageReceived()).woke("two:2", ev.TAKEOVER_CAUSE_LOST).replied().ended()
    assert named(story.evidence()) == ("", "waiting", "waiting")


def test_a_harness_that_dies_before_it_wrote_is_noticed() -> None:
    """A kept session's harness dies while it asks the model: the message waited for another one."""
    story = Story().begun().replied().ended().then(message_received=ev.MessageReceived())
    story.woke("two:2", ev.TAKEOVER_CAUSE_LOST, after=5.0).replied().ended()
    assert named(story.evidence()) == ("harness", "harness-lost", "overcome")


def test_an_append_that_had_to_wait_names_the_log() -> None:
    """The store was away; or the session service did not answer, and then its own word tells which."""
    store = ev.EmitDelay(reason="LOG_UNAVAILABLE")
    store.duration.FromMilliseconds(4_000)
    story = Story().begun().then(5.0, epoch=3, delay=store, model_replied=ev.ModelReplied()).ended()
    assert named(story.evidence()) == ("session", "session-store", "overcome")
    service = ev.EmitDelay(reason="SESSION_UNAVAILABLE")
    service.duration.FromMilliseconds(4_000)
    story = Story().begun().then(5.0, epoch=3, delay=service, model_replied=ev.ModelReplied()).ended()
    assert named(story.evidence()) == ("network", "network-between", "overcome")
    young = {**PROCESSES, "session": Process("x", story.now - 1)}
    assert named(story.evidence(processes=young)) == ("session", "session-away", "overcome")


@pytest.mark.parametrize(("status", "part"), [(529, "model"), (0, "network"), (None, "model")])
def test_no_http_answer_is_the_networks_and_any_answer_the_models(status: int | None, part: str) -> None:
    """A log that does not tell, an old one, names the model."""
    retry = ev.RetryScheduled(reason="MODEL_UNAVAILABLE", attempt=1, http_status=status)
    story = Story().begun().then(epoch=3, retry_scheduled=retry)
    assert named(story.evidence("RETRYING"))[::2] == (part, "standing")
    assert named(story.replied().ended().evidence())[::2] == (part, "overcome")


def test_what_ended_the_turn_counts_before_what_came_to_nothing() -> None:
    """A lost call is told of beside the key that the model's API refused, with which the turn ended."""
    key = ev.ErrorRaised(reason="MODEL_KEY_REFUSED", part="model", http_status=401)
    story = lost()
    story.events.pop()
    story.then(epoch=3, error_raised=key).ended(ev.TURN_END_REASON_FAILED)
    seen = diagnosed(story.evidence())
    assert (seen.verdict.code, seen.verdict.state) == ("model-key", "standing")
    assert [each.code for each in seen.others] == ["network-between"]


@pytest.mark.parametrize("reason", ["SERVER_DENIED", "SERVER_ADDRESS_DENIED", "TOOL_SCHEMA_INVALID", "HOST_DENIED"])
def test_a_rules_no_is_no_fault(reason: str) -> None:
    """What a policy refuses, or what was left out, has not failed."""
    error = ev.ErrorRaised(reason=reason, part="vault_proxy")
    assert named(Story().begun().then(epoch=3, error_raised=error).replied().ended().evidence())[0] == ""


@pytest.mark.parametrize(
    ("outcome", "part"),
    [
        *[(outcome, "") for outcome in ("OK", "TOOL_ERROR", "DENIED", "INTERRUPTED")],
        *[(outcome, "hand") for outcome in ("GONE", "TIMEOUT", "OUT_OF_MEMORY")],
    ],
)
def test_a_tools_own_failure_is_no_fault_and_its_hands_is(outcome: str, part: str) -> None:
    """An exit code is the tool's; a killed, stopped or starved one is the hand's."""
    value = tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{outcome}")
    started = ev.ToolStarted(tool_use_id="t", name="bash", hand="main", sandbox_id="sbx_1")
    finished = ev.ToolFinished(tool_use_id="t", result=tool_pb2.ToolResult(outcome=value))
    story = Story().begun().replied().then(epoch=3, tool_started=started).then(2.0, epoch=3, tool_finished=finished)
    assert named(story.replied().ended().evidence())[0] == part


RUN = RunSeen(3, "t", BEGIN)


@pytest.mark.parametrize(
    ("hindrance", "probes", "named_as"),
    [
        (("sandbox", "SANDBOX_UNAVAILABLE", False), {}, ("network", "network-between")),
        (("sandbox", "SANDBOX_UNAVAILABLE", False), {"sandbox": GONE}, ("hand", "hand-away")),
        (("sandbox", "BACKEND_UNAVAILABLE", True), {}, ("hand", "hand-backend")),
        (("sandbox", "SESSION_UNAVAILABLE", True), {}, ("network", "network-between")),
        (("vault_proxy", "VAULT_PROXY_UNAVAILABLE", False), {"vault_proxy": SILENT}, ("proxy", "proxy-away")),
        (("session", "LOG_UNAVAILABLE", True), {}, ("session", "session-store")),
    ],
)
def test_what_a_run_waits_for_is_named(
    hindrance: tuple[str, str, bool], probes: dict[str, Probe], named_as: tuple[str, str]
) -> None:
    """By what it was told, by who told it, and by whether you reach it."""
    service, reason, answered = hindrance
    run = replace(RUN, hindrances=[Hindrance(service, reason, BEGIN + 1, answered)])
    harness = HarnessSeen(frozenset({"messages"}), run)
    evidence = Story().begun().replied().evidence("RUNNING", harness=harness, probes={**WELL, **probes})
    assert named(evidence) == (*named_as, "standing")


@pytest.mark.parametrize(
    ("more", "named_as"),
    [
        ({"probes": dict.fromkeys(WELL, GONE)}, ("network", "network-to-you")),
        ({"probes": {**WELL, "session": GONE}, "status": ""}, ("network", "network-to-you")),
        (
            {"probes": {**WELL, "session": GONE, "harness": Probe(True, "SESSION_UNAVAILABLE")}, "harness": None},
            ("session", "session-away"),
        ),
        ({"probes": {**WELL, "session": SILENT}}, ("session", "session-stalled")),
        ({"probes": {**WELL, "session": Probe(True, "LOG_UNAVAILABLE")}}, ("session", "session-store")),
        ({"status": "DAMAGED"}, ("session", "session-damaged")),
        (
            {"probes": {**WELL, "harness": GONE}, "harness": None, "served": {}},
            ("harness", "harness-away"),
        ),
        ({"probes": {**WELL, "harness": SILENT}, "harness": None}, ("harness", "harness-stalled")),
        ({"served": {}, "harness": HarnessSeen(frozenset({"echo"}))}, ("harness", "harness-none")),
        ({"served": {}}, ("network", "network-between")),
        (
            {"probes": {**WELL, "harness": Probe(True, "SESSION_UNAVAILABLE")}, "harness": None},
            ("network", "network-between"),
        ),
        ({"harness": HarnessSeen(frozenset({"messages"}), replace(RUN, step="model"))}, ("model", "model-silent")),
    ],
)
def test_what_is_in_the_way_now(more: dict[str, Any], named_as: tuple[str, str]) -> None:
    """Each by the answers of four services, for a session that needs a harness."""
    story = Story().begun()
    story.now += 30.0 if named_as[1] == "model-silent" else 0.0
    said = {"status": "RUNNING", **more}
    assert named(story.evidence(**said)) == (*named_as, "standing")


def test_a_session_that_nobody_takes_up() -> None:
    """Full harnesses are told from idle ones, and a moment's wait from both."""
    story = Story().begun()
    assert named(story.evidence("RUNNING"))[0] == ""
    story.now += 30
    assert named(story.evidence("RUNNING", served={"messages": 0}))[1] == "harness-full"
    assert named(story.evidence("RUNNING"))[1] == "harness-idle"


def test_a_harness_that_has_just_begun_is_not_blamed() -> None:
    """In its first seconds the session service may not have heard of it."""
    story = Story().begun()
    young = {**PROCESSES, "harness": Process("x", story.now - 1)}
    assert named(story.evidence("RUNNING", served={}, processes=young))[0] == ""


def test_clocks_that_differ_change_no_bar() -> None:
    """How long the model took is laid before its answer's time, whatever the harness's clock says."""
    times = ev.ModelTimes()
    times.ask_time.FromSeconds(1)
    times.first_piece.FromMilliseconds(400)
    times.whole.FromMilliseconds(1_000)
    story = Story().begun().then(1.2, epoch=3, model_replied=ev.ModelReplied(times=times, read_position=2)).ended()
    (span,) = [it for it in turns_of(story.events, names_of(story.events))[0].spans if it.kind == MODEL]
    assert span.first is not None and span.end is not None
    assert (round(span.first - span.begin, 3), round(span.end - span.begin, 3)) == (0.4, 1.0)


def test_the_wait_for_another_try_ends_when_it_is_due() -> None:
    """A retried call's bar begins when it was made, not when the one before had failed."""
    story = Story().begun()
    retry = ev.RetryScheduled(reason="MODEL_OVERLOADED", attempt=1)
    retry.retry_time.FromNanoseconds(int((story.now + 0.1 + 2.0) * 1e9))
    story.then(epoch=3, retry_scheduled=retry).replied(3.0).ended()
    spans = turns_of(story.events, names_of(story.events))[0].spans
    waited = next(it for it in spans if it.kind == RETRY)
    assert waited.end is not None and round(waited.end - waited.begin, 3) == 2.0
    answered = [it for it in spans if it.kind == MODEL][-1]
    assert answered.end is not None and round(answered.end - answered.begin, 3) == 1.0


def test_turns_are_cut_at_their_ends() -> None:
    """What comes after the last end and begins nothing belongs to that turn."""
    story = Story().begun().replied().ended().then(credential_used=ev.CredentialUsed(result="ok"))
    assert [(it.first, it.last) for it in turns_of(story.events, names_of(story.events))] == [(1, 6)]
    story.then(message_received=ev.MessageReceived())
    assert [(it.first, it.last, it.ended) for it in turns_of(story.events, names_of(story.events))] == [
        (1, 5, "done"),
        (6, 7, ""),
    ]


def test_every_reason_that_is_worded_is_one() -> None:
    """The words are about reasons of the contract, and about the parts."""
    assert {f"ERROR_REASON_{reason}" for reason in REASONS} <= {name for name, _ in ErrorReason.items()}
    assert {word.part for word in REASONS.values()} <= set(PARTS)
    assert set(exits.PARTS) == set(PARTS)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_logs_of_older_releases_are_drawn_and_judged(log: Path) -> None:
    """At the beginning, the middle and the end of every recorded log there is a picture and a verdict."""
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    events = [ParseDict(line["event"], ev.Event()) for line in lines]
    for position in {1, len(events) // 2 + 1, len(events)}:
        for status in ("RUNNING", "IDLE"):
            story = Story(at(events[position - 1].emit_time), events[:position])
            seen = diagnosed(story.evidence(status))
            assert seen.verdict.part in ("", *PARTS)
            assert sum(len(it.events) for it in seen.turns) == position
            as_json(seen)
    recorded(drawing(seen, 80), 80)

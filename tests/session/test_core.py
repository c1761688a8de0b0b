"""The rules of a session's log, as values."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmesh.session.v1.session_pb2 import SessionStatus
from services.kit.errors import ServiceError
from services.session import admission
from services.session.admission import MAX_BATCH_EVENTS, MAX_EVENTS, admit
from services.session.core import Fact, Status, Usage, WriteState, fold, known, needs_harness, status, waiting
from services.session.emitters import CLIENT, EMITTERS, HARNESS, SESSION

CALLS = ("t1", "t2", "t3")


def fact(kind: str, event_id: str, **fields: object) -> Fact:
    """Makes a fact, by the emitter that its kind has."""
    emitter = fields.pop("emitter", None) or next(iter(EMITTERS[kind] - {CLIENT} or {CLIENT}))
    return Fact(kind=kind, event_id=event_id, emitter=str(emitter), **fields)  # type: ignore[arg-type]


def folded(*facts: Fact) -> WriteState:
    """Folds a log that begins with `session_started`."""
    state = WriteState()
    for time, one in enumerate((fact("session_started", "s", tenant="default", harness="messages"), *facts), 1):
        fold(state, one, time)
    return state


def refusal(state: WriteState, *facts: Fact, **how: object) -> str:
    """Returns the reason for which these are not admitted, or nothing."""
    try:
        admit(state, facts, **how)  # type: ignore[arg-type]
    except ServiceError as error:
        return error.reason
    return ""


def message(event_id: str = "m") -> Fact:
    return fact("message_received", event_id)


def woke(event_id: str = "w") -> Fact:
    return fact("harness_woke", event_id)


def replied(event_id: str, *calls: str, read: int = 0) -> Fact:
    return fact("model_replied", event_id, calls=calls, read_position=read)


def of_call(kind: str, call: str) -> Fact:
    return fact(kind, f"{kind}-{call}", tool_use_id=call)


def ended(event_id: str, read: int) -> Fact:
    return fact("turn_ended", event_id, read_position=read, reason=1)


def test_statuses_are_the_contracts() -> None:
    """The core's statuses are those of the contract, by name and number."""
    contract = {name.removeprefix("SESSION_STATUS_"): number for name, number in SessionStatus.items()}
    del contract["UNSPECIFIED"]
    assert {each.name: each.value for each in Status} == contract


STORIES: list[tuple[str, list[Fact], Status, bool]] = [
    ("nothing said", [], Status.IDLE, False),
    ("a message", [message()], Status.RUNNING, True),
    ("awake", [message(), woke()], Status.RUNNING, True),
    ("answered", [message(), woke(), replied("r", read=3), ended("e", 4)], Status.IDLE, False),
    (
        "a message during the answer",
        [message(), woke(), message("m2"), replied("r", read=3), ended("e", 3)],
        Status.RUNNING,
        True,
    ),
    ("an interrupt while idle", [fact("interrupt_requested", "i")], Status.IDLE, False),
    ("a call", [message(), woke(), replied("r", "t1", read=3)], Status.RUNNING, True),
    (
        "a person is asked",
        [message(), woke(), replied("r", "t1"), of_call("tool_confirmation_requested", "t1")],
        Status.WAITING,
        False,
    ),
    (
        "a person is asked, another call runs",
        [
            message(),
            woke(),
            replied("r", "t1", "t2"),
            of_call("tool_started", "t2"),
            of_call("tool_confirmation_requested", "t1"),
        ],
        Status.RUNNING,
        True,
    ),
    (
        "a person has answered",
        [
            message(),
            woke(),
            replied("r", "t1"),
            of_call("tool_confirmation_requested", "t1"),
            of_call("tool_confirmed", "t1"),
        ],
        Status.RUNNING,
        True,
    ),
    (
        "a client is to run it, and writes instead",
        [message(), woke(), replied("r", "t1"), of_call("custom_tool_requested", "t1"), message("m2")],
        Status.WAITING,
        False,
    ),
    (
        "interrupted while waiting",
        [
            message(),
            woke(),
            replied("r", "t1"),
            of_call("custom_tool_requested", "t1"),
            fact("interrupt_requested", "i"),
        ],
        Status.RUNNING,
        True,
    ),
    (
        "interrupted and obeyed",
        [
            message(),
            woke(),
            replied("r", "t1"),
            fact("interrupt_requested", "i"),
            of_call("tool_finished", "t1"),
            ended("e", 5),
        ],
        Status.IDLE,
        False,
    ),
    (
        "an interrupt that came too late",
        [message(), woke(), replied("r", read=3), fact("interrupt_requested", "i"), ended("e", 4)],
        Status.IDLE,
        False,
    ),
    ("a retry", [message(), woke(), fact("retry_scheduled", "x")], Status.RETRYING, True),
    ("retried", [message(), woke(), fact("retry_scheduled", "x"), replied("r")], Status.RUNNING, True),
    (
        "a budget is used up",
        [message(), woke(), fact("budget_reached", "b", budget="max_turns")],
        Status.PAUSED,
        False,
    ),
    (
        "a budget is used up, and the turn interrupted",
        [message(), woke(), fact("budget_reached", "b"), fact("interrupt_requested", "i")],
        Status.RUNNING,
        True,
    ),
    (
        "a paused turn that was interrupted",
        [message(), woke(), fact("budget_reached", "b"), fact("interrupt_requested", "i"), ended("e", 5)],
        Status.IDLE,
        False,
    ),
    (
        "a budget in the middle of a turn, then raised",
        [message(), woke(), fact("budget_reached", "b"), fact("config_changed", "c", harness="messages")],
        Status.RUNNING,
        True,
    ),
    (
        "a budget, then a message, which waits too",
        [message(), woke(), fact("budget_reached", "b"), message("m2")],
        Status.PAUSED,
        False,
    ),
    ("over", [message(), fact("session_ended", "x")], Status.ENDED, False),
]


@pytest.mark.parametrize(("log", "wanted", "needed"), [story[1:] for story in STORIES], ids=[s[0] for s in STORIES])
def test_status_follows_from_the_log(log: list[Fact], wanted: Status, needed: bool) -> None:
    """What a session does, and whether a harness is woken for it, is read off its log."""
    state = folded(*log)
    assert (status(state), needs_harness(state)) == (wanted, needed)


def test_a_damaged_log_needs_nobody() -> None:
    """A damaged session is said to be so, wakes nobody, and takes nothing."""
    state = folded(message())
    state.damaged = True
    assert (status(state), needs_harness(state)) == (Status.DAMAGED, False)
    assert refusal(state, message("m2")) == "SESSION_DAMAGED"


def test_what_a_session_has_used_is_summed() -> None:
    """Usage, turns and what waits are sums over the log."""
    used = Usage(1, 2, 3, 4)
    state = folded(
        message(),
        woke(),
        replace(replied("r", "t1", "t2"), usage=used),
        fact("context_compacted", "c", usage=used),
        of_call("custom_tool_requested", "t2"),
        of_call("tool_confirmation_requested", "t1"),
    )
    assert (state.usage, state.head, state.epoch) == (Usage(2, 4, 6, 8), 7, 3)
    assert waiting(state) == ["t1", "t2"]
    fold(state, ended("e", 7), 99)
    assert (state.turns, state.last_turn_end, state.create_time, state.update_time) == (1, 1, 1, 99)


def test_a_decision_is_bound_to_the_call_that_was_seen() -> None:
    """With the request's hash a person allows; to decline none is needed. Afterwards nothing of it is kept."""
    asked = fact("tool_confirmation_requested", "q", tool_use_id="t1", call_hash="good")
    state = folded(message(), woke(), replied("r", "t1"), asked)
    yes = fact("tool_confirmed", "yes", tool_use_id="t1", allowed=True, call_hash="good")
    assert refusal(state, yes) == ""
    assert refusal(state, fact("tool_confirmed", "no", tool_use_id="t1")) == ""
    assert state.hashes == {"t1": "good"}
    assert not fold(state, yes, 9).hashes


def test_what_a_session_has_cost_is_summed() -> None:
    """Answers without a known price cost nothing here."""
    state = folded(message(), woke(), replace(replied("r"), cost_micros=7), replied("r2"), ended("e", 5))
    assert state.cost_micros == 7


REFUSALS: list[tuple[str, list[Fact], list[Fact], dict[str, object], str]] = [
    ("a second start", [], [fact("session_started", "s2")], {}, "EVENT_INVALID"),
    ("a client's tool result", [], [fact("tool_finished", "f", emitter=CLIENT)], {}, "EMITTER_DENIED"),
    ("a client's custom event for harnesses", [], [fact("custom", "c", emitter=CLIENT)], {}, "EMITTER_DENIED"),
    ("after the end", [fact("session_ended", "x")], [message("m2")], {}, "SESSION_ENDED"),
    ("a moved log", [message()], [message("m2")], {"expected_position": 1}, "POSITION_CONFLICT"),
    ("a log that is not so long yet", [message()], [message("m2")], {"expected_position": 3}, "POSITION_CONFLICT"),
    ("no epoch", [message(), woke()], [ended("e", 2)], {}, "EPOCH_STALE"),
    ("an old epoch", [message(), woke(), woke("w2")], [ended("e", 2)], {"epoch": 3}, "EPOCH_STALE"),
    ("an epoch to come", [message(), woke()], [ended("e", 2)], {"epoch": 4}, "EPOCH_STALE"),
    ("nobody woke", [message()], [ended("e", 2)], {"epoch": 0}, "EPOCH_STALE"),
    ("waking without a position", [message()], [woke()], {}, "ARGUMENT_INVALID"),
    ("waking among others", [message()], [woke(), ended("e", 2)], {"expected_position": 2}, "EVENT_INVALID"),
    ("an unknown call", [woke()], [of_call("tool_started", "t1")], {"epoch": 2}, "TOOL_CALL_UNKNOWN"),
    (
        "a second result",
        [woke(), replied("r", "t1"), of_call("tool_finished", "t1")],
        [fact("tool_finished", "again", tool_use_id="t1")],
        {"epoch": 2},
        "TOOL_CALL_SETTLED",
    ),
    (
        "a second result in one batch",
        [woke(), replied("r", "t1")],
        [of_call("tool_finished", "t1"), fact("tool_finished", "again", tool_use_id="t1")],
        {"epoch": 2},
        "TOOL_CALL_SETTLED",
    ),
    (
        "a call that was made before",
        [woke(), replied("r", "t1"), of_call("tool_finished", "t1")],
        [replied("r2", "t1")],
        {"epoch": 2},
        "TOOL_CALL_SETTLED",
    ),
    ("two calls of one id", [woke()], [replied("r", "t1", "t1")], {"epoch": 2}, "EVENT_INVALID"),
    (
        "a decision nobody asked for",
        [woke(), replied("r", "t1")],
        [of_call("tool_confirmed", "t1")],
        {},
        "TOOL_CALL_UNKNOWN",
    ),
    (
        "a second decision",
        [woke(), replied("r", "t1"), of_call("tool_confirmation_requested", "t1"), of_call("tool_confirmed", "t1")],
        [fact("tool_confirmed", "again", tool_use_id="t1")],
        {},
        "TOOL_CALL_SETTLED",
    ),
    (
        "an approval of another call",
        [woke(), replied("r", "t1"), fact("tool_confirmation_requested", "q", tool_use_id="t1", call_hash="good")],
        [fact("tool_confirmed", "yes", tool_use_id="t1", allowed=True, call_hash="bad")],
        {},
        "CALL_HASH_MISMATCH",
    ),
    (
        "an approval of no call in particular",
        [woke(), replied("r", "t1"), fact("tool_confirmation_requested", "q", tool_use_id="t1", call_hash="good")],
        [fact("tool_confirmed", "yes", tool_use_id="t1", allowed=True)],
        {},
        "CALL_HASH_MISMATCH",
    ),
    (
        "a harness that approves its own call",
        [woke(), replied("r", "t1"), fact("tool_confirmation_requested", "q", tool_use_id="t1", call_hash="good")],
        [fact("tool_confirmed", "yes", tool_use_id="t1", allowed=True, call_hash="good", emitter="harness")],
        {"epoch": 2},
        "EMITTER_DENIED",
    ),
    (
        "a second answer",
        [woke(), replied("r", "t1"), of_call("custom_tool_requested", "t1"), of_call("custom_tool_answered", "t1")],
        [fact("custom_tool_answered", "again", tool_use_id="t1")],
        {},
        "TOOL_CALL_SETTLED",
    ),
    ("a name twice in a batch", [], [message("a"), message("a")], {}, "EVENT_INVALID"),
    ("too big", [], [fact("message_received", "m", size=1024 * 1024 + 1)], {}, "EVENT_TOO_LARGE"),
    ("too big together", [], [fact("message_received", x, size=600_000) for x in "ab"], {}, "EVENT_TOO_LARGE"),
    ("too many", [], [message(str(n)) for n in range(MAX_BATCH_EVENTS + 1)], {}, "ARGUMENT_INVALID"),
]


@pytest.mark.parametrize(("log", "asked", "how", "reason"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_refusals(log: list[Fact], asked: list[Fact], how: dict[str, object], reason: str) -> None:
    """Each rule refuses with its own reason, and a refusal changes nothing."""
    state = folded(*log)
    before = copy.deepcopy(state)
    assert refusal(state, *asked, **how) == reason
    assert state == before


def test_a_full_session_can_still_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session has a bound, and its end always fits."""
    state = folded(message())
    state.head = MAX_EVENTS
    assert refusal(state, message("m2")) == "SESSION_FULL"
    assert refusal(state, fact("session_ended", "x")) == ""
    monkeypatch.setattr(admission, "MAX_EVENTS", 3)
    assert refusal(folded(message()), message("a"), message("b")) == "SESSION_FULL"


# --- against a naive model, which looks at the whole log each time ---

_KINDS = (
    "message_received",
    "interrupt_requested",
    "harness_woke",
    "model_replied",
    "tool_started",
    "tool_finished",
    "tool_confirmation_requested",
    "tool_confirmed",
    "custom_tool_requested",
    "custom_tool_answered",
    "turn_ended",
    "retry_scheduled",
    "budget_reached",
    "config_changed",
    "session_ended",
)


@st.composite
def _facts(draw: st.DrawFn) -> Fact:
    kind = draw(st.sampled_from(_KINDS))
    emitter = draw(st.sampled_from([CLIENT, HARNESS, SESSION]))
    if draw(st.integers(0, 9)):
        emitter = next(iter(EMITTERS[kind]))
    return Fact(
        kind=kind,
        event_id=draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz")),
        emitter=emitter,
        tool_use_id=draw(st.sampled_from(CALLS)),
        calls=tuple(draw(st.lists(st.sampled_from(CALLS), max_size=2))) if kind == "model_replied" else (),
        read_position=draw(st.integers(0, 30)) if kind == "turn_ended" else 0,
        harness="messages",
        tenant="default",
    )


_asks = st.lists(
    st.tuples(st.lists(_facts(), min_size=1, max_size=3), st.booleans(), st.sampled_from([None, 0, -1])), max_size=40
)


def naive(log: Sequence[Fact], asked: Sequence[Fact], epoch: int, expected: int | None) -> bool:
    """Says whether a batch is admitted, from first principles."""
    if any(one.emitter not in EMITTERS[one.kind] for one in asked):
        return False
    if any(one.kind == "session_ended" for one in log):
        return False
    wokes = [at for at, one in enumerate(log, 1) if one.kind == "harness_woke"]
    if asked[0].emitter == HARNESS and asked[0].kind != "harness_woke" and (not wokes or epoch != wokes[-1]):
        return False
    if expected is not None and expected != len(log):
        return False
    return all(_naive_one([*log, *asked[:at]], one, len(asked), expected) for at, one in enumerate(asked))


def _naive_one(log: Sequence[Fact], one: Fact, size: int, expected: int | None) -> bool:
    if one.event_id in {each.event_id for each in log} or one.kind == "session_started":
        return False
    calls = [call for each in log for call in each.calls]
    steps = [
        each.kind for each in log if each.tool_use_id == one.tool_use_id and each.kind.startswith(("tool", "custom"))
    ]
    made = max((at for at, each in enumerate(log) if one.tool_use_id in each.calls), default=None)
    answered = next(
        (
            at
            for at, each in enumerate(log)
            if (each.kind, each.tool_use_id) == ("custom_tool_answered", one.tool_use_id)
        ),
        None,
    )
    closed = "tool_finished" in steps or (
        answered is not None
        and any(each.kind in ("model_replied", "turn_ended") for each in log[answered:])
        and steps[-1] == "custom_tool_answered"
    )
    is_open = made is not None and not closed
    match one.kind:
        case "harness_woke":
            return expected is not None and size == 1
        case "model_replied":
            return len(set(one.calls)) == len(one.calls) and not set(one.calls) & set(calls)
        case "tool_started" | "tool_finished" | "tool_confirmation_requested" | "custom_tool_requested":
            return is_open
        case "tool_confirmed":
            return is_open and bool(steps) and steps[-1] == "tool_confirmation_requested"
        case "custom_tool_answered":
            return is_open and bool(steps) and steps[-1] == "custom_tool_requested"
        case _:
            return True


@settings(max_examples=400, deadline=None)
@given(_asks)
def test_admission_and_fold_agree_with_a_naive_model(asks: list[tuple[list[Fact], bool, int | None]]) -> None:
    """Admission refuses exactly what a model refuses that reads the whole log, and folding on is folding anew."""
    log = [fact("session_started", "s", tenant="default", harness="messages")]
    state = folded()
    for asked, current, offset in asks:
        epoch = state.epoch if current else state.epoch - 1
        expected = None if offset is None else state.head + offset
        duplicate = bool(known(state, asked[0].event_id))
        admitted = refusal(state, *asked, epoch=epoch, expected_position=expected) == ""
        assert admitted == naive(log, asked, epoch, expected)
        assert not (admitted and duplicate)
        if admitted:
            for one in asked:
                log.append(one)
                fold(state, one, len(log))
    assert state == folded(*log[1:])
    assert all(known(state, one.event_id) == at for at, one in enumerate(log, 1))


def test_a_summary_is_paid_for_like_an_answer() -> None:
    """Its tokens and its cost are the session's; it ends a wait for the model as an answer does."""
    state = folded(
        message(),
        woke(),
        fact("model_replied", "r", usage=Usage(1, 2, 3, 4), cost_micros=50, read_position=3),
        fact("retry_scheduled", "t"),
        fact("context_compacted", "c", usage=Usage(10, 20, 30, 40), cost_micros=7),
    )
    assert (state.usage, state.cost_micros) == (Usage(11, 22, 33, 44), 57)
    assert status(state) is Status.RUNNING

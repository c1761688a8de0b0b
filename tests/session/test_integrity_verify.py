"""The checker finds what is wrong with a log, and nothing in one that is right. Each breach is planted here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.session.core import Fact
from services.session.emitters import CLIENT, HARNESS, SESSION
from services.session.verify import Link, Seen, Violation, check, check_acknowledged, check_chain


def said(kind: str, emitter: str = HARNESS, *, epoch: int = 3, **more: object) -> Seen:
    """Makes an event whose place is set by `log`."""
    return Seen(0, Fact(kind, "", emitter, **more), epoch, 0)  # type: ignore[arg-type]


STARTED, MESSAGE = said("session_started", SESSION, epoch=0), said("message_received", CLIENT, epoch=0)
WOKE = said("harness_woke")
ENDED = said("session_ended", SESSION, epoch=0)
CALLED = said("model_replied", calls=("a", "b"))
TURN = said("turn_ended")
BEGIN = [STARTED, MESSAGE, WOKE]


def of(kind: str, call: str, emitter: str = HARNESS) -> Seen:
    """Makes an event about a tool call."""
    return said(kind, emitter, epoch=3 if emitter == HARNESS else 0, tool_use_id=call)


def log(*events: Seen) -> list[Seen]:
    """Puts events at positions from 1, each with a name and a time of its own."""
    return [
        replace(event, position=position, time=position, fact=replace(event.fact, event_id=f"e{position}"))
        for position, event in enumerate(events, 1)
    ]


GOOD = log(
    *BEGIN,
    CALLED,
    of("tool_started", "a"),
    of("tool_confirmation_requested", "b"),
    of("tool_confirmed", "b", CLIENT),
    of("tool_finished", "a"),
    of("tool_finished", "b"),
    said("model_replied", calls=("c",)),
    of("custom_tool_requested", "c"),
    of("custom_tool_answered", "c", CLIENT),
    said("model_replied"),
    TURN,
    ENDED,
)


def test_a_good_log_has_nothing_wrong() -> None:
    """A session with tools, a confirmation and a custom tool, from its start to its end."""
    assert check(GOOD) == []
    assert check([]) == []


def test_what_may_follow_an_end() -> None:
    """An ended session is put away and taken out again; a fork begins with another log, and without its harness."""
    put_away = [said(kind, SESSION, epoch=0) for kind in ("session_archived", "session_restored", "session_archived")]
    assert check(log(STARTED, ENDED, *put_away)) == []
    forked = said("session_forked", SESSION, epoch=0)
    assert check(log(*BEGIN, forked, replace(WOKE, epoch=5), said("model_replied", epoch=5))) == []
    assert check(log(*BEGIN, forked, said("model_replied", epoch=3)))[0].invariant == "I4"


def at(events: list[Seen], position: int, **more: object) -> list[Seen]:
    """Changes one event."""
    return [replace(e, **more) if e.position == position else e for e in events]  # type: ignore[arg-type]


BREACHES = {
    "a gap": (GOOD[:4] + GOOD[5:], "I2", 6),
    "a repeat": (GOOD[:4] + GOOD[3:], "I2", 4),
    "a log without its beginning": (GOOD[1:], "I2", 2),
    "time that goes back": (at(GOOD, 5, time=1), "I2", 5),
    "an id twice": (at(GOOD, 5, fact=replace(GOOD[4].fact, event_id="e2")), "I3", 5),
    "an old epoch": (log(*BEGIN, replace(WOKE, epoch=4), said("model_replied", epoch=3)), "I4", 5),
    "an epoch that is no position": (at(GOOD, 3, epoch=2), "I4", 3),
    "an epoch of a client": (at(GOOD, 2, epoch=3), "I4", 2),
    "a result without a call": (log(*BEGIN, of("tool_finished", "x")), "I5", 4),
    "two results": (log(*BEGIN, CALLED, of("tool_finished", "a"), of("tool_finished", "a")), "I5", 6),
    "a call twice": (log(*BEGIN, CALLED, CALLED), "I5", 5),
    "a turn that ends with an open call": (log(*BEGIN, CALLED, of("tool_finished", "a"), TURN), "I5", 6),
    "a call that starts twice": (log(*BEGIN, CALLED, of("tool_started", "a"), of("tool_started", "a")), "I6", 6),
    "a call that starts before the answer": (
        log(*BEGIN, CALLED, of("tool_confirmation_requested", "a"), of("tool_started", "a")),
        "I7",
        6,
    ),
    "a second start": (log(STARTED, STARTED), "I8", 2),
    "no start": (log(MESSAGE), "I8", 1),
    "an event after the end": (log(STARTED, ENDED, MESSAGE), "I8", 3),
    "a client that plays the model": (log(STARTED, said("model_replied", CLIENT, epoch=0)), "I8", 2),
    "an answer that nobody asked for": (log(*BEGIN, CALLED, of("tool_confirmed", "a", CLIENT)), "I8", 5),
    "an answer to another question": (
        log(*BEGIN, CALLED, of("custom_tool_requested", "a"), of("tool_confirmed", "a", CLIENT)),
        "I8",
        6,
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_each_breach_is_found(breach: str) -> None:
    """What is wrong is named, where it is."""
    events, invariant, position = BREACHES[breach]
    assert (invariant, position) in {(each.invariant, each.position) for each in check(events)}


CHAIN = [Link(1, 2, "", "d1"), Link(3, 1, "d1", "d2"), Link(4, 16, "d2", "d3")]


def test_a_chain_is_whole() -> None:
    """Batches that follow each other, with the mark at the end of any of them, or none."""
    assert check_chain([]) == check_chain(CHAIN) == check_chain(CHAIN, 3, "d2") == check_chain(CHAIN, 19, "d3") == []


@pytest.mark.parametrize(
    ("links", "mark", "position"),
    [
        (CHAIN[1:], (0, ""), 1),
        ([CHAIN[0], CHAIN[2]], (0, ""), 3),
        ([CHAIN[0], replace(CHAIN[1], prev_digest="x"), CHAIN[2]], (0, ""), 3),
        (CHAIN[:2], (19, "d3"), 4),
        ([], (19, "d3"), 1),
        (CHAIN, (3, "x"), 3),
        (CHAIN, (2, "d2"), 2),
        (CHAIN, (5, "d3"), 5),
    ],
)
def test_a_broken_chain_is_found(links: list[Link], mark: tuple[int, str], position: int) -> None:
    """A lost batch, a link that does not fit, a log shorter than its mark, or another batch than the marked one."""
    assert [(each.invariant, each.position) for each in check_chain(links, *mark)] == [("I2", position)]


def test_what_was_acknowledged_is_looked_for() -> None:
    """An acknowledged event that is missing, or elsewhere, is a loss."""
    assert check_acknowledged(GOOD, {"e1": 1, "e9": 9}) == []
    assert check_acknowledged(GOOD, {"e1": 2, "e99": 3}) == [
        Violation("I1", 2, "acknowledged event e1 is at 1"),
        Violation("I1", 3, "acknowledged event e99 is lost"),
    ]

"""Rules of owners: who may do what, which names are taken, and what a transfer makes of an owner record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.kit.errors import Conflict, Denied, Exists, Full, Gone, Invalid, Refused, ServiceError
from services.sandbox import owners_core as core
from services.sandbox.backends import Backends
from services.sandbox.hand import HandSettings, Labels, Owner
from services.sandbox.owners_core import Goal, Right, SessionSeen
from services.sandbox.owners_records import OwnerRecords
from tests.support.owners import MemoryLogs

LABELS = Labels("sbx_1", "default", 1.0, "a", "box", "a/box/1")
GOAL = Goal("b", "tool")


def moved(labels: Labels, to: str, hand: str = "tool") -> Labels:
    """Takes a hand all the way."""
    return core.arrived(core.owned(core.decided(core.leaving(labels, Goal(to, hand), 9.0)), "acme"))


def test_a_transfer_changes_the_owner_and_nothing_else() -> None:
    """One generation up; the request that made it finds it no more; who had it before is remembered, bounded."""
    after = moved(LABELS, "b")
    wanted = replace(LABELS, session_id="b", hand="tool", generation=2, request_id="", past=(Owner(1, "a"),), move=None)
    assert after == wanted
    for number in range(40):
        after = moved(after, f"s{number}")
    assert len(after.past) == core.MOST_PAST and after.past[-1] == Owner(41, "s38")


def test_a_hand_that_goes_to_nobody_stands() -> None:
    """By its new name, as its tenant's; attached again it keeps that."""
    stood = moved(LABELS, "", "shelf")
    assert (stood.session_id, stood.hand, stood.standing, stood.tenant) == ("", "shelf", "shelf", "acme")
    assert stood.request_id == core.request_of("acme", "shelf") == "@acme/shelf"
    again = moved(stood, "b", "tool")
    assert (again.standing, again.hand, again.tenant, again.request_id) == ("shelf", "tool", "acme", "@acme/shelf")


def test_who_may_do_what() -> None:
    """The owner all, a reader what reads, an owner of before only wait, a stranger nothing."""
    after = core.shared(moved(LABELS, "b"), "c", "eye")
    assert core.right_of(after, "b") == Right("b", generation=2)
    assert core.right_of(after, "c") == Right("c", reads=True, generation=2)
    assert core.right_of(after, "a") == Right("a", past=frozenset({1}))
    assert core.right_of(after, "d") is None
    left = core.with_reader(after, replace(after.readers[0], leaving=True))
    assert core.right_of(left, "c") is None


def test_a_right_is_good_for_the_owner_that_it_was_given_for() -> None:
    """A call that a transfer overtakes is refused, with where the hand is; a client's is for whoever owns it."""
    right = core.right_of(LABELS, "a")
    assert right is not None
    core.check_right(LABELS, right)
    core.check_right(moved(LABELS, "b"), core.EVERYTHING)
    with pytest.raises(Refused) as refused:
        core.check_right(moved(LABELS, "b"), right)
    assert (refused.value.reason, refused.value.metadata) == ("HAND_TRANSFERRED", {"session_id": "b"})


@pytest.mark.parametrize(
    ("labels", "goal", "expected", "there"),
    [
        (LABELS, GOAL, 1, False),
        (LABELS, GOAL, 0, False),
        (LABELS, GOAL, 2, None),
        (core.leaving(LABELS, GOAL, 9.0), GOAL, 1, True),
        (core.leaving(LABELS, GOAL, 9.0), Goal("c", "tool"), 1, None),
        (core.leaving(LABELS, GOAL, 9.0), Goal("c", "tool"), 0, None),
        (moved(LABELS, "b"), GOAL, 1, True),
        (moved(LABELS, "b"), GOAL, 2, True),
        (moved(LABELS, "b"), Goal("c", "tool"), 1, None),
        (moved(LABELS, "b"), Goal("c", "tool"), 2, False),
        (core.stayed(core.leaving(LABELS, GOAL, 9.0)), GOAL, 1, None),
    ],
)
def test_of_transfers_one_comes_first(labels: Labels, goal: Goal, expected: int, there: bool | None) -> None:
    """The same one again is there already; another one with an old generation is a conflict (None)."""
    if there is None:
        with pytest.raises(Conflict):
            core.is_there(labels, goal, expected)
    else:
        assert core.is_there(labels, goal, expected) is there


def test_names_that_are_taken() -> None:
    """By the configuration, a server, another hand, one on its way, one that is shared; not by the hand itself."""
    other = replace(LABELS, sandbox_id="sbx_2", session_id="b", hand="own", standing="shelf", tenant="acme")
    coming = core.leaving(replace(LABELS, sandbox_id="sbx_3"), Goal("b", "coming"), 9.0)
    read = core.shared(replace(LABELS, sandbox_id="sbx_4"), "b", "eye")
    others = [other, coming, read]
    seen = SessionSeen("acme", hands={"main": "", "bench": "bench"}, servers={"shop"})
    for name in ("main", "bench", "shop", "own", "coming", "eye"):
        with pytest.raises(Exists, match="HAND_NAME_TAKEN"):
            core.check_free(LABELS, Goal("b", name), "acme", seen, others)
    core.check_free(LABELS, Goal("b", "free"), "acme", seen, others)
    core.check_free(replace(LABELS, standing="bench"), Goal("b", "bench"), "acme", seen, others)
    with pytest.raises(Exists):
        core.check_free(LABELS, Goal("", "shelf"), "acme", None, others)
    core.check_free(LABELS, Goal("", "shelf"), "others", None, others)


def test_what_is_wrong_is_said() -> None:
    """Names, times, sessions that take nothing, too many readers, tools that may change something, no kin."""
    full = LABELS
    for number in range(core.MOST_READERS):
        full = core.shared(full, f"s{number}", "x")
    for kind, call in (
        (Invalid, lambda: core.check_name("Mesh")),
        (Invalid, lambda: core.check_name("mesh")),
        (Invalid, lambda: core.settle_seconds(601.0)),
        (Invalid, lambda: core.settle_seconds(-1.0)),
        (Invalid, lambda: core.check_description("x" * 1001)),
        (Refused, lambda: core.check_session("b", SessionSeen("t", ended=True))),
        (Refused, lambda: core.check_session("b", SessionSeen("t", archived=True))),
        (Full, lambda: core.shared(full, "s", "x")),
        (Denied, lambda: core.check_reading((), "bash")),
        (Denied, lambda: core.check_kin("a", SessionSeen("t"), "b", SessionSeen("t"))),
    ):
        with pytest.raises(kind) as refused:
            call()
        assert isinstance(refused.value, ServiceError)
    assert (core.settle_seconds(None), core.settle_seconds(0.0)) == (30.0, 0.0)
    for own, theirs in (
        (SessionSeen("t", parent="b"), SessionSeen("t")),
        (SessionSeen("t"), SessionSeen("t", parent="a")),
        (SessionSeen("t", hand_over_to={"b"}), SessionSeen("t")),
    ):
        core.check_kin("a", own, "b", theirs)


async def test_a_hand_whose_session_was_deleted_on_the_way_is_its_tenants_still(tmp_path: Path) -> None:
    """A hand that is nobody's could be everybody's: whose it is was noted when it began to leave."""

    class Deleted(MemoryLogs):
        async def seen(self, session_id: str) -> SessionSeen:
            raise Gone("SESSION_NOT_FOUND", "it was deleted")

    records = OwnerRecords(Backends(HandSettings(tmp_path)), Deleted())
    labels = core.decided(core.leaving(LABELS, Goal("", "shelf"), 9.0, "acme"))
    assert await records.tenant_of(labels) == "acme"

"""Which sessions are past the rules, and that they are let go and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.session.core import Status
from services.session.index import Row, prefix_of
from services.session.retention import DAY, Due, RetentionError, Rule, due, read
from services.session.upkeep import UNMADE_SECONDS, Upkeep
from tests.session.running import Service, message, note, refusal

MINE, OTHER = prefix_of("mine"), prefix_of("other")
FREE = {"tier": "free"}
NOW = 100 * DAY


def row(age: int = 0, size: int = 10, **fields: Any) -> Row:
    """Makes a row of a session that was last at work so many days ago."""
    return Row(**{"labels": FREE, "updated": NOW - age * DAY, "size": size, **fields})


def test_age_counts_from_the_last_event() -> None:
    """What is older than the rule goes; what is just as old, has another label or is another tenant's stays."""
    rule = Rule("tier", "free", True, max_age=30 * DAY, tenant="mine")
    rows = [
        (MINE, "old", row(31)),
        (MINE, "edge", row(30)),
        (MINE, "paid", row(31, labels={"tier": "paid"})),
        (MINE, "none", row(31, labels={})),
        (OTHER, "theirs", row(31)),
    ]
    assert list(due([rule], rows, NOW)) == [Due(MINE, "old", True)]


def test_bytes_are_counted_by_tenant_from_the_newest() -> None:
    """The newest are kept as far as the bytes go; the older ones go, of each tenant by itself."""
    rule = Rule("tier", "free", True, max_bytes=30)
    rows = [(MINE, str(age), row(age)) for age in range(5)] + [(OTHER, "o", row(9))]
    assert {each.session_id for each in due([rule], rows, NOW)} == {"3", "4"}


@pytest.mark.parametrize("status", [Status.RUNNING, Status.RETRYING])
def test_a_session_at_work_is_left_alone(status: Status) -> None:
    """However old it is."""
    rule = Rule("tier", "free", True, max_age=DAY)
    assert list(due([rule], [(MINE, "s", row(99, status=int(status)))], NOW)) == []


def test_archiving_again_changes_nothing() -> None:
    """An archived session is past no rule that archives, and counts for none; one that deletes still finds it."""
    archived = (MINE, "s", row(50, archived=True))
    archive = [Rule("tier", "free", False, max_age=DAY), Rule("tier", "free", False, max_bytes=15)]
    assert list(due(archive, [archived, (MINE, "new", row(0))], NOW)) == []
    both = [*archive, Rule("tier", "free", True, max_age=40 * DAY)]
    assert list(due(both, [archived], NOW)) == [Due(MINE, "s", True)]


def test_what_two_rules_say() -> None:
    """Deleting wins, and a session comes once."""
    rules = [Rule("tier", "free", delete, max_age=DAY) for delete in (True, False)]
    for order in (rules, rules[::-1]):
        assert list(due(order, [(MINE, "s", row(2))], NOW)) == [Due(MINE, "s", True)]


def test_rules_are_read(tmp_path: Path) -> None:
    """The file of the module's docstring, and what days and bytes become."""
    file = tmp_path / "rules.json"
    entries = [
        {"label": "tier", "value": "free", "max_age_days": 0.5, "action": "delete"},
        {"tenant": "t", "label": "tier", "value": "", "max_bytes": 7, "action": "archive"},
    ]
    file.write_text(json.dumps(entries))
    assert read(file) == [
        Rule("tier", "free", True, max_age=DAY // 2),
        Rule("tier", "", False, max_bytes=7, tenant="t"),
    ]


GOOD = {"label": "a", "value": "b", "max_bytes": 1, "action": "delete"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        json.dumps([{**GOOD, "max_bytes": 0}]),
        json.dumps([{**GOOD, "max_bytes": True}]),
        json.dumps([{**GOOD, "max_age_days": -1}]),
        json.dumps([{**GOOD, "action": "forget"}]),
        json.dumps([{**GOOD, "days": 1}]),
        json.dumps([{**GOOD, "label": ""}]),
        json.dumps([{"label": "a", "value": "b", "action": "delete"}]),
        json.dumps([{"label": "a", "max_bytes": 1, "action": "delete"}]),
    ],
)
def test_a_wrong_rule_is_no_rule(tmp_path: Path, text: str) -> None:
    """Nothing is guessed where sessions are deleted."""
    file = tmp_path / "rules.json"
    file.write_text(text)
    with pytest.raises(RetentionError):
        read(file)


def upkeep(service: Service, rules: list[Rule], later: int) -> Upkeep:
    """Makes an upkeep whose clock is so many nanoseconds ahead."""
    parts = service.parts
    sessions = parts.sessions
    now = sessions._now
    return Upkeep(
        service.store.log,
        sessions._writer,
        sessions._index,
        parts.listing,
        parts.lifecycle,
        parts.claims,
        parts.upkeep._orphans,
        lambda: now() + later,
        rules,
    )


async def test_sessions_are_let_go(service: Service) -> None:
    """By their rules some are archived and some deleted; those at work, newer ones and others stay."""
    mark = ids.mint("x")

    async def make(value: str, *events: Any) -> str:
        return await service.create(*events, config=SessionConfig(labels={mark: value}))

    archived, deleted, kept = await make("a"), await make("d"), await make("k")
    busy = await make("d", message())
    rules = [
        Rule(mark, "a", False, max_age=DAY),
        Rule(mark, "d", True, max_age=DAY),
        Rule(mark, "k", True, max_age=3 * DAY),
    ]
    await service.parts.sessions.finish()
    await upkeep(service, rules, 2 * DAY).look()
    for session, wanted in ((archived, True), (kept, False), (busy, False)):
        answer = await service.client.GetSession(pb.GetSessionRequest(session_id=session))
        assert answer.session.archived is wanted
    error = await refusal(service.client.GetSession(pb.GetSessionRequest(session_id=deleted)))
    assert error.reason == "SESSION_NOT_FOUND"


async def test_without_rules_nothing_goes(service: Service) -> None:
    """Off is the default."""
    session = await service.create(note())
    await upkeep(service, [], 10_000 * DAY).look()
    assert await service.status(session) == "IDLE"


async def test_a_copy_that_broke_off_is_cleared_away(service: Service) -> None:
    """What was announced and never made is deleted after its time, and not before."""
    session, index = ids.mint("sess"), service.parts.sessions._index
    await index.announce(session, "default", service.parts.sessions._now())
    await upkeep(service, [], 0).look()
    assert await service.store.registry.get("tombstones", session) is None
    await upkeep(service, [], (UNMADE_SECONDS + 1) * 1_000_000_000).look()
    assert await service.store.registry.get("tombstones", session) is not None

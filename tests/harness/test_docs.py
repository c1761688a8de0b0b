"""docs/brain.md is two pages, and leaves out nothing that the contract or the code has."""

from __future__ import annotations

import re
from pathlib import Path

from handmesh.session.v1.event_pb2 import Event
from services.harness.turn import core
from services.session.emitters import EMITTERS

PAGE = (Path(__file__).parents[2] / "docs" / "brain.md").read_text()
LINES_OF_A_PAGE = 60  # of at most 125 characters, the picture's source included
KINDS = {kind.message_type.name: kind.name for kind in Event.DESCRIPTOR.oneofs_by_name["kind"].fields}


def test_the_brain_is_explained_in_two_pages() -> None:
    """What does not fit is on a page of its own."""
    lines = PAGE.splitlines()
    assert len(lines) <= 2 * LINES_OF_A_PAGE
    assert [line for line in lines if len(line) > 125 and not line.startswith(("|", "    "))] == []


def test_every_kind_of_event_is_named() -> None:
    """A new kind of the contract needs its place on the page."""
    assert [kind for kind in KINDS if f"`{kind}`" not in PAGE] == []


def test_the_table_of_events_says_who_may_emit_them() -> None:
    """Its second column is what the session service enforces."""
    table = PAGE.split("| event | by | it says |")[1].split("\n\n")[0]
    told: dict[str, set[str]] = {}
    for kinds, emitters in re.findall(r"^\| (`[^|]*`) \| ([a-z_, ]+) \|", table, re.MULTILINE):
        names = re.findall(r"`(\w+)`", kinds)
        words = emitters.split(", ")
        told |= dict(
            zip(
                names,
                (set(word.split(" or ")) for word in (words * len(names) if len(words) == 1 else words)),
                strict=False,
            )
        )
    assert len(told) > len(core.ACTIONS)
    assert told == {name: EMITTERS[KINDS[name]] for name in told}


def test_every_action_is_explained() -> None:
    """Each in the table of actions."""
    table = PAGE.split("| action | what the harness does |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {action.__name__ for action in core.ACTIONS}

"""docs/wire.md says what is checked, and its commands are ones that can be given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from handmesh.conformance.hand.__main__ import parser as of_hand
from handmesh.conformance.hand.checks import CHECKS as HAND
from handmesh.conformance.harness.__main__ import parser as of_harness
from handmesh.conformance.harness.checks import CHECKS as HARNESS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "wire.md").read_text()


def test_every_check_is_told() -> None:
    """The tables name the checks, in their order."""
    tables = re.findall(r"\| check \| what is done \|\n\|---\|---\|\n((?:\|.*\n)+)", TEXT)
    told = [[row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] for table in tables]
    assert told == [[check.says for check in checks] for checks in (HARNESS, HAND)]


def test_its_commands_can_be_given() -> None:
    """What it tells people to type is understood, and what it names is there once it was built."""
    commands = re.findall(r"^handmesh (harness|hand) check (.*?)\n```", TEXT, re.MULTILINE | re.DOTALL)
    parsers = {"harness": of_harness, "hand": of_hand}
    assert {peer for peer, _ in commands} == set(parsers)
    for peer, arguments in commands:
        assert parsers[peer]().parse_args(shlex.split(arguments.replace("\\\n", " "))).command


def test_its_tests_are_there() -> None:
    """The files of tests that it names exist."""
    for name in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists(), name

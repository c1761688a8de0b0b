"""The matrix is whole, and in the docs."""

from __future__ import annotations

from pathlib import Path

from services.kit.failpoints import POINTS
from tests.crash.cells import ENDS, ERRORS, KILLS, PAUSES, SHORT_PAUSES, table

PAGE = Path(__file__).parents[2] / "docs" / "crash.md"


def test_every_point_is_struck() -> None:
    """Each failpoint is killed at, and fails, unless it is one where nothing is called or a session ends.

    Those of a transfer are struck by tests/sandbox/test_owners.py.
    """
    transfers = {point for point in POINTS if point.startswith("sandbox.hand_")}
    points = set(POINTS) - transfers
    assert {cell.point for cell in [*KILLS, *ENDS]} == points
    failing = {point for points in ERRORS.values() for point in points}
    assert points - failing == {"harness.run_ended", *(cell.point for cell in ENDS)}
    stopped = {cell.point for cell in [*PAUSES, *SHORT_PAUSES]}
    assert stopped >= {point for point in POINTS if point.startswith("harness.")}
    assert {cell.point for cell in SHORT_PAUSES} <= set(POINTS)


def test_the_docs_have_the_table() -> None:
    """Every row, as the cells say."""
    page = PAGE.read_text()
    assert [row for row in table() if row not in page] == []

"""One service for each column, and in it one sandbox that lives through all attacks on the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sandbox.attacks.ground import COLUMNS, Ground, ground_of


@pytest.fixture(scope="session", params=COLUMNS)
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The service of a column; it must end well after all that it has seen."""
    with ground_of(request.param) as it:
        yield it

"""Fixtures for all tests, the rule for tests that need what a machine may lack, and which files go first."""

from pathlib import Path

import pytest

from tests.support.nats import nats_server, own_nats_server
from tests.support.openbao import openbao, openbao_state, own_openbao
from tests.support.requirements import require

__all__ = ["bubblewrap", "docker_engine", "nats_server", "openbao", "openbao_state", "own_nats_server", "own_openbao"]

# The files that take longest. `make test` gives whole files to its workers: one that begins last would work alone.
LONG = ("conformance/test_hands.py", "sandbox/attacks/test_abuse.py", "crash", "drills", "harness/test_simulation.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first."""
    here = Path(__file__).parent
    items.sort(key=lambda item: not item.path.relative_to(here).as_posix().startswith(LONG))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a marked test on a machine that lacks what its markers name, and fails it in CI."""
    for marker in item.iter_markers():
        require(marker.name)


@pytest.fixture(scope="session")
def docker_engine() -> None:
    """A Docker Engine that answers and has the base image. The same as the marker `docker`, for other fixtures."""
    require("docker")


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """bubblewrap and user namespaces. The same as the marker `bwrap`, for other fixtures."""
    require("bwrap")

"""Fixtures for all tests, and the rule for tests that need what a machine may lack."""

import pytest

from tests.support.nats import nats_server, own_nats_server
from tests.support.openbao import openbao, openbao_state, own_openbao
from tests.support.requirements import require

__all__ = ["bubblewrap", "docker_engine", "nats_server", "openbao", "openbao_state", "own_nats_server", "own_openbao"]


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

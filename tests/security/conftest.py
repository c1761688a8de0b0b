"""What all attacks share: a vault_proxy with its real peers, a fresh secret, and all that is ever logged."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.security.ground import Ground, ground_of
from tests.session.conftest import identities
from tests.session.running import Service, make_settings, running
from tests.support.canary import mint
from tests.support.requirements import require
from tests.vault_proxy.conftest import proxy, session_peer, shop, shop_grant, start, store_settings, strange

__all__ = ["identities", "proxy", "session_peer", "shop", "shop_grant", "start", "store_settings", "strange"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """A whole mesh to attack: one for the run, so a test makes sessions of its own and mends what it breaks."""
    for lack in ("e2e", "bwrap"):
        require(lack)
    async with ground_of(tmp_path_factory.mktemp("ground")) as started:
        yield started


@pytest.fixture
async def service(identities: Path) -> AsyncIterator[Service]:
    """A session service in this process, on the store that forgets."""
    async with running(make_settings(identities, None, "memory"), identities) as started:
        yield started


@pytest.fixture
def canary() -> str:
    """A credential of this run."""
    return mint()


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything that any logger says at any level, with tracebacks and with what records carry beside their text."""
    said = io.StringIO()

    class Everything(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.write(f"{record.name} {self.format(record)} {record.__dict__}\n")

    root = logging.getLogger()
    handler, level = Everything(), root.level
    root.addHandler(handler)
    root.setLevel(logging.NOTSET)
    names = [*logging.Logger.manager.loggerDict, "httpx2", "httpcore2", "hvac", "urllib3", "mcp", "client", "services"]
    before = {name: logging.getLogger(name).level for name in names}
    loud = {name: level for name, level in before.items() if level <= logging.CRITICAL}  # what is silenced stays so
    for name in loud:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield said
    root.removeHandler(handler)
    root.setLevel(level)
    for name, was in loud.items():
        logging.getLogger(name).setLevel(was)

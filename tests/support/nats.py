"""A real nats-server for tests: fsync on every write, as in production."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import pytest

from handmesh.launcher.files import read_strings
from handmesh.launcher.nats import Nats
from handmesh.launcher.ports import free_ports
from handmesh.launcher.processes import Process
from services.session.migrate import migrate
from services.session.operator import OperatorSettings, connected
from tests.support.requirements import require


class Login(TypedDict):
    """Keyword arguments for `nats.connect`."""

    user: str
    password: str


@dataclass
class NatsServer:
    """A server of a test's own, or of the whole run. Credentials files hold JSON {"user", "password"}, mode 0600.

    Its streams are made, as `handmesh up` has them made: `session` may use them, `migrate` may do all.
    """

    directory: Path
    port: int
    monitor_port: int
    url: str
    monitor_url: str
    session_credentials: Path
    migrate_credentials: Path
    process: Process

    @property
    def session_login(self) -> Login:
        """The session service's login."""
        return _login(self.session_credentials)

    @property
    def migrate_login(self) -> Login:
        """The operator's login."""
        return _login(self.migrate_credentials)

    async def kill(self) -> None:
        """Ends the server with SIGKILL."""
        await self.process.kill()

    async def restart(self) -> None:
        """Starts the server again, on the same port and store."""
        await self.process.stop()
        self.process = (await _start(self.directory, self.port, self.monitor_port)).process


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The run's server: shared, so a test uses streams or subjects of its own and neither kills nor restarts it."""
    yield from _serve(tmp_path_factory.mktemp("nats"))


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A fresh server for one test (some 40 ms), which may do anything to it."""
    yield from _serve(tmp_path / "nats")


def _serve(directory: Path) -> Iterator[NatsServer]:
    require("nats")
    port, monitor_port = free_ports(2)
    nats = asyncio.run(_start(directory, port, monitor_port))
    server = NatsServer(
        directory=directory,
        port=port,
        monitor_port=monitor_port,
        url=nats.url,
        monitor_url=nats.monitor_url,
        session_credentials=nats.session_credentials,
        migrate_credentials=nats.migrate_credentials,
        process=nats.process,
    )
    yield server
    asyncio.run(server.process.stop())


def _login(credentials: Path) -> Login:
    kept = read_strings(credentials)
    return Login(user=kept["user"], password=kept["password"])


async def _start(directory: Path, port: int, monitor_port: int) -> Nats:
    nats = await Nats.start(directory / "nats", directory / "nats.log", port, monitor_port)
    try:
        await migrated(nats.url, nats.migrate_credentials)
    except BaseException:
        await nats.process.stop()
        raise
    return nats


async def migrated(url: str, credentials: Path | None) -> None:
    """Makes the session service's streams, as its `migrate` does."""
    async with connected(OperatorSettings(url, credentials, "info"), "migrate") as operator:
        await migrate(operator)

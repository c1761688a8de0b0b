"""Which port each part of a one-machine mesh listens on, and who holds one that is taken."""

import os
import random
import re
import socket
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from handmesh.launcher.errors import PortTaken

HOST = "127.0.0.1"
"""The one address that every part listens on: a one-machine mesh is reached from its machine only."""

DEFAULT_BASE = 7400

SERVICES = ("session", "harness", "sandbox", "vault_proxy")
"""The four services, in the order in which they are shown."""

MOST_REPLICAS = 9
"""Replicas of each service that a one-machine mesh may have."""

STEP = 50
"""How far the fixed ports of a service's replicas lie apart."""

DATA_DIRECTORY_VARIABLE = "HANDMESH_DATA_DIR"
"""Set in the environment of every part, so that a port's holder can be told to be another mesh's."""

FREE_FROM, FREE_TO = 20_000, 32_000
"""Range for ports that nobody chose. It ends below the kernel's ephemeral range, so no outgoing connection of another
process takes such a port between our look and the part's bind."""

BLOCK = 100
"""Ports of that range that a process has for itself, so that no two processes of a machine are given the same one."""

_OFFSETS = {
    "session": 1,
    "harness": 2,
    "sandbox": 3,
    "vault_proxy": 4,
    "session_mesh": 11,
    "harness_mesh": 12,
    "sandbox_mesh": 13,
    "vault_proxy_mesh": 14,
    "vault_proxy_door": 15,
    "nats": 20,
    "nats_monitor": 21,
    "openbao": 30,
    "openbao_cluster": 31,
    "model": 40,
    "session_metrics": 45,
    "harness_metrics": 46,
    "sandbox_metrics": 47,
    "vault_proxy_metrics": 48,
}


@dataclass(frozen=True)
class Ports:
    """The port of every listener, all on 127.0.0.1.

    A service has two: `<service>` for clients (plain text, API key) and `<service>_mesh` for the other services (mTLS).
    `vault_proxy_door` is where the sandbox service brings the connections of hands' doors (mTLS), and
    `<service>_metrics` where Prometheus reads, if the mesh is started with metrics.
    """

    session: int
    harness: int
    sandbox: int
    vault_proxy: int
    session_mesh: int
    harness_mesh: int
    sandbox_mesh: int
    vault_proxy_mesh: int
    vault_proxy_door: int
    nats: int
    nats_monitor: int
    openbao: int
    openbao_cluster: int
    model: int
    session_metrics: int
    harness_metrics: int
    sandbox_metrics: int
    vault_proxy_metrics: int

    @classmethod
    def at(cls, base: int = DEFAULT_BASE) -> "Ports":
        """Returns the fixed layout that starts at `base`: session 7401 and 7411, ... Raises ValueError out of range."""
        if not 1 <= base <= 65_535 - max(_OFFSETS.values()):
            raise ValueError(f"port base {base}: expected 1 to {65_535 - max(_OFFSETS.values())}")
        return cls(**{name: base + offset for name, offset in _OFFSETS.items()})

    @classmethod
    def of_replicas(cls, base: int, replicas: int) -> "tuple[Ports, ...]":
        """Returns the fixed layouts of so many replicas of each service. Raises ValueError out of range."""
        if not 1 <= replicas <= MOST_REPLICAS:
            raise ValueError(f"{replicas} replicas: expected 1 to {MOST_REPLICAS}")
        return tuple(cls.at(base + STEP * replica) for replica in range(replicas))

    @classmethod
    def free(cls) -> "Ports":
        """Returns ports of this process that are free right now, for tests."""
        return cls(**dict(zip(_OFFSETS, free_ports(len(_OFFSETS)), strict=True)))

    def client(self, service: str) -> str:
        """Returns `host:port` for clients of a service."""
        return f"{HOST}:{self.as_mapping()[service]}"

    def mesh(self, service: str) -> str:
        """Returns `host:port` for the other services of the mesh."""
        return f"{HOST}:{self.as_mapping()[f'{service}_mesh']}"

    def of_services(self) -> Iterable[tuple[str, int]]:
        """Returns (name, port) of the four services alone: all that a second replica of each listens on."""
        return (each for each in self.as_mapping().items() if each[0].startswith(SERVICES))

    def metrics(self, service: str) -> str:
        """Returns `host:port` of a service's metrics."""
        return f"{HOST}:{self.as_mapping()[f'{service}_metrics']}"

    def as_mapping(self) -> Mapping[str, int]:
        """Returns {name: port}."""
        return {name: getattr(self, name) for name in _OFFSETS}


@dataclass(frozen=True)
class Holder:
    """The process that listens on a port. All but `port` is None where the system does not say."""

    port: int
    pid: int | None = None
    command: str | None = None
    data_directory: str | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that this user may not see"
        if self.data_directory is not None:
            return f"another handmesh, with its data in {self.data_directory}"
        return f"pid {self.pid}: {self.command}"


def part_of(service: str, replica: int) -> str:
    """Returns what a replica of a service, counted from 0, is called as a part of the mesh: `session`, `session-2`."""
    return service if replica == 0 else f"{service}-{replica + 1}"


def replica_of(part: str) -> tuple[str, int]:
    """Returns the service and the number of a replica, as `part_of` takes them. Other parts are their own first."""
    service, _, number = part.partition("-")
    return service, int(number) - 1 if number else 0


def free_ports(count: int) -> list[int]:
    """Returns `count` different ports on which nobody listens right now, and which no other process is given here.

    A port comes again only after all others that the process has. Raises PortTaken when there are too few.
    """
    mine = _ports_of(os.getpid())
    found: list[int] = []
    looked = 0
    while len(found) < count:
        if looked == len(mine):
            mine.extendleft(_claim_block())
        if _is_free(mine[0]):
            found.append(mine[0])
        mine.rotate(-1)
        looked += 1
    return sorted(found)


def free_base() -> int:
    """Returns a base for `Ports.at` whose ports no other process is given. Raises PortTaken when there is none."""
    while True:
        block = _claim_block()
        if all(map(_is_free, block)):
            return block.start - 1


def require_free(ports: Iterable[int]) -> None:
    """Raises PortTaken, naming the holder of each port that is taken."""
    taken: dict[str, list[int]] = {}  # many ports may have one holder: it is named once
    for port in ports:
        if not _is_free(port):
            taken.setdefault(str(holder_of(port)), []).append(port)
    if taken:
        holders = "; ".join(f"{_listed(held)} held by {holder}" for holder, held in taken.items())
        raise PortTaken(f"{holders}. Stop it, or choose other ports with --port-base")


def holder_of(port: int) -> Holder:
    """Returns who listens on `port`, as far as /proc tells."""
    pid = _process_with(_listening_inodes(port))
    if pid is None:
        return Holder(port)
    process = Path("/proc") / str(pid)
    command = _read(process / "cmdline").replace("\0", " ").strip()
    variables = dict(entry.split("=", 1) for entry in _read(process / "environ").split("\0") if "=" in entry)
    return Holder(port, pid, command or None, variables.get(DATA_DIRECTORY_VARIABLE))


def _listed(ports: list[int]) -> str:
    return f"port {ports[0]} is" if len(ports) == 1 else f"ports {', '.join(map(str, sorted(ports)))} are"


def listens(pid: int, port: int) -> bool:
    """Says whether this very process listens on `port`: what answers there is then not someone else."""
    return _has_one_of(Path("/proc") / str(pid), _listening_inodes(port))


@cache
def _ports_of(pid: int) -> deque[int]:
    """Returns the ports that a process has claimed, by its id: a forked one claims its own. The first is next."""
    return deque()


def _claim_block() -> range:
    """Claims a block that no process has, and returns its ports but the first one, which is the sign of the claim.

    The sign is a socket that is bound there for as long as this process lives. It has not SO_REUSEADDR, so the system
    binds nobody else to that port, and it is not inherited by the programs that this process starts.
    """
    firsts = list(range(FREE_FROM, FREE_TO, BLOCK))
    random.shuffle(firsts)
    for first in firsts:
        sign = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sign.bind((HOST, first))
        except OSError:
            sign.close()
            continue
        sign.detach()  # never closed
        return range(first + 1, first + BLOCK)
    raise PortTaken(f"found no {BLOCK} free ports from {FREE_FROM} to {FREE_TO}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the parts do: a port whose old connections still wind down can be taken again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _listening_inodes(port: int) -> set[str]:
    """Returns the inodes of the sockets that listen on `port`, from the kernel's tables of TCP sockets."""
    listening = "0A"
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in _read(Path("/proc/net") / table).splitlines()[1:]:
            fields = line.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if state == listening and int(local.rpartition(":")[2], 16) == port:
                inodes.add(inode)
    return inodes


def _process_with(inodes: set[str]) -> int | None:
    """Returns the process that has one of these sockets open, if this user may see it."""
    for process in Path("/proc").iterdir():
        if re.fullmatch(r"[0-9]+", process.name) and _has_one_of(process, inodes):
            return int(process.name)
    return None


def _has_one_of(process: Path, inodes: set[str]) -> bool:
    """Says whether a process, given by its folder in /proc, has one of these sockets open, as far as one may see."""
    sockets = {f"socket:[{inode}]" for inode in inodes}
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return False  # it has ended, or is another user's
    return any(_target(descriptor) in sockets for descriptor in descriptors)


def _target(descriptor: Path) -> str | None:
    try:
        return str(descriptor.readlink())
    except OSError:
        return None  # closed meanwhile


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""

"""The lock on a data directory: one launcher at a time, and a word for others about who it is.

The lock is the kernel's (flock), so it ends with its holder however that ends; the file's content is only the word.
"""

import asyncio
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from handmesh.launcher.errors import AlreadyRunning, LaunchError
from handmesh.launcher.files import private_directory
from handmesh.launcher.ports import Ports

STOP_WITHIN = 30.0
"""Seconds that a launcher has to stop its mesh when another process asks it to."""

STOP_POLL = 0.01

LOCK_TRIES = 20
"""A reader of the word holds the lock for an instant (see `running`), so one refusal proves nothing."""


@dataclass(frozen=True)
class Running:
    """The launcher that holds a data directory, and where its mesh listens."""

    pid: int
    ports: Ports
    others: tuple[Ports, ...] = ()  # of the services' other replicas


class Lock:
    """The held lock. Releasing it, or the end of this process, lets another launcher in."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, data_directory: Path, ports: Ports, others: Sequence[Ports] = ()) -> "Lock":
        """Takes the lock and leaves word. Raises AlreadyRunning, saying who holds it, at once and without waiting."""
        private_directory(data_directory)
        descriptor = os.open(lock_file(data_directory), os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_lock(descriptor):
            os.close(descriptor)
            holder = _read(data_directory)
            pid = holder.pid if holder is not None else None
            raise AlreadyRunning(f"a mesh already runs on {data_directory} (pid {pid or 'unknown'})", pid)
        word = json.dumps({"pid": os.getpid(), "ports": asdict(ports), "others": [*map(asdict, others)]}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, word, 0)
        return cls(descriptor)

    def release(self) -> None:
        """Lets go. Call it once."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def lock_file(data_directory: Path) -> Path:
    """Returns the file that is locked. It stays when nobody holds it."""
    return data_directory / "lock"


def running(data_directory: Path) -> Running | None:
    """Returns the launcher that holds a data directory, or None. A client finds its mesh's ports here."""
    try:
        descriptor = os.open(lock_file(data_directory), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(data_directory)
    finally:
        os.close(descriptor)
    return None


async def stop_running(data_directory: Path) -> bool:
    """Asks the launcher that holds a data directory to stop, and waits until it has. False when there is none.

    Raises LaunchError when it still runs after STOP_WITHIN seconds.
    """
    holder = running(data_directory)
    if holder is None:
        return False
    os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_WITHIN
    while running(data_directory) is not None:
        if time.monotonic() > deadline:
            raise LaunchError(f"the mesh on {data_directory} (pid {holder.pid}) did not stop within {STOP_WITHIN:g} s")
        await asyncio.sleep(STOP_POLL)
    return True


def _try_lock(descriptor: int) -> bool:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.sched_yield()
        else:
            return True
    return False


def _read(data_directory: Path) -> Running | None:
    """Returns the word that the holder left, None when there is none yet."""
    try:
        word = json.loads(lock_file(data_directory).read_text())
        others = tuple(map(_ports, word.get("others", ())))
        return Running(pid=word["pid"], ports=_ports(word["ports"]), others=others)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ports(word: Mapping[str, int]) -> Ports:
    """Returns the ports that a launcher has, which may be of another version: what it has not is 0, what it has beyond
    these is left out. So a mesh can be found, and stopped, while it is upgraded."""
    return Ports(**{each.name: word.get(each.name, 0) for each in fields(Ports)})

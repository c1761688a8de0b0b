"""Finds and ends the processes of tools, and tells when the kernel ended one for want of memory.

Every process that a tool starts stays a descendant of the runner: the runner is process 1 of its namespace or a
subreaper, so an orphan becomes its child. What belongs to no running execution is a stray.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

MARK = "HANDMESH_MARK"
_SET_DUMPABLE, _CAPBSET_DROP, _SET_CHILD_SUBREAPER = 4, 24, 36
_FREEZE_ROUNDS = 50

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Makes this process the parent of every orphan below it, and keeps its memory from tools of the same user."""
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def offer_to_oom_killer() -> None:
    """Makes the kernel choose this process before the runner. For children, before they become a tool."""
    _libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise /proc/self belongs to root
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no such file in some sandboxes; the largest process is chosen there


def give_up_groups() -> None:
    """Leaves every group, and keeps all that comes below this process from ever gaining a capability."""
    capability = 0
    while _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])


def become(uid: int) -> None:
    """Turns this process into one of a user without any capability, for good."""
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


@contextlib.contextmanager
def really(uid: int | None) -> Iterator[None]:
    """Makes a user the real one of this process for a moment, in which it goes on to act as itself.

    A child that is spawned meanwhile and resets its ids becomes that user's, and its limits can be set.
    """
    if uid is None:
        yield
        return
    own, group = os.getuid(), os.getgid()
    os.setresgid(uid, -1, -1)
    os.setresuid(uid, -1, -1)
    try:
        yield
    finally:
        os.setresuid(own, -1, -1)
        os.setresgid(group, -1, -1)


@contextlib.contextmanager
def acting_as(uid: int | None) -> Iterator[None]:
    """Has this process reach files as a user and its group for a moment. Before any tool runs."""
    own, group = os.geteuid(), os.getegid()
    if uid is not None:
        os.setegid(uid)
        os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(own)
        os.setegid(group)


class Watched:
    """A file of the kernel that is read again and again: opened once, if it is there."""

    def __init__(self, path: str) -> None:
        """Opens it."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def read(self) -> bytes | None:
        """Returns what is in it now, at most 64 KiB. None when it is not there."""
        try:
            return os.pread(self._descriptor, 64 << 10, 0) if self._descriptor >= 0 else None
        except OSError:
            return None


def oom_kills(files: list[Watched]) -> int:
    """Counts the processes of this sandbox that the kernel has killed for want of memory."""
    for file in files:
        for line in (file.read() or b"").splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def only_children(children: Watched, known: set[int]) -> bool:
    """Tells, at little cost, whether this process certainly has no children but these.

    `children` is /proc/self/task/<pid>/children, which a kernel may lack.
    """
    listed = children.read()
    return listed is not None and known.issuperset(map(int, listed.split()))


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signals a process that may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # a process of another user, which no tool of ours can have made


def kill_group(leader: int) -> None:
    """Kills a process group that may be gone already."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def strays(leaders: set[int], marks: set[str]) -> list[int]:
    """Lists the living descendants that belong to no execution that runs.

    One belongs if it descends from the first process of one, or if it is an orphan with the mark of one.
    """
    below: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [pid for pid in below.get(os.getpid(), ()) if pid not in leaders and _mark(pid) not in marks]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(below.get(pid, ()))
    return found


def end_all(find: Callable[[], list[int]]) -> None:
    """Kills all that `find` finds, also when they fork faster than they can be found: stops them first."""
    stopped: set[int] = set()
    for _ in range(_FREEZE_ROUNDS):
        fresh = set(find()) - stopped
        if not fresh:
            break
        for pid in fresh:
            kill(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        kill(pid)


def _parents() -> dict[int, int]:
    """Maps every living process to its parent."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # gone meanwhile
        if fields[0] != b"Z":
            parents[int(name)] = int(fields[1])
    return parents


def _mark(pid: int) -> str:
    """Reads the mark in a process's environment. Empty when there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(1 << 20).split(b"\0")
    except OSError:
        return ""
    prefix = MARK.encode() + b"="
    for variable in variables:
        if variable.startswith(prefix):
            return variable[len(prefix) :].decode("utf-8", "replace")
    return ""

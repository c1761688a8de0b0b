"""Processes made ahead of time: each waits for one order, becomes that execution and ends with it.

Making a process takes longer than most tools run; so one is ready before it is wanted. It has its own session and
group, no terminal, standard input at its end, its limits and its user before it knows what to do.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
from typing import TYPE_CHECKING, Any

from . import files, processes, search, shell

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .config import Config

MAX_ANSWER_BYTES = 30 << 20
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK = 1033, 1, 2
_SIGNALS = (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT)
_CPU_SECONDS = 30  # of a file tool: a regular expression can take for ever
_GUEST_CPU_SECONDS = 120  # of a transfer

FILE_TOOLS: dict[str, Callable[[str, dict[str, Any]], files.Answer]] = {
    "read": files.read,
    "write": files.write,
    "edit": files.edit,
    "glob": search.glob,
    "grep": search.grep,
    "_put": files.put,
}


class Nest:
    """Where processes are made ahead: what is the same for all of them."""

    def __init__(self, config: Config) -> None:
        """Keeps the numbers of the descriptors that children are given, so that none of the runner's own has one."""
        self.config = config
        self.null = os.open(os.devnull, os.O_RDONLY)
        while self.null <= 2:  # the standard ones are there, whoever has started the runner
            self.null = os.dup(self.null)
        os.set_inheritable(self.null, False)
        for number in shell.DESCRIPTORS:
            os.dup2(self.null, number, inheritable=False)
        self.limits: dict[str, int] = {}
        for name, value in config.rlimits.items():
            most = resource.getrlimit(_limit(name))[1]
            self.limits[name] = value if most == resource.RLIM_INFINITY else min(value, most)
        self.shell = shell.arguments(config.workspace, self.limits)


def _limit(name: str) -> int:
    kind: int = getattr(resource, "RLIMIT_" + name.upper())
    return kind


class Spare:
    """A process that waits for its order. `pipe` is the read end of its output, not blocking."""

    def __init__(self, nest: Nest, state: bytes | None, mark: str, alone: bool) -> None:
        """Makes a bash in a state or, for the file tools, a fork of the runner, which has none.

        Raises OSError when no process can be made.

        `alone` says that no tool runs. A bash is then spawned in half the time of a fork; but the runner sleeps until
        that process is a bash, and a tool that stops all it can reach could make it sleep for ever.
        """
        self.mark = mark
        self.state = state
        self.side = os.memfd_create("side", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)  # a byte, then its state or answer
        fcntl.fcntl(self.side, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_SEAL)  # who has begun cannot deny it
        self._order = os.memfd_create("order", os.MFD_CLOEXEC)
        go, self._go = os.pipe()
        self.pipe, output = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            fcntl.fcntl(output, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # over the user's quota of pipe memory: the usual 64 KiB do as well
        given = {0: nest.null, 1: output, 2: output, shell.GO_FD: go}
        given.update({shell.ORDER_FD: self._order, shell.SIDE_FD: self.side})
        env = {**nest.config.env, processes.MARK: mark}
        left = os.memfd_create("state", os.MFD_CLOEXEC)
        given[shell.STATE_FD] = left
        try:
            _fill(left, state or b"")
            if state is None:
                self.pid = _fork(nest, given, env, _be_file_tool)
            else:
                self.pid = (_spawn(nest, given, env) if alone else 0) or _fork(nest, given, env, _be_bash)
        except OSError:
            self.pid = 0
            self.drop()
            raise
        finally:
            for descriptor in (go, output, left):
                os.close(descriptor)

    @property
    def is_shell(self) -> bool:
        """Whether it is a bash."""
        return self.state is not None

    def give(self, order: bytes) -> bool:
        """Lets it begin. False when it was killed while it waited; it then has run nothing."""
        _fill(self._order, order)
        processes.kill(self.pid, signal.SIGCONT)  # a tool may have stopped it
        try:
            os.write(self._go, b"!")
        except BrokenPipeError:
            return False
        finally:
            for descriptor in (self._order, self._go):
                os.close(descriptor)
            self._go = -1
        return True

    def drop(self) -> None:
        """Gives back the descriptors of one that is not used."""
        for descriptor in (self.side, self.pipe, *((self._order, self._go) if self._go >= 0 else ())):
            os.close(descriptor)


def _fill(descriptor: int, content: bytes) -> None:
    """Writes a file from its start, and leaves the offset, which the child shares, where it is."""
    offset = 0
    while offset < len(content):
        offset += os.pwrite(descriptor, content[offset:], offset)


def _spawn(nest: Nest, given: dict[int, int], env: dict[str, str]) -> int:
    """Makes a bash without copying the runner. Returns its pid, 0 where that is not possible."""
    uid = nest.config.tool_uid
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in given.items()]
    try:
        with processes.really(uid):
            return os.posix_spawn(
                shell.PATH,
                nest.shell,
                env,
                file_actions=actions,
                resetids=uid is not None,
                setsid=True,
                setsigdef=_SIGNALS,
            )
    except (FileNotFoundError, NotImplementedError):  # no bash, or a C library that makes no sessions
        return 0


def _fork(nest: Nest, given: dict[int, int], env: dict[str, str], body: Callable[[Nest, dict[str, str]], None]) -> int:
    """Makes a copy of the runner that becomes something else. Returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:  # in the child; what goes wrong is said on standard error, and the exit code is 127
        _prepare(nest, given)
        body(nest, env)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _prepare(nest: Nest, given: dict[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    processes.offer_to_oom_killer()
    for target, source in given.items():
        os.dup2(source, target, inheritable=True)
    low, high = min(shell.DESCRIPTORS), max(shell.DESCRIPTORS)
    os.closerange(3, low)
    os.closerange(high + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for name, value in nest.limits.items():
        resource.setrlimit(_limit(name), (value, value))
    if nest.config.tool_uid is not None:
        processes.become(nest.config.tool_uid)
    try:
        os.chdir(nest.config.workspace)
    except OSError:
        os.chdir("/")


def _be_bash(nest: Nest, env: dict[str, str]) -> None:
    try:
        os.execve(shell.PATH, nest.shell, env)
    except FileNotFoundError:
        os.read(shell.GO_FD, 1)
        os.write(2, b"this sandbox has no /bin/bash")


def _be_file_tool(nest: Nest, env: dict[str, str]) -> None:
    if not os.read(shell.GO_FD, 1):
        os._exit(0)  # the runner has ended
    os.write(shell.SIDE_FD, b".")  # it has begun
    os.environ.clear()
    os.environ.update(env)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    order = json.loads(os.pread(shell.ORDER_FD, os.fstat(shell.ORDER_FD).st_size, 0))
    answer: dict[str, Any]
    try:
        said = FILE_TOOLS[order["name"]](nest.config.workspace, order["input"])
        answer = {"text": said.text, "blocks": said.blocks, "failed": False}
    except files.ToolFailed as failure:
        answer = {"text": str(failure), "failed": True}
    except OSError as error:
        path = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        answer = {"text": f"{path}{error.strerror}", "failed": True}
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        answer = {"text": f"{type(error).__name__}: {error}", "failed": True}
    data = json.dumps(answer).encode("ascii")
    while data:
        data = data[os.write(shell.SIDE_FD, data) :]
    os._exit(1 if answer["failed"] else 0)


def guest(nest: Nest, caller: socket.socket, request: dict[str, Any]) -> int:
    """Makes a process that serves a transfer, and returns its number. Raises OSError when none can be made."""
    pid = os.fork()
    if pid:
        return pid
    try:
        from . import transfers

        transfers.load(request["do"])  # now, while what the runner lies in can be read
        null = nest.null
        _prepare(nest, {0: null, 1: null, 2: null, shell.GO_FD: caller.fileno()})
        resource.setrlimit(resource.RLIMIT_CPU, (_GUEST_CPU_SECONDS, _GUEST_CPU_SECONDS))
        transfers.serve(shell.GO_FD, nest.config.workspace, request)
    finally:
        os._exit(0)  # what went wrong, the caller sees from a connection that ends

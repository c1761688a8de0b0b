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

OUTPUTS = "outputs"  # in the workspace: where people look for what an agent has made
MAX_ANSWER_BYTES = 30 << 20
_HIGH_FD = 300  # above every descriptor that a child is given
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
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


class Spare:
    """A process that waits for its order. `pipe` is the read end of its output, not blocking."""

    def __init__(self, config: Config, shell_wanted: bool, mark: str) -> None:
        """Makes a bash or, for the file tools, a fork of the runner. Raises OSError when no process can be made."""
        self.mark = mark
        self.is_shell = shell_wanted
        self.side = os.memfd_create("side", os.MFD_CLOEXEC)  # a byte at the start, then its state or its answer
        self._order = os.memfd_create("order", os.MFD_CLOEXEC)
        self._state = os.memfd_create("state", os.MFD_CLOEXEC)
        go, self._go = os.pipe()
        self.pipe, output = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        os.set_blocking(self.pipe, False)
        try:
            fcntl.fcntl(output, _F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError:
            pass  # over the user's quota of pipe memory: the usual 64 KiB do as well
        given = {0: null, 1: output, 2: output, shell.GO_FD: go, shell.ORDER_FD: self._order, shell.SIDE_FD: self.side}
        env = {**config.env, processes.MARK: mark}
        if shell_wanted:
            given[shell.STATE_FD] = self._state
        try:
            self.pid = os.fork()
            if not self.pid:
                _child(config, given, lambda: _begin(config, env, shell_wanted))
        except OSError:
            self.pid = 0
            self.drop()
            raise
        finally:
            for descriptor in (go, output, null):
                os.close(descriptor)

    def give(self, order: bytes, state: bytes) -> bool:
        """Lets it begin. False when it was killed while it waited; it then has run nothing."""
        for descriptor, content in ((self._order, order), (self._state, state)):
            while content:
                content = content[os.write(descriptor, content) :]
        processes.kill(self.pid, signal.SIGCONT)  # a tool may have stopped it
        try:
            os.write(self._go, b"!")
        except BrokenPipeError:
            return False
        finally:
            for descriptor in (self._order, self._state, self._go):
                os.close(descriptor)
            self._go = -1
        return True

    def drop(self) -> None:
        """Gives back the descriptors of one that is not used."""
        for descriptor in (self.side, self.pipe, *((self._order, self._state, self._go) if self._go >= 0 else ())):
            os.close(descriptor)


def _child(
    config: Config, given: dict[int, int], body: Callable[[], None], load: Callable[[], None] = lambda: None
) -> None:
    """Runs in the child and never returns. What goes wrong is said on standard error; the exit code is 127.

    `load` is called first, while the runner's own files can be read.
    """
    try:
        load()
        _prepare(config, given)
        body()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _prepare(config: Config, given: dict[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    processes.offer_to_oom_killer()
    _hand_over(given)
    for name, value in config.rlimits.items():
        kind = getattr(resource, "RLIMIT_" + name.upper())
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))
    if config.tool_uid is not None:
        processes.become(config.tool_uid)
    try:
        os.chdir(config.workspace)
    except OSError:
        os.chdir("/")


def _hand_over(given: dict[int, int]) -> None:
    """Gives the child exactly these descriptors; everything else of the runner is closed."""
    high = {target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for target, source in given.items()}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in high.values():
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that listed them
    for target, source in high.items():
        os.dup2(source, target, inheritable=True)
        os.close(source)


def _begin(config: Config, env: dict[str, str], shell_wanted: bool) -> None:
    if env[processes.MARK] == "1":  # the first process that is the tools' user
        try:
            os.mkdir(os.path.join(config.workspace, OUTPUTS))
        except OSError:
            pass  # there already, or no room; it is a convenience
    if shell_wanted:
        _be_shell(env)
    else:
        _be_file_tool(config, env)


def _be_shell(env: dict[str, str]) -> None:
    try:
        os.execve("/bin/bash", shell.ARGV, env)
    except FileNotFoundError:
        os.read(shell.GO_FD, 1)
        os.write(2, b"this sandbox has no /bin/bash")


def _be_file_tool(config: Config, env: dict[str, str]) -> None:
    if not os.read(shell.GO_FD, 1):
        os._exit(0)  # the runner has ended
    os.write(shell.SIDE_FD, b".")  # it has begun
    os.environ.clear()
    os.environ.update(env)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    order = json.loads(os.pread(shell.ORDER_FD, os.fstat(shell.ORDER_FD).st_size, 0))
    answer: dict[str, Any]
    try:
        said = FILE_TOOLS[order["name"]](config.workspace, order["input"])
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


def guest(config: Config, caller: socket.socket, request: dict[str, Any]) -> int:
    """Makes a process that serves a transfer, and returns its number. Raises OSError when none can be made."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        pid = os.fork()
        if not pid:
            given = {0: null, 1: null, 2: null, shell.GO_FD: caller.fileno()}
            _child(config, given, lambda: _be_guest(config, request), lambda: _load(request))
    finally:
        os.close(null)
    return pid


def _load(request: dict[str, Any]) -> None:
    from . import transfers

    transfers.load(request["do"])


def _be_guest(config: Config, request: dict[str, Any]) -> None:
    import socket

    from . import transfers

    resource.setrlimit(resource.RLIMIT_CPU, (_GUEST_CPU_SECONDS, _GUEST_CPU_SECONDS))
    transfers.serve(socket.socket(fileno=shell.GO_FD), config.workspace, request)
    os._exit(0)

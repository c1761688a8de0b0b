"""The processes of the executions that have no result yet: starts, watches, ends and sweeps them."""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING

from . import processes, shell
from .problem import Problem
from .spare import FILE_TOOLS, Nest, Spare, guest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from .config import Config
    from .execution import Execution

MAX_RUNNING = 128
MAX_GUESTS = 32  # transfers at once
_SWEEP_SECONDS = 0.01  # between two looks at what killed processes are left
_SPARE_SECONDS = 0.02  # after a start, in which most executions end: a spare is cheaper then, see `Spare`


class Children:
    """Everything below the runner in the tree of processes, and the state of the shell."""

    def __init__(self, config: Config, selector: selectors.BaseSelector, changed: Callable[[Execution], None]) -> None:
        """Makes this process the parent of all orphans. `changed` is told of new output and of an end."""
        self._config = config
        self._selector = selector
        self._changed = changed
        self._live: list[Execution] = []
        self._spares: dict[bool, Spare] = {}  # by whether it is a shell
        self._guests: set[int] = set()  # processes of transfers: of no execution, and no strays
        self._spares_due = 0.0  # monotonic
        self._marks = 0
        self._state = shell.fresh(config.workspace)
        self._own_env = dict(config.env)
        self._nest = Nest(config)
        self._below = processes.Watched(f"/proc/self/task/{os.getpid()}/children")
        processes.adopt_orphans()
        if config.tool_uid is not None:
            processes.give_up_groups()

    def start(self, run: Execution) -> None:
        """Starts an execution. Raises Problem when it cannot be one, or when there is no room for it."""
        order = run.order
        if order.name == "bash":
            if order.input.get("restart"):
                self._state = shell.fresh(self._config.workspace)
                if not order.input.get("command"):
                    run.settle("OK", "bash session restarted")
                    return
            command = order.input.get("command")
            if not isinstance(command, str) or "\0" in command:
                raise Problem("TOOL_INPUT_INVALID", "bash needs a command without a NUL byte")
        elif order.name not in FILE_TOOLS:
            raise Problem("TOOL_UNKNOWN", "the runner has no such tool")
        if len(self._live) >= MAX_RUNNING:
            raise Problem("FULL", f"{MAX_RUNNING} executions are running")
        self._launch(run)
        self._live.append(run)
        self._spares_due = time.monotonic() + _SPARE_SECONDS

    def _launch(self, run: Execution) -> None:
        while True:
            spare = self._ready(run.order.name == "bash")
            if run.start(spare):
                break
            spare.drop()  # it was killed while it waited; the next is fresh
        self._selector.register(run.pipe, selectors.EVENT_READ, lambda _: self._readable(run))

    def _ready(self, shell_wanted: bool) -> Spare:
        spare = self._spares.pop(shell_wanted, None)
        if spare is not None and self._fits(spare):
            return spare
        if spare is not None:
            self._drop(spare)
        try:
            return self._spare(shell_wanted)
        except OSError:
            self._sweep()
            raise Problem("FULL", "the sandbox cannot start another process") from None

    def _spare(self, shell_wanted: bool) -> Spare:
        self._marks += 1
        state = self._state if shell_wanted else None
        return Spare(self._nest, state, str(self._marks), alone=not self._live)

    def _fits(self, spare: Spare) -> bool:
        """Tells whether a spare is in the shell's state of now."""
        return spare.state in (None, self._state)

    def _drop(self, spare: Spare) -> None:
        processes.kill(spare.pid)
        spare.drop()

    def outfit(self, variables: dict[str, str]) -> None:
        """Gives what starts from now on more variables. A shell's own state, once it has one, goes before them."""
        self._nest.config.env.update(variables)
        for spare in self._spares.values():
            self._drop(spare)
        self._spares.clear()

    def renew(self) -> None:
        """Takes the variables back, and forgets the shell's state: the sandbox has another owner."""
        self._state = shell.fresh(self._config.workspace)
        self._nest.config.env.clear()
        self.outfit(self._own_env)

    def check_guest(self) -> None:
        """Raises Problem when there is no room for another transfer."""
        if len(self._guests) >= MAX_GUESTS:
            raise Problem("FULL", f"{MAX_GUESTS} transfers are running")

    def host(self, caller: socket.socket, request: dict[str, Any]) -> None:
        """Starts a process that answers a caller by a transfer. Without one to be had, the caller is hung up on."""
        try:
            self._guests.add(guest(self._nest, caller, request))
        except OSError:
            self._sweep()

    def turn(self) -> None:
        """Does what is due: collects the dead, enforces deadlines, ends what has ended, makes spares."""
        self._reap()
        now = time.monotonic()
        for run in list(self._live):
            overdue = now >= run.deadline
            if run.running and not overdue:
                continue
            if run.running and run.stopped is None:
                run.stop("TIMEOUT")
                continue
            if self._sweep() or overdue:  # overdue after all: it sleeps where no signal reaches it
                self._finish(run)
        if not self._live or now >= self._spares_due:
            self._make_spares()

    def _make_spares(self) -> None:
        for shell_wanted in (True, False):
            spare = self._spares.get(shell_wanted)
            if spare is not None and not self._fits(spare):
                self._drop(self._spares.pop(shell_wanted))
            if shell_wanted not in self._spares:
                try:
                    self._spares[shell_wanted] = self._spare(shell_wanted)
                except OSError:
                    pass  # no process to be had now; asked again when one is wanted

    def patience(self) -> float:
        """Tells for how many seconds nothing is due unless something happens."""
        if any(not run.running for run in self._live):
            return _SWEEP_SECONDS
        due = min((run.deadline for run in self._live), default=float("inf"))
        now = time.monotonic()
        if self._live and len(self._spares) < 2 and now < self._spares_due:
            due = min(due, self._spares_due)
        return max(0.0, due - now)

    def end(self) -> None:
        """Kills everything."""
        processes.end_all(lambda: processes.strays(set(), set()))

    def _readable(self, run: Execution) -> None:
        if run.read() < 0:
            self._unlisten(run)  # all its writers are gone; it ends when its first process does
        self._changed(run)

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            first = {run.pid: run for run in self._live if run.running}  # anew: one may have been started once more
            if ended.si_pid in first:
                processes.kill_group(ended.si_pid)  # before the number can be used again
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid in first:
                self._ended(first[ended.si_pid], status)
            self._guests.discard(ended.si_pid)
            for kind, spare in list(self._spares.items()):
                if spare.pid == ended.si_pid:
                    self._spares.pop(kind).drop()

    def _ended(self, run: Execution, status: int) -> None:
        run.exited(status)
        self._unlisten(run)
        if run.stopped is None and not run.begun() and time.monotonic() < run.until:
            run.take_back()
            try:
                self._launch(run)
            except Problem as problem:
                self._live.remove(run)
                run.settle("TOOL_ERROR", str(problem))
                self._changed(run)

    def _sweep(self) -> bool:
        """Kills whatever belongs to no running execution. True when nothing is left."""
        running = [run for run in self._live if run.running]
        known = {run.pid for run in running} | {spare.pid for spare in self._spares.values()} | self._guests
        if processes.only_children(self._below, known):
            return True
        marks = {run.mark for run in running}
        if not processes.strays(known, marks):
            return True
        if not running and not self._guests and os.getpid() == 1:
            processes.kill(-1)  # the spares too: at once, also what forks faster than it can be found
            for spare in self._spares.values():
                spare.drop()
            self._spares.clear()
        else:
            processes.end_all(lambda: processes.strays(known, marks))
        return False

    def _unlisten(self, run: Execution) -> None:
        if run.pipe in self._selector.get_map():
            self._selector.unregister(run.pipe)

    def _finish(self, run: Execution) -> None:
        self._unlisten(run)
        self._live.remove(run)
        left = run.finish()
        self._changed(run)  # who waits for the result waits no longer
        if left:
            self._state = shell.kept(left)

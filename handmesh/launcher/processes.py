"""Child processes of a mesh: each in its own process group, with a log file, waited for and ended within limits.

A part lives no longer than the launcher, whatever ends it, where the system's `setpriv` is found: the kernel then sends
the part SIGTERM when the *thread* that started it ends. So parts are started from the main thread.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from handmesh.launcher.errors import PartFailed
from handmesh.launcher.files import private_directory
from handmesh.launcher.ports import listens

STOP_GRACE = 8.0
"""Seconds that a part has to end by itself after SIGTERM, before it gets SIGKILL: a service's own 5 and some."""

READY_POLL = 0.005
"""Seconds between two looks at whether a part is ready or gone."""

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes. A log file larger than this when its part starts is set aside as `<name>.log.old`."""

TAIL_LINES = 15
"""Lines of a dead part's log that an error quotes."""

TAIL_BYTES = 8 * 1024

Probe = Callable[[], Awaitable[bool]]
"""Answers whether a part is ready. It returns False, and raises nothing, while the part still starts."""


@dataclass(frozen=True)
class Command:
    """How to start one part. `environment` is the child's whole environment: nothing is inherited."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    directory: Path


class Process:
    """One started part."""

    def __init__(self, command: Command, child: subprocess.Popen[bytes]) -> None:
        self._command = command
        self._child = child

    @classmethod
    def start(cls, command: Command, *, die_with_launcher: bool = True) -> "Process":
        """Starts `command` at once and returns without waiting for it to be ready. Call it on the main thread.

        Its standard input is empty; its output goes to the end of its log. Raises OSError when the program cannot run.
        """
        private_directory(command.log.parent)
        if command.log.exists() and command.log.stat().st_size > LOG_LIMIT:
            command.log.replace(command.log.with_suffix(".log.old"))
        arguments = list(command.arguments)
        setpriv = shutil.which("setpriv")
        if die_with_launcher and setpriv is not None:
            arguments = [setpriv, "--pdeathsig", "TERM", *arguments]
        # The log is private as a whole: a part may say more about its work than other users should read.
        descriptor = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                cwd=command.directory,
                env=dict(command.environment),
                process_group=0,
            )
        finally:
            os.close(descriptor)
        return cls(command, child)

    @property
    def name(self) -> str:
        """The part's name, as in its log file."""
        return self._command.name

    @property
    def command(self) -> Command:
        """What it was started with; starting it again restarts the part."""
        return self._command

    @property
    def pid(self) -> int:
        """The process id, which is also its process group's."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def failure(self, what: str) -> PartFailed:
        """Returns the error that says `what` about this part and quotes the end of its log."""
        tail = log_tail(self._command.log)
        quoted = "\n".join(f"    {line}" for line in tail) or "    (its log is empty)"
        message = f"{self.name} {what}. The end of {self._command.log}:\n{quoted}"
        return PartFailed(message, self.name, self._command.log)

    async def ready(self, probe: Probe, *, within: float) -> None:
        """Waits until `probe` says yes. Raises PartFailed when the part ends first, or after `within` seconds."""
        deadline = time.monotonic() + within
        while not await probe():
            code = self.exit_code
            if code is not None:
                raise self.failure(f"ended while it started ({describe_exit(code)})")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {within:g} s")
            await asyncio.sleep(READY_POLL)

    def listens(self, port: int) -> bool:
        """Says whether this part, and not someone else, listens on `port`."""
        return listens(self.pid, port)

    async def ended(self) -> int:
        """Waits until the part has ended and returns its exit code. It sets no limit: the caller does."""
        if self.exit_code is None:
            await self._exit()
        return self._child.wait()

    async def stop(self, grace: float = STOP_GRACE) -> int:
        """Asks the part to end, insists after `grace` seconds, and returns its exit code. May be called twice."""
        if self.exit_code is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace):
                    await self._exit()
            except TimeoutError:
                pass
            # Children that outlived the part have no one to serve. While nothing has reaped the part, the kernel keeps
            # its group's number from being given to anyone else.
            if self._child.returncode is None:
                os.killpg(self._child.pid, signal.SIGKILL)
        return self._child.wait()

    async def kill(self) -> int:
        """Kills the process itself with SIGKILL, not its children, as a crash would, and waits for its end."""
        self._child.kill()
        return await self.ended()

    async def _exit(self) -> None:
        """Waits until the process, which no one has reaped, has ended, without reaping it."""
        exited = asyncio.Event()
        loop = asyncio.get_running_loop()
        descriptor = os.pidfd_open(self._child.pid)
        try:
            loop.add_reader(descriptor, exited.set)
            await exited.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def describe_exit(code: int) -> str:
    """Returns `exit code 3`, or `killed by SIGSEGV`, for an exit code as `Process.exit_code` gives it."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def log_tail(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """Returns the last lines of a log, oldest first; none when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []

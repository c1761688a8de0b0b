"""Runs commands, each in a fresh bash that was made before it was wanted: to make a process takes longer than most run.

One waits at a time, from the first command on. It has its directory, its variables, a session of its own and standard
input at its end, and knows nothing of what it will run. It ends by itself when this process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

READ_BYTES = 64 << 10
LEFT_BYTES = 1 << 20  # most that is read of what lies in the pipe when a command has ended: a pipe holds no more
TURNS = 8  # of the event loop, in which a result is sent

# Waits for a byte, reads the command from a file (from a pipe bash would read it byte by byte), and runs it with
# nothing left of how it came.
_WAIT = (
    "IFS= read -r -n 1 __handmesh <&{go} || exit; "
    'IFS= read -r -d "" __handmesh <&{order}; exec {go}<&- {order}<&-; '
    'eval "unset -v __handmesh; $__handmesh"'
)


class Shells:
    """Makes shells in a directory, with variables. Used from one event loop."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Makes none yet."""
        self._folder = folder
        self._environment = environment
        self._spare: Shell | None = None
        self._making: asyncio.Task[None] | None = None

    async def run(self, command: str, write: Callable[[bytes], None]) -> int:
        """Runs a command; says its output as it comes, and returns its exit code, which is negative for a signal.

        Ends what the command has left behind in its process group; so, too, when it is cancelled. Raises OSError when
        no bash can be made.
        """
        shell = self._take()
        try:
            shell.give(command)
            return await shell.ended(write)
        finally:
            shell.end()
            if self._making is None or self._making.done():
                self._making = asyncio.create_task(self._make_spare())

    def close(self) -> None:
        """Ends the one that waits."""
        if self._making is not None:
            self._making.cancel()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.end()

    def _take(self) -> Shell:
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.is_ready(self._folder):
                return spare
            spare.end()
        return Shell(self._folder, self._environment)

    async def _make_spare(self) -> None:
        """Makes one when what was run is on its way to who asked, whom it would keep waiting."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if self._spare is None:
            with contextlib.suppress(OSError):  # the next command says it, if it is so still
                self._spare = Shell(self._folder, self._environment)


class Shell:
    """A bash for one command."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Makes it. Raises OSError."""
        self._place = _place(folder)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._order = ours.enter_context(_file())
            go, give = os.pipe()
            theirs.callback(os.close, go)
            self._go = ours.enter_context(os.fdopen(give, "wb", buffering=0))
            pipe, output = os.pipe()
            theirs.callback(os.close, output)
            self._pipe = ours.enter_context(os.fdopen(pipe, "rb", buffering=0))
            os.set_blocking(pipe, False)
            self._process = subprocess.Popen(
                ["bash", "-c", _WAIT.format(go=go, order=self._order.fileno())],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(go, self._order.fileno()),
            )
            self._ours = ours.pop_all()

    def is_ready(self, folder: Path) -> bool:
        """Whether it waits, in the directory that is at that path now."""
        return self._process.poll() is None and self._place == _place(folder)

    def give(self, command: str) -> None:
        """Lets it begin."""
        os.pwrite(self._order.fileno(), command.encode("utf-8", "replace"), 0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)  # a command of before may have stopped it
        with contextlib.suppress(BrokenPipeError):  # or killed it: its end says so
            self._go.write(b"!")

    async def ended(self, write: Callable[[bytes], None]) -> int:
        """Says the output until bash has ended, whoever else has the pipe still; returns the exit code."""
        loop = asyncio.get_running_loop()
        pipe = self._pipe.fileno()

        def read() -> None:
            if data := self._pipe.read(READ_BYTES):
                write(data)
            elif data is not None:
                loop.remove_reader(pipe)

        loop.add_reader(pipe, read)
        try:
            await _end_of(self._process)
        finally:
            loop.remove_reader(pipe)
        self._kill()
        left = LEFT_BYTES
        while left > 0 and (data := self._pipe.read(READ_BYTES)):
            write(data)
            left -= len(data)
        return self._process.wait()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends it, and all in its process group."""
        if self._process.returncode is None:
            self._kill()
            self._process.wait()
        self._ours.close()


async def _end_of(process: subprocess.Popen[bytes]) -> None:
    """Waits until a process has ended, and leaves it to be waited for where that is possible."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not a Linux, or an old one
        await asyncio.to_thread(process.wait)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("command", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


def _place(folder: Path) -> tuple[int, int] | None:
    """Tells a directory from another one that takes its path; None when there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

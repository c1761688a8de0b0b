"""A process of this machine that outlives the service, told apart from another that gets its number later."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.sandbox.records import Facts

END_SECONDS = 10.0


@dataclass(frozen=True)
class LocalProcess:
    """A number, the tick at which it started, and the boot in which it runs."""

    pid: int
    start: int
    boot: str

    @staticmethod
    def of(pid: int) -> LocalProcess | None:
        """Identifies a process. None when there is none with that number."""
        start = _start(pid)
        return None if start is None else LocalProcess(pid, start, _boot())

    @staticmethod
    def known(facts: Facts) -> LocalProcess | None:
        """Reads what `facts` has written. None when it is not in there."""
        if not facts.get("pid"):
            return None
        return LocalProcess(int(facts["pid"]), int(facts["start"]), str(facts["boot"]))

    def facts(self) -> dict[str, str | int]:
        """Returns what a record keeps of it."""
        return {"pid": self.pid, "start": self.start, "boot": self.boot}

    def lives(self) -> bool:
        """Tells whether it runs."""
        return self.boot == _boot() and _start(self.pid) == self.start

    async def end(self, number: int = signal.SIGKILL, seconds: float = END_SECONDS) -> bool:
        """Signals it and waits until it has ended. False when it lives on. Idempotent."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.lives():  # asked with the descriptor in hand: the number cannot change owners now
                return True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            return await asyncio.to_thread(_ended, descriptor, seconds)
        finally:
            os.close(descriptor)


def _ended(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000.0))


def _start(pid: int) -> int | None:
    """Returns when a living process started, in ticks since the boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def listen(folder: Path, name: str) -> Iterator[socket.socket]:
    """Opens a listening socket for a child to inherit. Its path may be longer than a socket's address can be."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/{name}")
            listener.listen(128)
            yield listener
    finally:
        os.close(descriptor)

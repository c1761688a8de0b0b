"""A private directory for one process of Claude Code: its home, its transcript, its working directory.

It is removed with the process. What a killed harness has left is removed by the next one on the machine: a directory
belongs to nobody when nobody holds the lock in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "handmesh-claude-"
_LOCK = "owner"


class Home:
    """One directory, which only this process's user can enter."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def work(self) -> Path:
        """Where Claude Code works: an empty directory."""
        return self.path / "work"

    def write(self, path: Path, text: str) -> None:
        """Writes a file that only this user can read, below the directory."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)

    def remove(self) -> None:
        """Removes it, whatever is in it. The process that used it has ended."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep() -> None:
    """Removes the directories of harnesses that have died."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or one that is just being made
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)

"""Runs before Claude Code, as a program of its own: `python -I -S launch.py PARENT PROGRAM ARGUMENT...`.

Standard library only. Sees to it that Claude Code dies with the harness, however that one ends: an orphan would go on
asking the model.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Does it, and becomes Claude Code."""
    parent, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(parent):  # else it is too late: the harness has died
        os.execve(argv[0], argv, os.environ)  # noqa: TID251  what it was given goes on


if __name__ == "__main__":
    main()

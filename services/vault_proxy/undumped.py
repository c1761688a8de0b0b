"""Keeps this process's memory, which holds secrets, off every disk and out of other processes' sight."""

from __future__ import annotations

import ctypes
import resource
import sys

_SET_DUMPABLE = 4  # prctl(2)


def hide_memory() -> None:
    """Leaves no core dump, whatever ends this process; and no other process of its user may read its memory.

    Both are asked for: a core pattern that is a program's gets the dump whatever its limit is. Linux only for the
    second: elsewhere there is no such call.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)

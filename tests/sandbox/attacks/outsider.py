"""Becomes a user whom nobody is, and runs a program: `python outsider.py UID PATH... -- PROGRAM ARGUMENT...`.

That user may read the PATHs although they lie below somebody's closed home folder (a Python, a checkout): in a mount
namespace of its own, such a folder is covered by one that is open and has nothing in it but the PATHs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NEW_MOUNTS = 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Does it."""
    user, *rest = sys.argv[1:]
    split = rest.index("--")
    _open_up([Path(path) for path in rest[:split]])
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
    os.execvp(rest[split + 1], rest[split + 1 :])


def _open_up(paths: list[Path]) -> None:
    _call("unshare", _NEW_MOUNTS)
    _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)
    closed = {
        path: next((it for it in reversed(path.parents) if not it.stat().st_mode & 0o001), None) for path in paths
    }
    held = {path: os.open(path, os.O_PATH) for path in paths if closed[path] is not None}
    for folder in {folder for folder in closed.values() if folder is not None}:
        _call("mount", b"tmpfs", bytes(folder), b"tmpfs", 0, b"mode=0755")
    for path, descriptor in held.items():
        path.mkdir(parents=True, exist_ok=True)
        _call("mount", f"/proc/self/fd/{descriptor}".encode(), bytes(path), None, _BIND | _RECURSIVE, None)
        os.close(descriptor)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


if __name__ == "__main__":
    main()

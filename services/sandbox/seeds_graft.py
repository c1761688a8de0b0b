"""Mounts a seed into a sandbox that runs, as a program of its own: `python -I -S seeds_graft.py`. Standard library
only. What to do comes on its standard input:

    {"pid": 4711, "anchor": "/workspace", "path": "/workspace/app", "lower": "/var/lib/.../tree"}

It is an overlay: the seed below, which is never written to; above it what the sandbox writes, kept in the very folder
that the overlay is then mounted on. So the writes count for the workspace's limit, go with the workspace, and no tool
sees them but through the overlay. `pid` is any process of the sandbox; `path` is as that process sees it.

Works as root of the host, for sandboxes of any user (the seed is shown as the tools' user's), and, rootless, for a
sandbox whose namespaces this user has made. What a tool may do meanwhile is taken for hostile: no link is followed.

Exit codes: 0 it is mounted, or was already; 3 the path is taken; 4 this machine cannot do it, and nothing was changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import sys
from pathlib import PurePosixPath
from typing import Any

MOUNTED, TAKEN, UNABLE = 0, 3, 4

_STAGE = "/tmp"
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVE, _PRIVATE = 0x4000, 0x40000
_GET_USERNS = 0xB701
_HERE = -100  # AT_FDCWD
_EMPTY_PATH = 0x1000
_CLONE, _CLOEXEC = 1, 0o2000000
_FROM_EMPTY, _TO_EMPTY = 0x04, 0x40
_READ_ONLY, _NO_SUID, _NO_DEVICES, _ID_MAP = 0x1, 0x2, 0x4, 0x100000
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The same on x86-64 and arm64.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442

_libc = ctypes.CDLL(None, use_errno=True)


class Taken(Exception):
    """Something is at the path, or on the way to it."""


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def main() -> int:
    """Does it, and returns the exit code. Told nothing, it does nothing."""
    said = sys.stdin.buffer.read()
    if not said:
        return UNABLE
    told = json.loads(said)
    try:
        _graft(told["pid"], PurePosixPath(told["anchor"]), PurePosixPath(told["path"]), told["lower"])
    except Taken:
        return TAKEN
    except OSError as error:
        print(f"{error.filename or 'graft'}: {error.strerror}", file=sys.stderr)
        return UNABLE
    return MOUNTED


def _graft(pid: int, anchor: PurePosixPath, path: PurePosixPath, lower: str) -> None:
    theirs = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    root = os.geteuid() == 0
    if not root:
        _enter(fcntl.ioctl(theirs, _GET_USERNS), _NEW_USER)
    _call("unshare", _NEW_MOUNTS)
    _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)
    ours = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    seed = os.open(lower, os.O_PATH | _FOLDER)
    _call("mount", b"tmpfs", _STAGE.encode(), b"tmpfs", 0, b"mode=0700,size=65536")
    _enter(theirs, _NEW_MOUNTS)
    place, uid, gid, made = _folder(anchor, path, root)
    if place is None:
        return
    try:
        held = _system(_OPEN_TREE, place, b"", _EMPTY_PATH | _CLONE | _CLOEXEC)
        _enter(ours, _NEW_MOUNTS)
        _show_seed(seed, os.fstat(seed).st_uid, (uid, gid) if root else None)
        overlay = _overlay(held, root)
        _enter(theirs, _NEW_MOUNTS)
        _system(_MOVE_MOUNT, overlay, b"", place, b"", _FROM_EMPTY | _TO_EMPTY)
    except OSError:
        _enter(theirs, _NEW_MOUNTS)
        _undo(place, made)
        raise


def _folder(
    anchor: PurePosixPath, path: PurePosixPath, root: bool
) -> tuple[int | None, int, int, list[tuple[int, str]]]:
    """Makes the folder to mount on, with `upper` and `work` in it, as the owner of the anchor.

    Returns a descriptor of it, or None when a seed is mounted there already; the owner; and the folders that it made.
    """
    at = os.open(anchor, os.O_PATH | _FOLDER)
    owner = os.fstat(at)
    made: list[tuple[int, str]] = []
    for name in path.relative_to(anchor).parts:
        above = at
        made += _make(above, name, owner if root else None)
        try:
            at = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
        except OSError:
            raise Taken from None
    if os.fstat(at).st_dev != os.fstat(above).st_dev:
        return None, 0, 0, []
    listing = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=at)
    if os.listdir(listing):
        raise Taken
    for name in ("upper", "work"):
        made += _make(at, name, owner if root else None)
    return at, owner.st_uid, owner.st_gid, made


def _make(above: int, name: str, owner: os.stat_result | None) -> list[tuple[int, str]]:
    try:
        os.mkdir(name, 0o755, dir_fd=above)
    except FileExistsError:
        return []
    if owner is not None:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=above, follow_symlinks=False)
    return [(above, name)]


def _undo(place: int, made: list[tuple[int, str]]) -> None:
    with contextlib.suppress(OSError):
        work = os.open("work", os.O_PATH | _FOLDER, dir_fd=place)
        os.rmdir("work", dir_fd=work)
    for above, name in reversed(made):
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=above)


def _show_seed(seed: int, seed_uid: int, owner: tuple[int, int] | None) -> None:
    """Mounts the seed at `_STAGE/seed`, read-only, as if it were the owner's."""
    os.mkdir(f"{_STAGE}/seed")
    shown = _system(_OPEN_TREE, seed, b"", _EMPTY_PATH | _CLONE | _CLOEXEC)
    wanted = _Attributes(set=_READ_ONLY | _NO_SUID | _NO_DEVICES)
    if owner is not None:
        wanted.set |= _ID_MAP
        wanted.userns = _mapping(seed_uid, *owner)
    _system(_MOUNT_SETATTR, shown, b"", _EMPTY_PATH, ctypes.byref(wanted), ctypes.sizeof(wanted))
    _system(_MOVE_MOUNT, shown, b"", _HERE, f"{_STAGE}/seed".encode(), _FROM_EMPTY)


def _mapping(seed_uid: int, uid: int, gid: int) -> int:
    """Returns a user namespace that shows the seed's user and group as others. It needs a process while it is made."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            _call("unshare", _NEW_USER)
            os.write(ready[1], b"!")
            os.close(go[1])
            os.read(go[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    try:
        if not os.read(ready[0], 1):
            raise OSError(0, "no user namespace for the seed's owner")
        for file, line in (("uid_map", f"{seed_uid} {uid} 1"), ("gid_map", f"{seed_uid} {gid} 1")):
            with open(f"/proc/{child}/{file}", "w") as map:
                map.write(line)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(go[1])
        os.waitpid(child, 0)


def _overlay(held: int, root: bool) -> int:
    """Returns the overlay, mounted nowhere yet. Its layers must be in one mount namespace at this moment."""
    os.mkdir(f"{_STAGE}/place")
    _system(_MOVE_MOUNT, held, b"", _HERE, f"{_STAGE}/place".encode(), _FROM_EMPTY)
    layers = {"lowerdir": f"{_STAGE}/seed"}
    for key, name in (("upperdir", "upper"), ("workdir", "work")):
        layers[key] = f"/proc/self/fd/{os.open(f'{_STAGE}/place/{name}', os.O_PATH | _FOLDER)}"
    making = _system(_FSOPEN, b"overlay", 1)
    for key, value in layers.items():
        _system(_FSCONFIG, making, _SET_STRING, key.encode(), value.encode(), 0)
    if root:
        _system(_FSCONFIG, making, _SET_STRING, b"redirect_dir", b"on", 0)  # or no folder of the seed can be renamed
    else:
        _system(_FSCONFIG, making, _SET_FLAG, b"userxattr", None, 0)
    _system(_FSCONFIG, making, _CREATE, None, None, 0)
    return _system(_FSMOUNT, making, 1, _NO_SUID | _NO_DEVICES)


def _enter(namespace: int, kind: int) -> None:
    _call("setns", namespace, kind)


def _call(name: str, *arguments: Any) -> int:
    return _checked(name, getattr(_libc, name)(*arguments))


def _system(number: int, *arguments: Any) -> int:
    wide = [ctypes.c_long(it) if isinstance(it, int) else it for it in arguments]
    return _checked(f"system call {number}", _libc.syscall(ctypes.c_long(number), *wide))


def _checked(what: str, said: int) -> int:
    if said < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return said


if __name__ == "__main__":
    sys.exit(main())

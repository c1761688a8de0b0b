"""Walks and fills the directories of a sandbox without following a link below the place where it begins.

The service asks for this. Tools may have put links anywhere, and may be at work meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_VISITED = 200_000  # entries that a walk looks at
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = ".handmesh-part"


class Found(NamedTuple):
    """Something below a directory. `path` is relative to it."""

    path: str
    state: os.stat_result


def walk(root: str, leave_out: frozenset[str] = frozenset()) -> Iterator[Found]:
    """Yields all that is below a directory, each directory before what is in it, else in the order of the paths.

    `leave_out` are relative paths that it does not enter. Raises OSError for a directory that cannot be read.
    """
    queue: list[str] = [""]
    visited = 0
    while queue:
        path = queue.pop()
        full = os.path.join(root, path) if path else root
        if path:
            try:
                found = Found(path, os.lstat(full))
            except FileNotFoundError:
                continue  # gone meanwhile
            yield found
            if not stat.S_ISDIR(found.state.st_mode):
                continue
        with os.scandir(full) as entries:
            below = [(it.name, it.is_dir(follow_symlinks=False)) for it in entries]
        visited += len(below)
        if visited > MAX_VISITED:
            raise OSError(0, f"there are more than {MAX_VISITED} files", full)
        below.sort(key=lambda it: it[0] + "/" if it[1] else it[0], reverse=True)
        for name, _ in below:
            child = f"{path}/{name}" if path else name
            if child not in leave_out and not name.startswith(_PART):
                queue.append(child)


def directory(root: str, path: str) -> int:
    """Opens a directory below a root, and makes those on the way that are missing. Raises OSError for a link."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in path.split("/") if path else ():
        try:
            try:
                below = os.open(name, _DIRECTORY, dir_fd=descriptor)
            except FileNotFoundError:
                os.mkdir(name, 0o755, dir_fd=descriptor)
                below = os.open(name, _DIRECTORY, dir_fd=descriptor)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def extend(root: str, path: str, mode: int, size: int, data: bytes) -> int:
    """Writes behind the end of a file below a root that has so many bytes, and returns how many it had.

    Nothing is written if that is another number, and nothing stays of what does not fit on the disk. Raises OSError,
    also for a link and for what is no regular file.
    """
    above, _, name = path.rpartition("/")
    folder = directory(root, above)
    try:
        there = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        state = os.fstat(there)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if state.st_size == size:
            os.fchmod(there, mode | stat.S_IWUSR)
            try:
                _append(f"/proc/self/fd/{there}", size, data)  # the very file that was looked at
            finally:
                os.fchmod(there, mode)
        return state.st_size
    finally:
        os.close(there)


def _append(path: str, size: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        _write(descriptor, data)
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def replace(root: str, path: str, mode: int, content: Iterable[bytes]) -> None:
    """Writes a file below a root, whole or not at all: it takes the place of what is there when it is complete."""
    above, _, name = path.rpartition("/")
    folder = directory(root, above)
    part = f"{_PART}-{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600, dir_fd=folder)
        try:
            for data in content:
                _write(descriptor, data)
            os.fchmod(descriptor, mode)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(part, dir_fd=folder)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(folder)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def stamp(found: Found) -> list[Any]:
    """Returns what is told of a file: path, size, time of writing, and what is another one whenever it changes."""
    state = found.state
    changed = f"{state.st_ino}.{state.st_ctime_ns}.{state.st_size}"
    return [found.path, state.st_size, state.st_mtime_ns, changed]

"""A file system that forgets what was not synced: SIGKILL its process, and that was a power cut.

    python tests/drills/forgetful.py BACKING MOUNTPOINT

Names are kept at once, as a journal would; bytes and sizes reach the backing folder only with fsync, or through a
descriptor that was opened with O_SYNC. All of that POSIX allows.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import mfusepy  # type: ignore[import-untyped]

SYNC = os.O_SYNC | os.O_DSYNC


@dataclass
class Unsynced:
    """A file as its writers see it, and which bytes of it the backing file does not have."""

    data: bytearray
    ranges: list[tuple[int, int]] = field(default_factory=list)
    resized: bool = False


class Forgetful(mfusepy.Operations):  # type: ignore[misc]
    """One folder, seen through memory."""

    use_ns = True

    def __init__(self, root: str) -> None:
        self._root = root
        self._unsynced: dict[str, Unsynced] = {}
        self._synced_handles: set[int] = set()

    def _real(self, path: str) -> str:
        return self._root + path

    def _of(self, path: str) -> Unsynced:
        found = self._unsynced.get(path)
        if found is None:
            with open(self._real(path), "rb") as file:  # noqa: PTH123 - paths are the kernel's, as text
                found = self._unsynced[path] = Unsynced(bytearray(file.read()))
        return found

    # --- bytes ---

    def open(self, path: str, flags: int) -> int:
        handle = os.open(self._real(path), os.O_RDWR)
        if flags & SYNC:
            self._synced_handles.add(handle)
        if flags & os.O_TRUNC:
            self.truncate(path, 0)
        return handle

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        handle = os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        self._unsynced.pop(path, None)
        return handle

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        found = self._unsynced.get(path)
        return os.pread(fh, size, offset) if found is None else bytes(found.data[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        found = self._of(path)
        if offset > len(found.data):
            found.data.extend(bytes(offset - len(found.data)))
        found.data[offset : offset + len(data)] = data
        found.ranges.append((offset, offset + len(data)))
        if fh in self._synced_handles:
            self._sync(path)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        found = self._of(path)
        del found.data[length:]
        found.data.extend(bytes(length - len(found.data)))
        found.resized = True

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._sync(path)
        return 0

    def _sync(self, path: str) -> None:
        found = self._unsynced.get(path)
        if found is None:
            return
        handle = os.open(self._real(path), os.O_RDWR)
        try:
            for start, end in found.ranges:
                os.pwrite(handle, found.data[start:end], start)
            if found.resized:
                os.ftruncate(handle, len(found.data))
        finally:
            os.close(handle)
        found.ranges.clear()
        found.resized = False

    def release(self, path: str, fh: int) -> int:
        self._synced_handles.discard(fh)
        os.close(fh)
        return 0

    # --- names ---

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        try:
            found = os.lstat(self._real(path))
        except FileNotFoundError:
            raise mfusepy.FuseOSError(errno.ENOENT) from None
        keys = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size")
        shown: dict[str, Any] = {key: getattr(found, key) for key in keys}
        shown |= {f"st_{which}time": getattr(found, f"st_{which}time_ns") for which in "amc"}
        if path in self._unsynced:
            shown["st_size"] = len(self._unsynced[path].data)
        return shown

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._real(path))]  # noqa: PTH208

    def rename(self, old: str, new: str) -> None:
        os.rename(self._real(old), self._real(new))  # noqa: PTH104
        self._unsynced.pop(new, None)
        for path in list(self._unsynced):
            if path == old or path.startswith(old + "/"):
                self._unsynced[new + path[len(old) :]] = self._unsynced.pop(path)

    def unlink(self, path: str) -> None:
        os.unlink(self._real(path))  # noqa: PTH108
        self._unsynced.pop(path, None)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._real(path), mode)  # noqa: PTH102

    def rmdir(self, path: str) -> None:
        os.rmdir(self._real(path))  # noqa: PTH106

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._real(path), mode)  # noqa: PTH101

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._real(path), ns=times)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._root)
        keys = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize", "f_namemax")
        return {key: getattr(found, key) for key in keys}


if __name__ == "__main__":
    mfusepy.FUSE(Forgetful(sys.argv[1]), sys.argv[2], foreground=True, nothreads=True, attr_timeout=0, entry_timeout=0)

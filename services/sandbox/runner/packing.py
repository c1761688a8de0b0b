"""Packs a workspace into a gzipped tar, and unpacks it into another one: files, modes, links, times, not owners."""

from __future__ import annotations

import os
import stat
import tarfile
import zlib
from typing import TYPE_CHECKING, Any

from . import tree
from .archives import BadArchive, Expanding, content_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEVEL = 1  # most of what there is to gain, at a fifth of the time
_GZIP = 31


class _Deflated:
    """Takes what tarfile writes, and says it compressed."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._say = say
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)

    def write(self, data: bytes) -> int:
        packed = self._deflate.compress(data)
        if packed:
            self._say(packed)
        return len(data)

    def end(self) -> None:
        self._say(self._deflate.flush())


def pack(root: str, leave_out: frozenset[str], say: Callable[[bytes], None]) -> None:
    """Says a directory as a gzipped tar. Sockets, pipes and devices are left out.

    Raises OSError for what cannot be read, and for a file that changes its size meanwhile.
    """
    out = _Deflated(say)
    stream: Any = out
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for found in tree.walk(root, leave_out):
            kind = stat.S_IFMT(found.state.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                continue
            member = tar.gettarinfo(os.path.join(root, found.path), found.path)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if not member.isreg():
                tar.addfile(member)
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(os.path.join(root, found.path), flags), "rb") as file:
                tar.addfile(member, file)
    out.end()


def unpack(root: str, content: Iterator[bytes], size: int, count: int) -> None:
    """Fills a directory from what `pack` said, at most `size` bytes and `count` entries. Raises BadArchive, OSError."""
    stream: Any = Expanding(content, True, size)
    directories = []
    try:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for number, member in enumerate(tar):
                if number >= count:
                    raise BadArchive(f"it has more than {count} entries")
                path = _inside(member.name)
                if member.isdir():
                    os.close(tree.directory(root, path))
                    directories.append((path, member))
                elif path:
                    _place(root, path, member, tar)
        while stream.read(1 << 16):
            pass
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise BadArchive(f"it is damaged ({type(error).__name__})") from None
    for path, member in reversed(directories):  # now that nothing more is written below them
        descriptor = tree.directory(root, path)
        os.fchmod(descriptor, member.mode & 0o777)
        os.utime(descriptor, (member.mtime, member.mtime))
        os.close(descriptor)


def _place(root: str, path: str, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    if member.isreg() and not member.issparse():
        tree.replace(root, path, member.mode & 0o777, content_of(tar, member))
        os.utime(os.path.join(root, path), (member.mtime, member.mtime), follow_symlinks=False)
    elif member.issym():
        _link(root, path, lambda name, folder: os.symlink(member.linkname, name, dir_fd=folder))
    elif member.islnk():
        above, _, name = _inside(member.linkname).rpartition("/")
        source = tree.directory(root, above)
        try:
            _link(
                root,
                path,
                lambda to, folder: os.link(name, to, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False),
            )
        finally:
            os.close(source)
    else:
        raise BadArchive(f"{shown(member.name)} is no file, directory or link")


def _link(root: str, path: str, make: Callable[[str, int], None]) -> None:
    above, _, name = path.rpartition("/")
    folder = tree.directory(root, above)
    try:
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        make(name, folder)
    finally:
        os.close(folder)


def _inside(name: str) -> str:
    """Returns a path of any characters that a file system takes, and that leads nowhere else. Raises BadArchive."""
    path = name[:-1] if name.endswith("/") else name
    if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path:
        raise BadArchive(f"{shown(name)} is no path below the workspace")
    return path

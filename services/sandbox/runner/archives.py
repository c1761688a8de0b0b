"""Reads archives that strangers made: says what is in them, or refuses them before a byte is written. Pure.

A tar, a gzipped tar or a zip of files and directories. BadArchive are links, devices, paths that lead out or can be
written in two ways, two entries for one path, and more than the limits. Sizes are counted while the content is
expanded; what headers say of them is not believed. It runs inside the sandbox, as the user of the tools.
"""

from __future__ import annotations

import contextlib
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PATH_BYTES = 1024
MAX_NAME_BYTES = 255
MAX_DEPTH = 32
_CHUNK_BYTES = 64 << 10
_LOCAL_HEADER = 30  # bytes before the name, in a zip
_GZIP = 31  # zlib's word for it


class BadArchive(Exception):
    """An archive that is not unpacked, with a sentence on why."""


class Limits(NamedTuple):
    """What an archive may hold: `size` bytes when it is expanded, headers included, and so many entries."""

    size: int
    entries: int


class Entry(NamedTuple):
    """A file or directory of an archive. `path` is relative, parts joined by `/`. Content is None for a directory."""

    path: str
    executable: bool
    content: Iterator[bytes] | None


def check(data: bytes, limits: Limits) -> int:
    """Goes through a whole archive and counts its entries. Raises BadArchive."""
    count = 0
    for entry in entries(data, limits):
        count += 1
        for _ in entry.content or ():
            pass
    return count


def entries(data: bytes, limits: Limits) -> Iterator[Entry]:
    """Yields what is in an archive; each one's content is to be read before the next. Raises BadArchive."""
    taken: dict[str, bool] = {}
    count = 0
    read = _zip if data[:4] in (b"PK\x03\x04", b"PK\x05\x06") else _tar
    with _refusing():
        for entry in read(data, limits):
            count += 1
            if count > limits.entries:
                raise BadArchive(f"it has more than {limits.entries} entries")
            if entry.path:
                _claim(taken, entry.path, entry.content is not None)
                yield entry if entry.content is None else entry._replace(content=_read(entry.content))


def _read(content: Iterator[bytes]) -> Iterator[bytes]:
    with _refusing():
        yield from content


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turns what the libraries say of a bad archive into a refusal."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError) as error:
        raise BadArchive(f"it is damaged, or no tar, tar.gz or zip ({type(error).__name__})") from None
    except (ValueError, OverflowError, NotImplementedError, UnicodeError, RuntimeError, LookupError) as error:
        raise BadArchive(f"it cannot be read ({type(error).__name__})") from None


def _claim(taken: dict[str, bool], path: str, is_file: bool) -> None:
    """Takes note of a path. `taken` maps each to whether it is an entry of its own, or only above one."""
    if taken.get(path):
        raise BadArchive(f"it has two entries for {shown(path)}")
    if is_file and path in taken:
        raise BadArchive(f"{shown(path)} is both a file and a directory")
    parts = path.split("/")
    for end in range(1, len(parts)):
        above = "/".join(parts[:end])
        if taken.get(above + "\0file"):
            raise BadArchive(f"{shown(above)} is both a file and a directory")
        taken.setdefault(above, False)
    taken[path] = True
    if is_file:
        taken[path + "\0file"] = True  # no path has a NUL in it


def clean_path(name: str) -> str:
    """Returns an entry's path: `./a//` is refused, `./a/` is `a`, `./` is the empty one. Raises BadArchive."""
    while name.startswith("./"):
        name = name[2:]
    path = name[:-1] if name.endswith("/") else name
    if path in ("", ".") and name != "/":
        return ""
    if path.startswith("/") or name == "/":
        raise BadArchive(f"{shown(name)} is an absolute path")
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise BadArchive(f"{shown(name)} has an empty part, `.` or `..` in it")
    if "\\" in path or any(ord(each) < 32 or ord(each) == 127 for each in path):
        raise BadArchive(f"{shown(name)} has a backslash or a control character in it")
    try:
        sizes = [len(part.encode("utf-8")) for part in parts]
    except UnicodeEncodeError:
        raise BadArchive(f"{shown(name)} is no Unicode") from None
    if len(parts) > MAX_DEPTH:
        raise BadArchive(f"{shown(name)} is nested deeper than {MAX_DEPTH} directories")
    if max(sizes) > MAX_NAME_BYTES or sum(sizes) + len(sizes) > MAX_PATH_BYTES:
        raise BadArchive(f"{shown(name)} is longer than {MAX_NAME_BYTES} bytes a name or {MAX_PATH_BYTES} in all")
    return path


def shown(name: str) -> str:
    """Shortens a stranger's name for an error's message."""
    return ascii(name if len(name) <= 100 else name[:100] + "...")


class Expanding:
    """Reads through gzip, or as it is, and refuses to give more than a limit. What tarfile takes for a stream."""

    def __init__(self, chunks: Iterator[bytes], zipped: bool, limit: int) -> None:
        """Takes the content piece by piece."""
        self._chunks = chunks
        self._zipped = zipped
        self._inflate = zlib.decompressobj(_GZIP)
        self._left = limit
        self._limit = limit
        self._input = b""
        self._ready = b""
        self._begun = False

    def read(self, size: int = -1) -> bytes:
        """Returns up to `size` bytes; fewer only at the end."""
        parts: list[bytes] = []
        wanted = size if size >= 0 else self._limit + 1
        while wanted > 0:
            if not self._ready:
                self._ready = self._next()
                if not self._ready:
                    break
            part, self._ready = self._ready[:wanted], self._ready[wanted:]
            wanted -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _next(self) -> bytes:
        piece = self._inflated() if self._zipped else next(self._chunks, b"")
        self._left -= len(piece)
        if self._left < 0:
            raise BadArchive(f"it expands to more than {self._limit} bytes")
        return piece

    def _inflated(self) -> bytes:
        while True:
            if self._inflate.eof:  # a further member may follow
                self._input = self._inflate.unused_data
                self._inflate, self._begun = zlib.decompressobj(_GZIP), False
            data = self._input or next(self._chunks, b"")
            if not data:
                if self._begun:
                    raise BadArchive("it is cut off")
                return b""
            self._begun = True
            piece = self._inflate.decompress(data, _CHUNK_BYTES)
            self._input = self._inflate.unconsumed_tail
            if piece:
                return piece


def _tar(data: bytes, limits: Limits) -> Iterator[Entry]:
    pieces = (data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES))
    stream: Any = Expanding(pieces, data[:2] == b"\x1f\x8b", limits.size)
    with tarfile.open(fileobj=stream, mode="r|", format=tarfile.PAX_FORMAT) as tar:
        for member in tar:
            if member.isdir():
                yield Entry(clean_path(member.name), True, None)
                continue
            if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                raise BadArchive(
                    f"{shown(member.name)} is no plain file or directory: links and devices are not unpacked"
                )
            path = clean_path(member.name)
            if not path or member.name.endswith("/") or member.size < 0:
                raise BadArchive("a file has no name, or no size")
            yield Entry(path, bool(member.mode & 0o111), content_of(tar, member))
    while stream.read(_CHUNK_BYTES):  # what follows the end is counted, too
        pass


def content_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    """Yields a file of a tar that is read as a stream. Raises BadArchive when it is cut off."""
    file = tar.extractfile(member)
    left = member.size
    while file is not None and left:
        piece = file.read(min(left, _CHUNK_BYTES))
        if not piece:
            raise BadArchive("it is cut off")
        left -= len(piece)
        yield piece


def _zip(data: bytes, limits: Limits) -> Iterator[Entry]:
    left = limits.size
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        infos = file.infolist()
        if len(infos) > limits.entries:
            raise BadArchive(f"it has more than {limits.entries} entries")
        _check_apart(data, infos, file.start_dir)
        for info in infos:
            path = clean_path(info.orig_filename)
            _check_kind(info)
            if info.is_dir():
                if info.file_size:
                    raise BadArchive(f"{shown(info.filename)} is a directory with content")
                yield Entry(path, True, None)
                continue
            if not path:
                raise BadArchive("a file has no name")
            left -= info.file_size  # never more is read of it; less is an error
            if left < 0:
                raise BadArchive(f"it expands to more than {limits.size} bytes")
            yield Entry(path, bool(info.external_attr >> 16 & 0o111), _unzipped(file, info))


def _check_kind(info: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > info.is_dir():
        raise BadArchive(f"{shown(info.filename)} is no plain file or directory: links and devices are not unpacked")
    if info.flag_bits & 0x1:
        raise BadArchive("it is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadArchive("it is compressed in another way than deflate")


def _check_apart(data: bytes, infos: list[zipfile.ZipInfo], end: int) -> None:
    """Refuses entries that share bytes: how a small zip is made to expand to more than its deflated size allows."""
    for info in sorted(infos, key=lambda it: it.header_offset, reverse=True):
        start = info.header_offset
        if start < 0 or start + _LOCAL_HEADER > end:
            raise BadArchive("its entries overlap")
        name_size, extra_size = struct.unpack_from("<HH", data, start + 26)
        if start + _LOCAL_HEADER + name_size + extra_size + info.compress_size > end:
            raise BadArchive("its entries overlap")
        end = start


def _unzipped(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    left = info.file_size
    with file.open(info) as content:
        while left:
            piece = content.read(min(left, _CHUNK_BYTES))
            if not piece:
                raise BadArchive("it is cut off")
            left -= len(piece)
            yield piece
        if content.read(1):
            raise BadArchive("an entry holds more than it says")

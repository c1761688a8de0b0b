"""Reads the commits out of a pack while it goes by: whose parents they are shows whether a push goes forward.

    pack      PACK, version, count; objects; a hash of all that
    object    type and size; of a delta also its base; zlib
    delta     sizes of base and result; copies of parts of the base, and new bytes

Only commits are kept, and what is a delta of a commit. A commit's name is the hash of its content, so what is read here
is true of the commit whoever made the pack. What cannot be read, or is too much, shows nothing: then nothing is a
fast-forward, which is refused.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Generator

COMMIT, OFFSET_DELTA, NAME_DELTA = 1, 6, 7
MOST_OBJECTS = 2_000_000
COMMIT_BYTES = 256 * 1024  # of one commit
KEPT_BYTES = 32 * 1024 * 1024  # of all commits of a pack
STEP_BYTES = 64 * 1024  # that are unpacked at a time
_FIRST_BYTES = 512  # of an object that are given to zlib first: most are small, and what is left over is copied

_PARENTS = re.compile(rb"tree [0-9a-f]+\n((?:parent [0-9a-f]+\n)*)")
_More = Generator[None, None, None]


class PackRefused(ValueError):
    """What is no pack. Its text says what is expected."""


class PackReader:
    """Takes a pack in parts. `hash_name` is `sha1` or `sha256`, as the repository names objects."""

    def __init__(self, hash_name: str) -> None:
        self._hash = hash_name
        self._name_bytes = hashlib.new(hash_name, usedforsecurity=False).digest_size
        self._data = bytearray()
        self._at = 0  # read up to here
        self._gone = 0  # bytes of the pack before `_data`
        self._contents: dict[int, bytes] = {}  # where a commit begins -> its content
        self._offsets: dict[bytes, int] = {}  # a commit's name -> where it begins
        self._kept = 0
        self.parents: dict[str, tuple[str, ...]] = {}
        self.complete = False
        self._run = self._read()

    def feed(self, part: bytes) -> None:
        """Takes the next part. Raises PackRefused."""
        del self._data[: self._at]
        self._gone += self._at
        self._at = 0
        self._data += part
        try:
            next(self._run)
        except StopIteration:
            raise PackRefused("nothing comes after a pack") from None

    def leads(self, new: str, old: str) -> bool:
        """Says whether the pack's commits lead from a commit to one that came before it."""
        seen, ahead = {new}, [new]
        while ahead:
            for parent in self.parents.get(ahead.pop(), ()):
                if parent == old:
                    return True
                if parent not in seen:
                    seen.add(parent)
                    ahead.append(parent)
        return False

    def _read(self) -> _More:
        yield from self._some(12)
        head = self._take(12)
        count = int.from_bytes(head[8:], "big")
        if head[:4] != b"PACK" or head[4:8] not in (b"\0\0\0\2", b"\0\0\0\3") or count > MOST_OBJECTS:
            raise PackRefused(f"expected a pack of at most {MOST_OBJECTS} objects")
        for _ in range(count):
            yield from self._object()
        yield from self._some(self._name_bytes)
        self._take(self._name_bytes)
        self.complete = True
        while self._at == len(self._data):
            yield
        raise PackRefused("nothing comes after a pack")

    def _some(self, count: int) -> _More:
        while len(self._data) - self._at < count:
            yield

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[self._at : self._at + count])
        self._at += count
        return taken

    def _byte(self) -> Generator[None, None, int]:
        yield from self._some(1)
        self._at += 1
        return self._data[self._at - 1]

    def _object(self) -> _More:
        offset = self._gone + self._at
        byte = yield from self._byte()
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 128:
            byte = yield from self._byte()
            size |= (byte & 127) << shift
            shift += 7
            if shift > 60:
                raise PackRefused("expected an object's size")
        base: int | None = None
        if kind == OFFSET_DELTA:
            base = offset - (yield from self._distance())
        elif kind == NAME_DELTA:
            yield from self._some(self._name_bytes)
            base = self._offsets.get(self._take(self._name_bytes))
        wanted = (kind == COMMIT or base in self._contents) and size <= COMMIT_BYTES
        content = yield from self._unpacked(size, wanted)
        if not wanted:
            return
        if base is not None:
            content = applied(self._contents[base], content)
        self._keep(offset, content)

    def _distance(self) -> Generator[None, None, int]:
        byte = yield from self._byte()
        distance = byte & 127
        while byte & 128:
            byte = yield from self._byte()
            distance = (distance + 1) << 7 | byte & 127
        return distance

    def _unpacked(self, size: int, wanted: bool) -> Generator[None, None, bytes]:
        unpacker = zlib.decompressobj()
        parts: list[bytes] = []
        length, step = 0, _FIRST_BYTES
        while not unpacker.eof:
            yield from self._some(1)
            given = bytes(self._data[self._at : self._at + step])
            self._at += len(given)
            step = STEP_BYTES
            while given and not unpacker.eof:
                try:
                    unpacked = unpacker.decompress(given, STEP_BYTES)
                except zlib.error:
                    raise PackRefused("expected a packed object") from None
                given = unpacker.unconsumed_tail
                length += len(unpacked)
                if length > size:
                    raise PackRefused("an object has the size that it says")
                if wanted:
                    parts.append(unpacked)
        self._at -= len(unpacker.unused_data)
        if length != size:
            raise PackRefused("an object has the size that it says")
        return b"".join(parts)

    def _keep(self, offset: int, content: bytes) -> None:
        self._kept += len(content)
        if self._kept > KEPT_BYTES:
            return
        digest = hashlib.new(self._hash, b"commit %d\0%b" % (len(content), content), usedforsecurity=False)
        self._contents[offset] = content
        self._offsets[digest.digest()] = offset
        if found := _PARENTS.match(content):
            self.parents[digest.hexdigest()] = tuple(each.decode() for each in found[1].split()[1::2])


def applied(base: bytes, delta: bytes) -> bytes:
    """Makes an object of its base and a delta. Raises PackRefused."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = delta[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value

    def field(code: int, bits: range) -> int:
        nonlocal at
        value = 0
        for shift, bit in enumerate(bits):
            if code >> bit & 1:
                value |= delta[at] << 8 * shift
                at += 1
        return value

    result = bytearray()
    try:
        if number() != len(base):
            raise PackRefused("a delta fits its base")
        size = number()
        while at < len(delta) and len(result) <= size <= COMMIT_BYTES:
            code = delta[at]
            at += 1
            if code & 128:
                start, count = field(code, range(4)), field(code, range(4, 7)) or 0x10000
                if start + count > len(base):
                    raise PackRefused("a delta copies what its base has")
                result += base[start : start + count]
            else:
                if not code or at + code > len(delta):
                    raise PackRefused("expected a delta")
                result += delta[at : at + code]
                at += code
    except IndexError:
        raise PackRefused("expected a delta") from None
    if len(result) != size:
        raise PackRefused("a delta makes the size that it says")
    return bytes(result)

"""Fresh secrets for one run, and where they must not be: every spelling of one, looked for in any sink's bytes.

`mint` makes a canary. `spelled` are its spellings; `hits` says which of them is in some bytes; `Sweep` takes sinks as
they come, counts what it has looked at, and keeps what it found. A sweep proves something only beside a planted canary
that it finds: see tests/security/test_s01_canary_sweep.py.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

from handmesh.demo.proof import spellings

CHUNK_BYTES = 16 * 1024 * 1024  # of a memory or a file at once
OVERLAP_BYTES = 4 * 1024  # more than the longest spelling


def core() -> str:
    """Makes what canaries of one run have in common: whoever finds it has found one of them."""
    return os.urandom(12).hex()


def mint(what: str = "canary", around: str = "") -> str:
    """Makes a secret that can be a header, a password and a URL's part, with characters that encodings change.

    `around` is a core that it has in common with others.
    """
    return f"{what}-{around or core()}+/=~x"


@functools.cache
def spelled(canary: str) -> frozenset[bytes]:
    """Returns the canary as it is, in hex, URL-encoded, JSON-escaped, base 64 at each alignment in both alphabets."""
    data = canary.encode()
    escaped = json.dumps(canary)[1:-1]
    more = {escaped.encode(), escaped.replace("/", "\\/").encode(), quote_plus(canary).encode()}
    every = {"".join(f"%{each:02x}" for each in data).encode(), "".join(f"%{each:02X}" for each in data).encode()}
    return frozenset(spellings(canary) | more | every | {canary.encode("utf-16-le")})


def hits(canary: str, content: bytes | str) -> list[bytes]:
    """Returns the spellings of the canary that are in some content."""
    looked = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return sorted(each for each in spelled(canary) if each in looked)


@dataclass
class Sweep:
    """Looks for canaries, or cores, by name, in sinks. `found` has (name, kind, sink); `seen` counts bytes by kind."""

    canaries: Mapping[str, str] = field(repr=False)
    found: list[tuple[str, str, str]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def look(self, kind: str, sink: str, content: bytes | str, innocent: frozenset[str] = frozenset()) -> None:
        """Looks into some bytes. Canaries named in `innocent` may be there."""
        self.seen[kind] = self.seen.get(kind, 0) + len(content)
        for name, canary in self.canaries.items():
            if name not in innocent and (name, kind, sink) not in self.found and hits(canary, content):
                self.found.append((name, kind, sink))

    def files(self, kind: str, folder: Path, innocent: frozenset[str] = frozenset()) -> None:
        """Looks into every file below a folder, and at its name. What goes away meanwhile is not there."""
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder).as_posix()
            self.look(kind, f"the name {place}", os.fsencode(place), innocent)
            try:
                if path.is_file() and not path.is_symlink():
                    for part in _parts_of(path):
                        self.look(kind, place, part, innocent)
            except FileNotFoundError:
                continue

    def environments(self, innocent: frozenset[str] = frozenset()) -> None:
        """Looks at the environment and the command line of every process that may be looked at."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                for name in ("environ", "cmdline"):
                    with contextlib.suppress(OSError):
                        self.look("environments", f"{name} of {entry.name}", (entry / name).read_bytes(), innocent)

    def memory(self, pid: int, innocent: frozenset[str] = frozenset()) -> None:
        """Looks into all that a process could write into a core dump: its private, writable memory."""
        for part in memory_of(pid):
            self.look("memories", f"memory of {pid}", part, innocent)


def _parts_of(path: Path) -> Iterator[bytes]:
    """Yields a file's content, in parts that overlap."""
    with path.open("rb") as file:
        rest = b""
        while read := file.read(CHUNK_BYTES):
            yield rest + read
            rest = read[-OVERLAP_BYTES:]


def memory_of(pid: int) -> Iterator[bytes]:
    """Yields the readable and writable memory of a process, as gcore would write it. Needs the right to trace it."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(each, 16) for each in area.split("-"))
            for at in range(start, end, CHUNK_BYTES):
                try:
                    memory.seek(at)
                    yield memory.read(min(CHUNK_BYTES + OVERLAP_BYTES, end - at))
                except (OSError, OverflowError):
                    continue  # a device's memory, or gone meanwhile

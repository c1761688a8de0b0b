"""git's pkt-lines, and of its protocol what a push says before the objects: which references become what.

pkt-line    four hexadecimal digits, the length with them, and then the rest; 0000 ends a list
push        shallow <oid>..., <old> <new> <reference> NUL <capabilities>, <old> <new> <reference>..., 0000, objects
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_COMMANDS = 32  # references of one push
COMMANDS_BYTES = 64 * 1024  # of a push before its objects
LINE_BYTES = 65_520
BAND_BYTES = 65_515  # of a side band's packet, which has a byte more for the band

_COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) ([^\0\n ]{1,1024})")
_SHALLOW = re.compile(rb"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")


class LineRefused(ValueError):
    """What is no pkt-line, or no push. Its text says what is expected."""


@dataclass(frozen=True)
class Command:
    """What a reference shall become. An `old` or `new` of zeros means that it is not there."""

    old: str
    new: str
    reference: str

    @property
    def creates(self) -> bool:
        """Whether the reference is new."""
        return not self.old.strip("0")

    @property
    def deletes(self) -> bool:
        """Whether the reference goes."""
        return not self.new.strip("0")


@dataclass(frozen=True)
class Push:
    """What a push says before its objects. `signed`: in a certificate."""

    commands: tuple[Command, ...] = ()
    capabilities: frozenset[str] = frozenset()
    signed: bool = False


@dataclass
class PushReader:
    """Reads a push up to its objects, from parts as they come."""

    _data: bytearray = field(default_factory=bytearray)
    _at: int = 0
    _lines: list[bytes] = field(default_factory=list)

    def feed(self, part: bytes) -> Push | None:
        """Takes a part. Returns the push once it has been said. Raises LineRefused."""
        self._data += part
        while len(self._data) - self._at >= 4:
            length = _length(bytes(self._data[self._at : self._at + 4]))
            if length == 0:
                self._at += 4
                return push_of(self._lines)
            if self._at + length > COMMANDS_BYTES or len(self._lines) > 2 * MOST_COMMANDS:
                raise LineRefused(f"a push names at most {MOST_COMMANDS} references, in {COMMANDS_BYTES} bytes")
            if self._at + length > len(self._data):
                break
            self._lines.append(bytes(self._data[self._at + 4 : self._at + length]).removesuffix(b"\n"))
            self._at += length
        return None

    @property
    def said(self) -> bytes:
        """What was fed up to the end of the list."""
        return bytes(self._data[: self._at])

    @property
    def rest(self) -> bytes:
        """What was fed beyond it."""
        return bytes(self._data[self._at :])


def _length(digits: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
        raise LineRefused("expected a pkt-line")
    length = int(digits, 16)
    if length and not 4 < length <= LINE_BYTES:
        raise LineRefused("expected a pkt-line that has something in it")
    return length


def push_of(lines: Iterable[bytes]) -> Push:
    """Reads the lines of a push. Raises LineRefused."""
    commands: list[Command] = []
    capabilities: frozenset[str] = frozenset()
    signed = False
    for line in lines:
        said, there, named = line.partition(b"\0")
        if _SHALLOW.fullmatch(said) and not commands:
            continue
        if there:
            if commands:
                raise LineRefused("capabilities come with the first reference")
            capabilities = frozenset(named.decode("ascii", "replace").split())
        if said == b"push-cert" and not commands:
            signed = True
            continue
        command = _COMMAND.fullmatch(said)
        if command is None and signed:
            continue  # the certificate around them
        if command is None or len(command[1]) != len(command[2]):
            raise LineRefused("expected `old new reference`")
        commands.append(Command(command[1].decode(), command[2].decode(), command[3].decode("utf-8", "replace")))
    if len(commands) > MOST_COMMANDS:
        raise LineRefused(f"a push names at most {MOST_COMMANDS} references")
    return Push(tuple(commands), capabilities, signed)


def pkt_line(data: bytes) -> bytes:
    """Makes a pkt-line."""
    return b"%04x%b" % (len(data) + 4, data)


def report(push: Push, refused: Iterable[tuple[str, str]]) -> bytes:
    """Says in git's own words that references were not updated, each with why: git shows them as rejected.

    A client that asked for no report gets none.
    """
    if not push.capabilities & {"report-status", "report-status-v2"}:
        return b""
    lines = [b"unpack ok\n", *(f"ng {name} {_one_line(why)}\n".encode() for name, why in refused)]
    said = b"".join(map(pkt_line, lines)) + b"0000"
    if "side-band-64k" not in push.capabilities:
        return said
    bands = [said[at : at + BAND_BYTES] for at in range(0, len(said), BAND_BYTES)]
    return b"".join(pkt_line(b"\x01" + each) for each in bands) + b"0000"


def _one_line(text: str) -> str:
    return "".join(each if " " <= each <= "~" else "?" for each in text)[:500]

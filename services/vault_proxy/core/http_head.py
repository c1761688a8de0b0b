"""Reads the head of an HTTP/1.1 request strictly: what two parsers might read differently is refused, not repaired.

h11 reads it; what h11 lets through although nobody sends it is refused before and after: bare newlines, folded lines,
a length beside a transfer coding, other versions than 1.1, more headers than anybody needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

HEAD_BYTES = 32 * 1024
MOST_HEADERS = 64
TARGET_CHARACTERS = 4096

_TARGET = re.compile(rf"[!-~]{{1,{TARGET_CHARACTERS}}}")


class HeadRefused(ValueError):
    """A head that is none. Its text says what is expected, and holds nothing of what came."""


@dataclass(frozen=True)
class Head:
    """A request without its body. Names of headers are in lower case, values Latin-1.

    `length` is the body's length in bytes, or None when it comes in chunks; a request without a body has length 0.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    length: int | None

    def values(self, name: str) -> list[str]:
        """Returns the values of a header, by its name in lower case."""
        return [value for its, value in self.headers if its == name]

    def value(self, name: str) -> str:
        """Returns a header's value, empty when it is not there. Raises HeadRefused when it is there twice."""
        found = self.values(name)
        if len(found) > 1:
            raise HeadRefused(f"there is one header {name} at most")
        return found[0].strip() if found else ""


def head_of(data: bytes) -> Head:
    """Reads a head: everything up to and with the empty line. Raises HeadRefused."""
    lines = data.split(b"\r\n")
    if len(data) > HEAD_BYTES or len(lines) - 3 > MOST_HEADERS:
        raise HeadRefused(f"a head has at most {HEAD_BYTES} bytes and {MOST_HEADERS} headers")
    if any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines):
        raise HeadRefused("lines end in CR LF")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise HeadRefused("no line begins with a space")
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        raise HeadRefused("expected a request of HTTP/1.1") from None
    if not isinstance(event, h11.Request) or connection.trailing_data[0]:
        raise HeadRefused("expected a request of HTTP/1.1")
    return _checked(event)


def _checked(request: h11.Request) -> Head:
    if request.http_version != b"1.1":
        raise HeadRefused("expected HTTP/1.1")
    method, target = request.method.decode("ascii"), request.target.decode("latin-1")
    if not _TARGET.fullmatch(target):
        raise HeadRefused(f"a target is ASCII, of at most {TARGET_CHARACTERS} characters")
    headers = tuple((name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers)
    head = Head(method, target, headers, 0)
    length, coding = head.value("content-length"), head.value("transfer-encoding")
    if length and coding:
        raise HeadRefused("a body has a length or comes in chunks, not both")
    if method == "GET" and (coding or length not in ("", "0")):
        raise HeadRefused("GET has no body")
    return Head(method, target, headers, None if coding else int(length or 0))


def chunk_size(line: bytes) -> int:
    """Reads the line before a chunk, without its end: a size and nothing else. Raises HeadRefused."""
    if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", line):
        raise HeadRefused("a chunk has its size before it, in hexadecimal, and no extension")
    return int(line, 16)

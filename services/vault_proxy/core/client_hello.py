"""The host that a TLS client says it wants, read off its first message without touching the rest.

    record      type 22, version 2 bytes, length 2 bytes, part of a handshake message
    handshake   type 1, length 3 bytes, version 2, random 32, then four lists, each behind its length:
                session id (1 byte), cipher suites (2), compression methods (1), extensions (2)
    extension   type 2 bytes, length 2 bytes; type 0 is a list of names, each: kind 1 byte (0: host), length 2, name

This is a tripwire. A client and a server that work together agree on anything inside of TLS, and an encrypted hello
shows an outer name only. The boundary is the address that is connected to.
"""

from __future__ import annotations

from dataclasses import dataclass

HANDSHAKE, CLIENT_HELLO, SERVER_NAME, HOST_NAME = 22, 1, 0, 0
RECORD_TYPES = range(20, 25)
HELLO_BYTES = 16 * 1024  # a hello with keys against quantum computers has 2 KiB
RECORD_BYTES = 16 * 1024


class MalformedHello(ValueError):
    """It begins like TLS and is no ClientHello that has one reading."""


@dataclass(frozen=True)
class Hello:
    """What the first bytes are. `name` is None when the client names no host."""

    tls: bool
    name: str | None = None


def read_hello(data: bytes) -> Hello | None:
    """Reads a connection's first bytes; None when more of them are needed. Raises MalformedHello."""
    if not data:
        return None
    if data[0] != HANDSHAKE:
        if data[0] in RECORD_TYPES:
            raise MalformedHello("the first TLS message is no handshake")
        return Hello(tls=False)
    message, wants_more = _handshake(data)
    if len(message) >= 4:
        if message[0] != CLIENT_HELLO:
            raise MalformedHello("the first handshake message is no ClientHello")
        length = int.from_bytes(message[1:4], "big")
        if length > HELLO_BYTES:
            raise MalformedHello("the ClientHello is too long")
        if len(message) >= 4 + length:
            return Hello(tls=True, name=_server_name(message[4 : 4 + length]))
    if not wants_more:
        raise MalformedHello("the ClientHello breaks off")
    return None


def _handshake(data: bytes) -> tuple[bytes, bool]:
    """Joins the handshake records at the start. Returns them, and whether more records may belong to them."""
    parts: list[bytes] = []
    at = 0
    while len(data) >= at + 5:
        if data[at] != HANDSHAKE or data[at + 1] != 3:
            return b"".join(parts), False
        length = int.from_bytes(data[at + 3 : at + 5], "big")
        if not 0 < length <= RECORD_BYTES:
            raise MalformedHello("a TLS record has no good length")
        parts.append(data[at + 5 : at + 5 + length])
        at += 5 + length
    return b"".join(parts), True


class _Fields:
    """Takes fields off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, count: int) -> bytes:
        if len(self._data) < count:
            raise MalformedHello("the ClientHello breaks off")
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def list(self, count: int) -> bytes:
        return self.take(self.number(count))


def _server_name(body: bytes) -> str | None:
    fields = _Fields(body)
    fields.take(2 + 32)
    for count in (1, 2, 1):
        fields.list(count)
    extensions = _Fields(fields.list(2) if fields else b"")
    if fields:
        raise MalformedHello("something is behind the extensions")
    found: list[str] = []
    while extensions:
        kind, content = extensions.number(2), extensions.list(2)
        if kind == SERVER_NAME:
            found.extend(_names(content))
    if len(found) > 1:
        raise MalformedHello("the ClientHello names two hosts")
    return found[0] if found else None


def _names(content: bytes) -> list[str]:
    names = _Fields(_Fields(content).list(2))
    found = []
    while names:
        kind, name = names.number(1), names.list(2)
        if kind != HOST_NAME or not name.isascii():
            raise MalformedHello("the ClientHello names something else than a host")
        found.append(name.decode().lower())
    return found

"""As much HTTP/1.1 as a local server of JSON and event streams needs, on asyncio streams.

Requests have bodies with a length or in chunks; responses have a length, or come in chunks when they are streams.
Connections are kept alive. Everything that a peer decides has a limit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

MAX_HEAD_BYTES = 64 * 1024  # of the request line and headers; also the streams' buffer limit
MAX_BODY_BYTES = 32 * 1024 * 1024  # as the API has it
MAX_DRAINED_BYTES = 4 * MAX_BODY_BYTES  # of a body that is too large; read away so that the refusal is seen
IDLE_SECONDS = 75.0  # a kept connection waits so long for its next request
BODY_SECONDS = 60.0  # a body is there within this time
WRITE_SECONDS = 60.0  # a peer that does not read for so long is dropped
CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,16}")


@dataclass(frozen=True)
class HttpRequest:
    """One request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Returns whether the client wants to send another request on this connection."""
        return self.headers.get("connection", "").lower() != "close"


class BadHttp(Exception):
    """A request that cannot be read on; answered with `status`, after which the connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Reads the next request; None when the peer closed or stayed silent for too long, BadHttp when it is malformed."""
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return None
    except asyncio.LimitOverrunError:
        raise BadHttp(431, "Request header fields too large") from None
    method, target, headers = _parse_head(head)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _read_body(reader, headers)
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return None
    except asyncio.LimitOverrunError:
        raise BadHttp(400, "Malformed chunk") from None
    return HttpRequest(method, unquote(target.partition("?")[0]), headers, body)


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadHttp(400, "Malformed request line")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not name or name != name.strip():
            raise BadHttp(400, "Malformed header field")
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return words[0], words[1], headers


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("content-encoding", "identity") != "identity":
        raise BadHttp(400, "The request's Content-Encoding is not supported")
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
            raise BadHttp(400, "Unsupported transfer encoding")
        return await _read_chunks(reader)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 18:
        raise BadHttp(400, "Malformed content length")
    if int(length) > MAX_BODY_BYTES:
        await _drain(reader, int(length))
        raise BadHttp(413, "Request exceeds the maximum size")
    return await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        digits = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        if not CHUNK_SIZE.fullmatch(digits):
            raise BadHttp(400, "Malformed chunk")
        size = int(digits, 16)
        total += size
        if total > MAX_BODY_BYTES:
            raise BadHttp(413, "Request exceeds the maximum size")
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass  # trailers
            return b"".join(parts)
        parts.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise BadHttp(400, "Malformed chunk")


async def _drain(reader: asyncio.StreamReader, length: int) -> None:
    left = min(length, MAX_DRAINED_BYTES)
    while left > 0:
        piece = await reader.read(min(left, MAX_HEAD_BYTES))
        if not piece:
            return
        left -= len(piece)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Returns a response's status line and headers."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Overloaded" if status == 529 else "Error"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Returns one chunk of a streamed body; that of no data ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Writes and waits until the peer has room; ConnectionError when it left, TimeoutError when it does not read."""
    writer.write(data)
    async with asyncio.timeout(WRITE_SECONDS):
        await writer.drain()

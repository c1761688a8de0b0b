"""A session's log as a file: JSON Lines, in which a line that was changed, lost or added is found.

    {"handmesh_log": 1, "session_id": "sess_...", "last_position": 3}     the header
    {"eventId": "...", "position": "1", ...}                              each event as protobuf JSON, by position
    {"blob": {"blobId": "blob_...", "sha256": "...", ...}}                each blob, if they were asked for,
    {"data": "<base64>"}                                                  and its content in pieces
    {"chain": "<64 hex digits>", "links": "<8 hex digits a line>"}        the footer

The chain is SHA-256 over the header, then over the link so far and the next line. `links` are the beginnings of what
the chain was after each line, so that the first wrong position is found and not only that there is one. It shows
accidents, not forgery: whoever changes a line on purpose can make a new footer. Neither side holds more than a line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

from google.protobuf import json_format

from handmesh.client.errors import HandmeshError
from handmesh.session.v1 import event_pb2

VERSION = 1
LINK_DIGITS = 8


class _Chain:
    def __init__(self, header: str) -> None:
        self._digest = hashlib.sha256(header.encode()).digest()

    def add(self, line: str) -> str:
        self._digest = hashlib.sha256(self._digest + line.encode()).digest()
        return self.value[:LINK_DIGITS]

    @property
    def value(self) -> str:
        return self._digest.hex()


Download = Callable[[str], AsyncIterator[bytes]]


async def written(
    session_id: str,
    last_position: int,
    events: AsyncIterable[event_pb2.Event],
    kept: Sequence[event_pb2.BlobRef] = (),
    download: Download | None = None,
) -> AsyncIterator[str]:
    """Yields the lines of a file, without their ends. Raises HandmeshError (`LOG_INVALID`) for what it cannot hold,
    and `BLOB_DAMAGED` for a blob whose content is not what it was."""
    header = json.dumps({"handmesh_log": VERSION, "session_id": session_id, "last_position": last_position})
    chain, links = _Chain(header), []
    yield header
    async for event in events:
        if event.WhichOneof("kind") is None:
            raise _invalid(event.position, "this version of handmesh does not know its kind: export with a newer one")
        line = json.dumps(json_format.MessageToDict(event), separators=(",", ":"))
        links.append(chain.add(line))
        yield line
    for blob in kept:
        assert download is not None
        async for line in _blob_lines(blob, download(blob.blob_id)):
            links.append(chain.add(line))
            yield line
    yield json.dumps({"chain": chain.value, "links": "".join(links)})


async def _blob_lines(blob: event_pb2.BlobRef, content: AsyncIterator[bytes]) -> AsyncIterator[str]:
    digest = hashlib.sha256()
    yield json.dumps({"blob": json_format.MessageToDict(blob)}, separators=(",", ":"))
    async for piece in content:
        digest.update(piece)
        yield json.dumps({"data": base64.b64encode(piece).decode()}, separators=(",", ":"))
    if digest.hexdigest() != blob.sha256:
        raise HandmeshError("BLOB_DAMAGED", f"{blob.blob_id} is not what was kept", code="DATA_LOSS")


def check(lines: Iterable[str]) -> None:
    """Checks that a file is whole, its blobs too. Raises HandmeshError (`LOG_INVALID`, with the position; what is wrong
    with blobs has the first position after the events)."""
    rest = iter(lines)
    header = _line_end(next(rest, ""))
    last_position = _header(header)
    chain, links, footer, count = _Chain(header), [], "", 0
    blobs = _BlobCheck(last_position)
    for line in map(_line_end, rest):
        if footer:
            links.append(chain.add(footer))
            count += 1
            if count > last_position:
                blobs.take(footer)
        footer = line
    kept = _object(footer)
    told = kept.get("links")
    if not isinstance(told, str) or "chain" not in kept:
        raise _invalid(min(count, last_position) + 1, "the file ends before its last line")
    for at, link in enumerate(links):
        if told[at * LINK_DIGITS : (at + 1) * LINK_DIGITS] != link:
            what = "its line was changed, or one before it is missing"
            raise _invalid(at + 1, what) if at < last_position else blobs.wrong("a line was changed or is missing")
    if count < last_position or len(told) != count * LINK_DIGITS:
        raise _invalid(min(count, last_position) + 1, "its line is missing")
    if kept["chain"] != chain.value:
        raise _invalid(last_position, "the file's last line was changed")
    blobs.end()


class _BlobCheck:
    """Looks at the lines of blobs, and remembers the first thing that is wrong: the chain may tell it better."""

    def __init__(self, last_position: int) -> None:
        self._last_position = last_position
        self._said: event_pb2.BlobRef | None = None
        self._digest = hashlib.sha256()
        self._problem = ""

    def take(self, line: str) -> None:
        """Looks at the next line."""
        piece = _piece(line)
        if isinstance(piece, event_pb2.BlobRef):
            self._close()
            self._said, self._digest = piece, hashlib.sha256()
        elif piece is None or self._said is None:
            self._problem = self._problem or "a line is no part of one"
        else:
            self._digest.update(piece)

    def end(self) -> None:
        """Raises what was found."""
        self._close()
        if self._problem:
            raise self.wrong(self._problem)

    def wrong(self, what: str) -> HandmeshError:
        """Makes the error."""
        position = {"position": str(self._last_position + 1)}
        return HandmeshError("LOG_INVALID", f"the blobs after the events: {what}", position, code="INVALID_ARGUMENT")

    def _close(self) -> None:
        if self._said is not None and self._digest.hexdigest() != self._said.sha256:
            self._problem = self._problem or f"{self._said.blob_id} is not what was kept"


def pieces(lines: Iterable[str]) -> Iterator[event_pb2.BlobRef | bytes]:
    """Yields the blobs of a file that was checked, from the lines behind its events: of each what it is, then its
    content piece by piece."""
    for line in lines:
        piece = _piece(line)
        if piece is None:
            return
        yield piece


def _piece(line: str) -> event_pb2.BlobRef | bytes | None:
    """Returns what a line has of a blob; None for one that is of none."""
    kept = _object(line)
    data = kept.get("data")
    try:
        if isinstance(data, str):
            return base64.b64decode(data, validate=True)
        return json_format.ParseDict(kept["blob"], event_pb2.BlobRef()) if "blob" in kept else None
    except (binascii.Error, ValueError, json_format.ParseError):
        return None


def _parsed(line: str, position: int) -> event_pb2.Event:
    try:
        return json_format.ParseDict(_object(line), event_pb2.Event())
    except json_format.ParseError:
        raise _invalid(position, "its line is no event that this version of handmesh knows") from None


def read(lines: Iterable[str]) -> Iterator[event_pb2.Event]:
    """Yields the events of a file that was checked. Raises HandmeshError (`LOG_INVALID`) for a line that is none."""
    rest = iter(lines)
    for position in range(1, _header(next(rest, "")) + 1):
        yield _parsed(next(rest, ""), position)


def _header(line: str) -> int:
    kept = _object(line)
    version, last_position = kept.get("handmesh_log"), kept.get("last_position")
    if version != VERSION or not isinstance(last_position, int):
        raise _invalid(1, "the file does not begin as an exported session does")
    return last_position


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _line_end(line: str) -> str:
    return line.rstrip("\r\n")


def _invalid(position: int, what: str) -> HandmeshError:
    message = f"event {position}: {what}"
    return HandmeshError("LOG_INVALID", message, {"position": str(position)}, code="INVALID_ARGUMENT")

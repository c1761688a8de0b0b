"""A session's log as a file: JSON Lines, in which a line that was changed, lost or added is found.

    {"handmesh_log": 1, "session_id": "sess_...", "last_position": 3}     the header
    {"eventId": "...", "position": "1", ...}                              each event as protobuf JSON, by position
    {"chain": "<64 hex digits>", "links": "<8 hex digits a line>"}        the footer

The chain is SHA-256 over the header, then over the link so far and the next line. `links` are the beginnings of what
the chain was after each event, so that the first wrong position is found and not only that there is one. It shows
accidents, not forgery: whoever changes a line on purpose can make a new footer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

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


async def written(session_id: str, last_position: int, events: AsyncIterable[event_pb2.Event]) -> AsyncIterator[str]:
    """Yields the lines of a file, without their ends. Raises HandmeshError (`LOG_INVALID`) for what it cannot hold."""
    header = json.dumps({"handmesh_log": VERSION, "session_id": session_id, "last_position": last_position})
    chain, links = _Chain(header), []
    yield header
    async for event in events:
        if event.WhichOneof("kind") is None:
            raise _invalid(event.position, "this version of handmesh does not know its kind: export with a newer one")
        line = json.dumps(json_format.MessageToDict(event), separators=(",", ":"))
        links.append(chain.add(line))
        yield line
    yield json.dumps({"chain": chain.value, "links": "".join(links)})


def check(lines: Iterable[str]) -> None:
    """Checks that a file is whole. Raises HandmeshError (`LOG_INVALID`, with the position)."""
    rest = iter(lines)
    header = _line_end(next(rest, ""))
    last_position = _header(header)
    chain, links, footer, count = _Chain(header), [], "", 0
    for line in map(_line_end, rest):
        if footer:
            links.append(chain.add(footer))
            count += 1
        footer = line
    kept = _object(footer)
    told = kept.get("links")
    if not isinstance(told, str) or "chain" not in kept:
        raise _invalid(count + 1, "the file ends before its last line")
    for at, link in enumerate(links):
        if told[at * LINK_DIGITS : (at + 1) * LINK_DIGITS] != link:
            raise _invalid(at + 1, "its line was changed, or one before it is missing")
    if count != last_position or len(told) != count * LINK_DIGITS:
        raise _invalid(count + 1, "its line is missing")
    if kept["chain"] != chain.value:
        raise _invalid(count, "the file's last line was changed")


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


def _object(line: str) -> dict[str, object]:
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

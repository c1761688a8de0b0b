"""HTTP/1.1 as a door speaks it to a sandbox: one request for each connection, read strictly, within limits.

One request, so that nothing which comes after it can be taken for another one; clients connect anew for the next.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable

from services.vault_proxy.core.http_head import HEAD_BYTES, Head, HeadRefused, chunk_size, head_of
from services.vault_proxy.doors.refusal import Refusal, malformed

HEAD_SECONDS = 15.0  # for the whole head
BODY_SECONDS = 60.0  # between two parts of a body, and for the client to take what it is told
PART_BYTES = 64 * 1024
REST_BYTES = 4 * 1024 * 1024  # of a refused request that are read, so that its client gets to hear why
REST_SECONDS = 5.0


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Reads a request's head; None when the client has gone without one. Raises Refusal (400, 408, 413)."""
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            data = await reader.readuntil(b"\r\n\r\n")
        return head_of(data)
    except TimeoutError:
        raise malformed(f"a request's head comes within {HEAD_SECONDS:.0f} seconds", 408) from None
    except asyncio.LimitOverrunError:
        raise malformed(f"a request's head has at most {HEAD_BYTES} bytes", 413) from None
    except HeadRefused as problem:
        raise malformed(str(problem)) from None
    except asyncio.IncompleteReadError as broken:
        if broken.partial:
            raise malformed("expected a request of HTTP/1.1") from None
        return None


class Body:
    """A request's body as it comes, once. `most` bytes at most."""

    def __init__(self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int) -> None:
        """Raises Refusal (413) when the head already says more."""
        self._head = head
        self._reader = reader
        self._writer = writer
        self._most = most
        self._too_large = malformed(f"a body of this request has at most {most} bytes", 413)
        if head.length is not None and head.length > most:
            raise self._too_large

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yields parts, none of them empty. Raises Refusal (400, 408, 413)."""
        if self._head.length != 0 and any(value.lower() == "100-continue" for value in self._head.values("expect")):
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            size = 0
            async for part in self._chunks() if self._head.length is None else self._parts(self._head.length):
                size += len(part)
                if size > self._most:
                    raise self._too_large
                yield part
        except TimeoutError:
            raise malformed(f"a body does not rest for {BODY_SECONDS:.0f} seconds", 408) from None
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the client has gone") from None
        except asyncio.LimitOverrunError:
            raise malformed("a chunk has its size before it, and nothing else") from None
        except HeadRefused as problem:
            raise malformed(str(problem)) from None

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := chunk_size(await self._line()):
            async for part in self._parts(size):
                yield part
            if await self._line():
                raise HeadRefused("a chunk ends in CR LF")
        if await self._line():
            raise HeadRefused("nothing comes after the last chunk")

    async def _line(self) -> bytes:
        async with asyncio.timeout(BODY_SECONDS):
            return (await self._reader.readuntil(b"\r\n"))[:-2]

    async def _parts(self, length: int) -> AsyncIterator[bytes]:
        while length:
            async with asyncio.timeout(BODY_SECONDS):
                part = await self._reader.read(min(length, PART_BYTES))
            if not part:
                raise asyncio.IncompleteReadError(b"", length)
            length -= len(part)
            yield part


async def inflated(parts: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    """Unpacks a gzipped body. Raises Refusal (400, 413)."""
    unpacker = zlib.decompressobj(wbits=31)
    size = 0
    try:
        async for part in parts:
            rest = part
            while rest and not unpacker.eof:
                unpacked = unpacker.decompress(rest, PART_BYTES)
                rest = unpacker.unconsumed_tail
                size += len(unpacked)
                if size > most:
                    raise malformed(f"a body of this request has at most {most} bytes when it is unpacked", 413)
                if unpacked:
                    yield unpacked
            if unpacker.unused_data:
                raise malformed("nothing comes after a gzipped body")
        if tail := unpacker.flush():
            yield tail
    except zlib.error:
        raise malformed("the body is not gzipped, although it says so") from None
    if not unpacker.eof:
        raise malformed("the gzipped body broke off")


async def whole(parts: AsyncIterator[bytes]) -> bytes:
    """Reads all of a body, which was limited before."""
    return b"".join([part async for part in parts])


class Answer:
    """What is said to the client, once."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.begun = False

    async def say(self, status: int, content_type: str, body: bytes) -> None:
        """Says a whole answer."""
        await self._begin(status, content_type, [("Content-Length", str(len(body)))])
        await self._write(body)

    async def stream(self, content_type: str, parts: AsyncIterator[bytes]) -> None:
        """Says 200 and parts as they come. What `parts` raises ends the connection in the middle of the body."""
        await self._begin(200, content_type, [("Transfer-Encoding", "chunked")])
        async for part in parts:
            if part:
                await self._write(b"%x\r\n%b\r\n" % (len(part), part))
        await self._write(b"0\r\n\r\n")

    async def refuse(self, refusal: Refusal) -> None:
        """Says why not, in one line. git shows it to its user."""
        text = f"handmesh: {refusal.reason}: {refusal.message}\n".encode("ascii", "replace")
        await self.say(refusal.status, "text/plain; charset=us-ascii", text)

    async def _begin(self, status: int, content_type: str, framing: Iterable[tuple[str, str]]) -> None:
        self.begun = True
        headers = [("Content-Type", content_type), ("Cache-Control", "no-store"), ("Connection", "close"), *framing]
        lines = [
            f"HTTP/1.1 {status} {'OK' if status < 400 else 'Refused'}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        await self._write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await self._writer.drain()
        except TimeoutError:
            raise ConnectionAbortedError("the client does not take what it is told") from None


async def discard(reader: asyncio.StreamReader) -> None:
    """Reads on for a moment: a client that is still speaking would else lose the answer."""
    size = 0
    try:
        async with asyncio.timeout(REST_SECONDS):
            while size < REST_BYTES and (part := await reader.read(PART_BYTES)):
                size += len(part)
    except (TimeoutError, OSError):
        pass

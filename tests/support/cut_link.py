"""A TCP link that can be cut, or fall silent without a word, and be mended."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CutLink:
    """Stands before a port. `target` may change: connections made from then on go there."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._up = asyncio.Event()
        self._up.set()
        self._refusing = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Ends all connections, and takes no new ones."""
        self._refusing = True
        for end in list(self._ends):
            end.transport.abort()

    def silence(self) -> None:
        """Carries nothing any more, and tells nobody."""
        self._up.clear()

    def mend(self) -> None:
        """Carries on: new connections after a cut, old ones after a silence."""
        self._refusing = False
        self._up.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection to its end."""
        try:
            if self._refusing:
                raise OSError
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                await self._up.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        self._ends.discard(sink)
        sink.close()

    async def stop(self) -> None:
        """Ends all."""
        self.cut()
        self._up.set()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def cut_link(target: int, identity: ssl.SSLContext | None = None) -> AsyncIterator[CutLink]:
    """Listens on a free port, and carries what comes to the target's. With an identity it speaks TLS before it."""
    link = CutLink(target)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0, ssl=identity)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.stop()

"""A link that can be cut: stands between a hand and the mesh, on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HOST = "127.0.0.1"
PIECE = 65_536


class Relay:
    """Carries connections to `target` (`host:port`) while it is whole. While it is cut, it ends those that come."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._cut = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mended = asyncio.Event()
        self.address = ""  # `host:port`, to connect to

    def cut(self) -> None:
        """Breaks all connections, at once and without a word, and lets none through from now on."""
        self._cut = True
        for end in self._ends:
            end.transport.abort()

    async def mend(self) -> None:
        """Lets connections through again, and waits for one."""
        self._cut = False
        self._mended.clear()
        await self._mended.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection."""
        if self._cut:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, there_writer}
        self._mended.set()
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(PIECE):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._ends.discard(sink)

    async def close(self) -> None:
        """Ends all connections."""
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """Listens on a port of its own, and carries what comes to `target`."""
    it = Relay(target)
    server = await asyncio.start_server(it.serve, HOST, 0)
    it.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield it
    finally:
        server.close()
        await it.close()

"""TCP connections that take their time: what one side sends reaches the other some time later, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SlowLink:
    """Stands before a port. `delay` is in seconds, and may be changed at any time."""

    def __init__(self, target: int) -> None:
        self.delay = 0.0
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection to its end."""
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()  # whoever is behind it is not there now
            return
        self._ends += [writer, there_writer]
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        try:
            while data := await source.read(65_536):
                due = max(due, loop.time() + self.delay)
                loop.call_at(due, _write, sink, data)
        except OSError:
            pass
        loop.call_at(max(due, loop.time()), sink.close)

    async def stop(self) -> None:
        """Ends all connections."""
        for end in self._ends:
            end.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.gather(*(end.wait_closed() for end in self._ends), return_exceptions=True)


def _write(sink: asyncio.StreamWriter, data: bytes) -> None:
    if not sink.is_closing():
        sink.write(data)


@asynccontextmanager
async def slow_link(port: int, target: int) -> AsyncIterator[SlowLink]:
    """Listens on a port, and carries what comes to another one."""
    link = SlowLink(target)
    server = await asyncio.start_server(link.serve, "127.0.0.1", port)
    try:
        yield link
    finally:
        server.close()
        await link.stop()

"""The sandbox service's side of a door: dialling the listener with a ticket, and a forwarder for real clients."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Ticket = Callable[[], Awaitable[tuple[str, str]]]


async def dial(address: str, tls: Path, ticket: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects as the service whose certificate is in `tls`, and says the ticket."""
    context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
    context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    writer.write(f"{ticket}\n".encode())
    return reader, writer


@asynccontextmanager
async def forwarder(ticket: Ticket, tls: Path) -> AsyncIterator[int]:
    """Listens on a loopback port, and brings each connection to the listener with a ticket of its own."""
    running: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(connected(reader, writer))
        running.add(task)
        task.add_done_callback(running.discard)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            text, address = await ticket()
            inner_reader, inner_writer = await dial(address, tls, text)
            async with asyncio.TaskGroup() as both:
                out = both.create_task(_copy(reader, inner_writer))
                await both.create_task(_copy(inner_reader, writer))
                out.cancel()
            inner_writer.close()
        except* (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        to.write(data)
        await to.drain()

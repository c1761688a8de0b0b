"""A git door outside of sandboxes: a loopback port, for the git of this very service, while it fetches one repository.

Git speaks to no unix socket. So whoever connects is looked up in the kernel's table: other users of the machine are
turned away, who else might use the session's door.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from services.kit.logs import Log
from services.sandbox.doors_relay import carried
from services.sandbox.hand import Visit
from services.sandbox.vault_proxy import Stream

HOST = "127.0.0.1"
_log = Log("services.sandbox.doors_gate")

Gate = Callable[[], AbstractAsyncContextManager[str]]  # gives `http://host:port`, below which the door's paths are


@asynccontextmanager
async def listening(way_out: Callable[[], Awaitable[Stream]]) -> AsyncIterator[str]:
    """Listens as long as the context lasts, and gives the address."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _is_mine(writer):
                await carried(Visit(reader, writer), way_out)
        except Exception:  # the top of a task: git sees its connection end
            _log.error("git connection failed", exc_info=True)
        finally:
            writer.close()

    def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(served, HOST, 0)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def _is_mine(writer: asyncio.StreamWriter) -> bool:
    """Says whether the process on the other side is of this service's user."""
    its, mine = _shown(writer.get_extra_info("peername")), _shown(writer.get_extra_info("sockname"))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == (its, mine):
            return int(fields[7]) == os.geteuid()
    return False


def _shown(address: tuple[str, int]) -> str:
    """Returns an address as the kernel's table has it, in the machine's own byte order."""
    octets = bytes(map(int, address[0].split(".")))
    return f"{int.from_bytes(octets, sys.byteorder):08X}:{address[1]:04X}"

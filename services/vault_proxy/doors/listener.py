"""The door listener: where the sandbox service brings the connections of hands' doors, each after its ticket.

    dialler                                  listener
    TLS, certificate of the sandbox service  (anybody else's ends the connection)
    ticket and "\n": 44 bytes                nothing; a ticket that is none ends the connection
    the sandbox's own bytes                  the door's answer

The sandbox service is not trusted with what a session may do: that is bound to the ticket, which `OpenDoor` gave for
the session's own grant.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.kit import certificates
from services.kit.identity import Peers
from services.kit.logs import Log
from services.vault_proxy import counting
from services.vault_proxy.doors.tickets import CHARACTERS, Ticket, Tickets
from services.vault_proxy.doors.visit import Door, Visit

DIALLER = "sandbox"  # the only service that may connect
PREFACE_SECONDS = 5.0  # for TLS, and again for the ticket
VISIT_SECONDS = 4 * 60 * 60.0  # for one connection in all
BUFFER_BYTES = 64 * 1024  # what a door may look ahead
CLOSE_SECONDS = 2.0  # for a peer to take the last bytes

_log = Log("services.vault_proxy.doors")


class Listener:
    """Lets connections in and hands them to their doors. `doors` are by name: `git`, `egress`."""

    def __init__(self, doors: Mapping[str, Door], tickets: Tickets, peers: Peers | None = None) -> None:
        self._doors = doors
        self._tickets = tickets
        self._peers = peers or Peers()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._visits: defaultdict[str, dict[asyncio.Task[Any], Visit]] = defaultdict(dict)
        self._doubt = asyncio.Event()
        self.address = ""  # where it listens, once it does

    async def start(self, listen: str, tls_dir: Path) -> None:
        """Listens at `host:port`; port 0 becomes any free one."""
        host, _, port = listen.rpartition(":")
        self._server = await asyncio.start_server(
            self._accept,
            host.strip("[]"),
            int(port),
            limit=BUFFER_BYTES,
            ssl=certificates.server_context(tls_dir),
            ssl_handshake_timeout=PREFACE_SECONDS,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        _log.info("doors are open", listen=self.address)

    def open(self, session_id: str) -> int:
        """Returns how many connections a session has open."""
        return len(self._visits.get(session_id, ()))

    def end_session(self, session_id: str) -> None:
        """Cuts a session's connections."""
        for visit in tuple(self._visits.get(session_id, ())):
            visit.cancel()

    def doubt(self) -> None:
        """Has each connection looked at: the end of its session may have been missed."""
        self._doubt.set()

    async def keep_looking(self) -> None:
        """Cuts, whenever there is doubt, the connections that came with grants which are not good any more, for ever.

        A newer epoch voids a grant, too: then a connection is cut that an end of the session alone would have cut.
        """
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            for task, visit in [each for visits in self._visits.values() for each in visits.items()]:
                if visit.holds is not None and not await visit.holds():
                    task.cancel()

    async def stop(self) -> None:
        """Cuts all connections and listens no more."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.cancel()
        if self._connections:
            await asyncio.wait(tuple(self._connections))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio's streams would log each that is cut as an error (Python 3.11).
        task = asyncio.create_task(self._connected(reader, writer), name="door")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ticket = await self._admitted(reader, writer)
            if ticket is not None:
                await self._visited(ticket, reader, writer)
                writer.close()
        except ConnectionError:
            pass  # one of the two has gone
        except Exception:
            _log.error("a door broke", exc_info=True)
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    async def _admitted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Ticket | None:
        if not self._peers.is_service(DIALLER, writer.get_extra_info("peercert")):
            _log.warning("somebody else than the sandbox service came to the doors")
            return None
        try:
            async with asyncio.timeout(PREFACE_SECONDS):
                preface = await reader.readexactly(CHARACTERS + 1)
        except (TimeoutError, asyncio.IncompleteReadError):
            return None
        if preface[-1:] != b"\n":
            return None
        return self._tickets.redeem(preface[:-1].decode("ascii", "replace"))

    async def _visited(self, ticket: Ticket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        session_id = ticket.visit.access.session_id
        self._visits[session_id][task] = ticket.visit
        counting.VISITS.add(ticket.door)
        counting.OPEN.add(ticket.door)
        try:
            async with asyncio.timeout(VISIT_SECONDS):
                await self._doors[ticket.door].serve(ticket.visit, reader, writer)
        except TimeoutError:
            _log.info("a visit took too long", session_id=session_id, door=ticket.door)
        finally:
            counting.OPEN.add(ticket.door, by=-1)
            del self._visits[session_id][task]
            if not self._visits[session_id]:
                del self._visits[session_id]

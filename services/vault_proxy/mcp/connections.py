"""The connections of all sessions: one for each session and server, never shared between sessions.

A connection is made when it is first needed, and ends when it is idle, when its session ends, or when a call on it was
given up. The credential is looked up at least every 30 seconds, and again when the server refuses it. What no call uses
is out of the memory after 30 seconds, and at once when it is replaced, purged, refused, or its session ends.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from services.kit.errors import Denied, Full, Refused, ServiceError, Unavailable
from services.kit.logs import Log
from services.kit.origin import Allowed, UrlRefused, origin_of
from services.vault_proxy.core import catalog
from services.vault_proxy.core.catalog import Catalog
from services.vault_proxy.core.scrub import NoScrubber, Scrubber
from services.vault_proxy.grants import Access, Server
from services.vault_proxy.mcp.held import Held
from services.vault_proxy.mcp.problems import CredentialRefused, ServerLost, SessionLost
from services.vault_proxy.pins import Pins
from services.vault_proxy.traced import asked, looked_up
from services.vault_proxy.unwound import unwound
from services.vault_proxy.wallet import Usable, Wallet

if TYPE_CHECKING:
    from services.vault_proxy.mcp.connection import Connection
    from services.vault_proxy.outbound import Outbound

CREDENTIAL_SECONDS = 30.0  # how long a credential is used before it is looked up again
MOST_CONNECTIONS = 2_000
MOST_LOST = 6  # sessions for one call: of calls at once, half find another replica of a server that does not share them
SWEEP_SECONDS = 5.0  # so an unused credential is dropped this much before it is CREDENTIAL_SECONDS old
CLOSE_SECONDS = 1.0

_log = Log("services.vault_proxy.mcp")
T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """How long connecting or listing may take, and how long an unused connection is kept; seconds."""

    connect_seconds: float
    idle_seconds: float


@dataclass
class Use:
    """What one call used: set as it goes, to be read when the call has ended in whatever way."""

    credential: Usable | None = None
    change: catalog.Change | None = None  # of the server's tools
    told: str = "ok"  # how a use that came to its end is told


class Connections:
    """Lists and calls tools for sessions."""

    def __init__(self, wallet: Wallet, pins: Pins, limits: Limits, allowed: Allowed, ca_file: Path | None) -> None:
        self._wallet = wallet
        self._limits = limits
        self._allowed = allowed
        self._ca_file = ca_file
        self._outbound: Outbound | None = None
        self._held: dict[tuple[str, str], Held] = {}
        self._pins = pins
        self._hosts: set[asyncio.Task[None]] = set()

    async def tools(self, access: Access, server: Server, use: Use, refresh: bool = False) -> Catalog:
        """Returns what a server offers, as it was listed before unless `refresh`, or unless it said that it changed.

        Raises ServerLost, Denied (`SERVER_ADDRESS_DENIED`), Refused (`CREDENTIAL_REVOKED`), Unavailable
        (`VAULT_UNAVAILABLE`) or Full.
        """
        held = self._hold(access, server)
        if held.catalog is None or held.outdated or refresh:
            held.outdated = False  # before it is asked: what it says meanwhile counts

            async def ask(connection: Connection) -> list[dict[str, Any]]:
                return await connection.list_tools()

            try:
                with asked("tools/list", server):
                    async with asyncio.timeout(self._limits.connect_seconds):
                        raw = await self._with(access, held, ask, use)
            except ServiceError:
                held.outdated = True
                raise
            except TimeoutError:
                held.outdated = True
                held.disconnect()
                raise ServerLost(server.name, "does not list its tools in time", begun=False) from None
            scrubber = _scrubber(use.credential)
            held.catalog = catalog.build(server.name, scrubber.value(raw))
            self.tell(scrubber, access, server, use)
            use.change = self._pins.take((access.session_id, server.name), catalog.prints_of(held.catalog))
        return held.catalog

    async def call(
        self, access: Access, server: Server, tool: str, arguments: dict[str, Any], use: Use, say: Say
    ) -> tuple[dict[str, Any], Scrubber]:
        """Calls a tool by the server's own name for it. Returns the answer as it came, and what cleans it.

        `say` gets lines of the call's progress. Raises as `tools` does.
        """
        held = self._hold(access, server)

        async def ask(connection: Connection) -> dict[str, Any]:
            return await connection.call_tool(tool, arguments, lambda told: say(told.line(_scrubber(use.credential))))

        try:
            answer = await self._with(access, held, ask, use)
        except asyncio.CancelledError:
            held.disconnect()  # a given-up call may go on there: what comes next has a connection of its own
            raise
        return answer, _scrubber(use.credential)

    def tell(self, scrubber: Scrubber, access: Access, server: Server, use: Use) -> None:
        """Takes note of a credential that was cleaned out of what a server said: people must know of such a server."""
        if scrubber.found and use.credential is not None:
            use.told = "CREDENTIAL_REFLECTED"
            _log.warning(
                "a server said its credential",
                session_id=access.session_id,
                server=server.name,
                credential_id=use.credential.credential_id,
                times=scrubber.found,
            )

    async def _with(self, access: Access, held: Held, action: Callable[[Connection], Awaitable[T]], use: Use) -> T:
        """Does something on a connection: again after a lost session, and once more with a newer credential."""
        held.users += 1
        lost, refused = 0, False
        try:
            while True:
                connection: Connection | None = None
                try:
                    connection = await self._ready(access, held, use)
                    return await action(connection)
                except SessionLost:
                    held.disconnect(connection)
                    lost += 1
                    if lost > MOST_LOST:
                        raise ServerLost(held.server.name, "forgets its sessions", begun=False) from None
                except CredentialRefused:
                    held.disconnect(connection)
                    asked = time.monotonic()
                    async with held.lock:
                        held.looked_up = held.credential = None
                        await self._look_up(access, held, asked, use.credential)
                    if refused or use.credential == held.credential:
                        held.looked_up = held.credential = None
                        raise _revoked(held.server, use.credential) from None
                    refused = True
        finally:
            held.users -= 1
            held.used_at = time.monotonic()
            if held.users == 0 and held not in self._held.values():
                held.disconnect()  # dropped meanwhile

    async def _ready(self, access: Access, held: Held, use: Use) -> Connection:
        """Returns a live connection whose credential is fresh."""
        asked = time.monotonic()
        async with held.lock:
            await self._look_up(access, held, asked)
            use.credential = held.credential
            if held.connection is None or not held.connection.alive:
                held.connection = await self._open(held)
            return held.connection

    async def _look_up(self, access: Access, held: Held, asked: float, rejected: Usable | None = None) -> None:
        """Finds the credential, unless it was found lately. `asked` is when the caller began to wait for its turn: what
        failed since then has failed for it, too. Else each of many callers would wait for a vault that is down."""
        now = time.monotonic()
        if held.age(now) < CREDENTIAL_SECONDS:
            return
        try:
            origin = origin_of(held.server.url)
        except UrlRefused as refused:
            raise Denied("SERVER_ADDRESS_DENIED", f"{held.server.name}: {refused}", server=held.server.name) from None
        if held.failed is not None and held.failed[0] >= asked:
            raise unwound(held.failed[1])
        try:
            with looked_up(origin):
                held.credential = await self._wallet.find(access, origin, rejected.value if rejected else None)
        except Unavailable as problem:
            held.failed = (time.monotonic(), unwound(problem))
            raise
        held.looked_up = now

    async def _open(self, held: Held) -> Connection:
        # In a thread: half a second of imports must not hold up other calls.
        module = await asyncio.to_thread(importlib.import_module, "services.vault_proxy.mcp.connection")
        if self._outbound is None:
            from services.vault_proxy.outbound import Outbound

            self._outbound = Outbound(self._allowed, self._ca_file)
        connection: Connection = module.Connection(
            held.server.name, held.server.url, self._outbound, held.bearer, held.outdate
        )
        try:
            await connection.open(self._limits.connect_seconds)
        except BaseException:
            connection.retire()
            raise
        finally:
            if connection.host is not None:
                self._hosts.add(connection.host)
                connection.host.add_done_callback(self._hosts.discard)
        return connection

    def _hold(self, access: Access, server: Server) -> Held:
        key = (access.session_id, server.name)
        held = self._held.get(key)
        if held is not None and held.server.url != server.url:
            held.disconnect()
            held = None
        if held is None:
            if len(self._held) >= MOST_CONNECTIONS:
                self._sweep(idle_seconds=0.0)
            if len(self._held) >= MOST_CONNECTIONS:
                raise Full("FULL", f"{MOST_CONNECTIONS} connections to MCP servers are in use", retry_after=5)
            held = self._held[key] = Held(server)
        held.used_at = time.monotonic()
        return held

    def changed(self, credential_id: str) -> None:
        """Forgets a credential that was replaced or purged: it is looked up again before it is used."""
        for held in self._held.values():
            if held.credential is not None and held.credential.credential_id == credential_id:
                held.forget()

    def drop(self, session_id: str) -> None:
        """Lets go of everything of a session."""
        for key in [key for key in self._held if key[0] == session_id]:
            held = self._held.pop(key)
            held.disconnect()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, held.forget)  # the server may be told of the end
        self._pins.drop(session_id)

    def _sweep(self, idle_seconds: float) -> None:
        now = time.monotonic()
        for key, held in list(self._held.items()):
            if held.users == 0 and now - held.used_at >= idle_seconds:
                self._held.pop(key).disconnect()
            elif held.credential is not None and held.age(now) >= CREDENTIAL_SECONDS - SWEEP_SECONDS:
                held.forget()

    async def keep_tidy(self) -> None:
        """Closes what is idle, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._sweep(self._limits.idle_seconds)

    async def close(self) -> None:
        """Ends all connections, in a few seconds at most."""
        for held in self._held.values():
            held.disconnect()
        self._held.clear()
        if self._hosts:
            await asyncio.wait(self._hosts, timeout=CLOSE_SECONDS)
        for host in self._hosts:
            host.cancel()


def _scrubber(credential: Usable | None) -> Scrubber:
    return Scrubber(credential.value.reveal()) if credential else NoScrubber()


def _revoked(server: Server, credential: Usable | None) -> ServiceError:
    why = "refuses the credential" if credential else "asks for a credential, and no vault of the session has one"
    return Refused("CREDENTIAL_REVOKED", f"the MCP server {server.name} {why}", server=server.name)

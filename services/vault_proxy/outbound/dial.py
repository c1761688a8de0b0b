"""Plain connections for the egress door: to a checked address of the host that was asked for, and to no other."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from services.kit.origin import Allowed, Origin, check_addresses
from services.vault_proxy.outbound.network import CONNECT_SECONDS, Resolve, system_resolve

BUFFER_BYTES = 256 * 1024  # of what a server has sent and the sandbox has not taken
MOST_DIALLED = 4  # addresses of a host that are tried, one after the other


class Unreachable(ConnectionError):
    """There is no connection. Nothing was sent."""


class Dialler:
    """Connects. `allowed` are the hosts that may have loopback or private addresses.

    `tls` is how TLS is spoken inside of such a connection: the host's certificate is checked, HTTP/1.1 is offered.
    """

    def __init__(self, allowed: Allowed, ca_file: Path | None = None, resolve: Resolve = system_resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self.tls = ssl.create_default_context()
        self.tls.set_alpn_protocols(["http/1.1"])
        if ca_file is not None:
            self.tls.load_verify_locations(ca_file)

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Looks the name up once, checks all its addresses, and connects to one of those.

        Raises UrlRefused when one of them may not be called, before anything is connected to, and Unreachable.
        """
        private_ok = self._allowed.covers(Origin("https", host, port))
        addresses = check_addresses(await self._found(host, port), private_ok)[:MOST_DIALLED]
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                    return await asyncio.open_connection(address, port, limit=BUFFER_BYTES)
            except OSError:  # TimeoutError is one
                continue
        raise Unreachable("no address of the host answers")

    async def _found(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found = list(await self._resolve(host, port))
        except (OSError, UnicodeError):
            raise Unreachable("the name has no address") from None
        if not found:
            raise Unreachable("the name has no address")
        return found

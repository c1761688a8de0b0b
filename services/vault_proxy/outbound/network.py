"""Looks names up and connects, to checked addresses of one origin only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore2

from services.kit.origin import Origin, UrlRefused, check_addresses

CONNECT_SECONDS = 5.0  # for the name, the connection and TLS

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Looks a name up as the system does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Pinned(httpcore2.AsyncNetworkBackend):
    """Connects to checked addresses of one origin: looked up once for a connection, all checked, then dialled."""

    def __init__(self, origin: Origin, private_ok: bool, resolve: Resolve) -> None:
        self._origin = origin
        self._private_ok = private_ok
        self._resolve = resolve
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        host, port = self._origin.host, self._origin.port  # whatever the pool asks for
        try:
            async with asyncio.timeout(timeout):
                found = await self._resolve(host, port)
        except (OSError, TimeoutError):
            raise httpcore2.ConnectError("no address") from None
        for address in check_addresses(found, self._private_ok):
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        raise httpcore2.ConnectError("no address answers")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise UrlRefused("no file is called")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

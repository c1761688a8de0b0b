"""Tunnels: bytes both ways, after a look at the host that TLS names in its first message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.vault_proxy.core.client_hello import Hello, MalformedHello, read_hello
from services.vault_proxy.core.egress import Target
from services.vault_proxy.doors.exchange import stopped
from services.vault_proxy.doors.refusal import Refusal, malformed
from services.vault_proxy.doors.wires import Wire, pump

HELLO_READ_BYTES = 64 * 1024  # to find the ClientHello in, however small its records are
UNRECOGNIZED_NAME = bytes((21, 3, 1, 0, 2, 2, 112))  # the TLS alert: fatal, unrecognized_name


@dataclass(frozen=True)
class Begun:
    """A tunnel's first bytes from the sandbox, and what they are."""

    data: bytes
    hello: Hello


async def begun(client: Wire, first: bytes, target: Target) -> Begun:
    """Reads the first bytes. Raises Refusal when TLS names another host than the tunnel goes to, and WireBroken."""
    data = first
    try:
        while (hello := read_hello(data)) is None:
            if len(data) > HELLO_READ_BYTES:
                raise MalformedHello("the ClientHello is too long")
            part = await client.read()
            if not part:
                return Begun(data, Hello(tls=False))
            data += part
    except MalformedHello as problem:
        refusal = malformed(str(problem))
        refusal.target = str(target)
        raise refusal from None
    if hello.name is not None and hello.name != target.host:
        await client.write(UNRECOGNIZED_NAME)
        message = f"the tunnel goes to {target}, and TLS inside of it names another host"
        raise Refusal(403, "HOST_DENIED", message, hello.name)
    return Begun(data, hello)


async def splice(client: Wire, server: Wire, first: Callable[[], Awaitable[bytes]]) -> None:
    """Carries bytes both ways until one side is done. `first` gives what the client says first, meanwhile.

    Raises what `first` raises, WireBroken and TooMuch.
    """

    async def outward() -> bool:
        return await pump(client, server, await first())

    going, coming = asyncio.create_task(outward()), asyncio.create_task(pump(server, client))
    try:
        await asyncio.wait({going, coming}, return_when=asyncio.FIRST_COMPLETED)
        # A client that is done may still be answered, if the server could be told that it is.
        if going.done() and not coming.done() and going.result():
            await coming
        if coming.done():
            coming.result()
    finally:
        await stopped(going, coming)

"""Whose connection comes through a door, and what a door is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from services.vault_proxy.grants import Access


@dataclass(frozen=True)
class Policy:
    """What an environment may reach. `allow` has names and `*.name`, each with `:port` or without."""

    allow: tuple[str, ...] = ()
    package_managers: bool = False
    mcp_servers: bool = False


@dataclass(frozen=True)
class Visit:
    """One connection: of a session's sandbox. `holds` says whether the grant that it came with is still good."""

    access: Access
    sandbox_id: str
    policy: Policy = Policy()
    holds: Callable[[], Awaitable[bool]] | None = field(default=None, repr=False, compare=False)


class Door(Protocol):
    """What answers a sandbox."""

    async def serve(self, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until one side ends it. The caller closes it, and cancels when the session ends.

        What it refuses is answered in the protocol's own words, and is an event. Raises nothing but ConnectionError.
        """
        ...

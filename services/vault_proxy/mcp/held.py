"""What is held for one session and one MCP server: a connection, the credential for it, the list of its tools."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.kit.errors import Unavailable
from services.vault_proxy.core.catalog import Catalog
from services.vault_proxy.grants import Server
from services.vault_proxy.secret import Secret
from services.vault_proxy.wallet import Usable

if TYPE_CHECKING:
    from services.vault_proxy.mcp.connection import Connection


@dataclass(eq=False)
class Held:
    """What is held for one session and server."""

    server: Server
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one connects or looks the credential up at a time
    connection: Connection | None = None
    credential: Usable | None = None
    looked_up: float | None = None
    failed: tuple[float, Unavailable] | None = None  # the last look-up that failed, and when
    catalog: Catalog | None = None
    outdated: bool = False  # the server says that it has other tools now
    users: int = 0
    used_at: float = 0.0

    def age(self, now: float) -> float:
        """Says how long ago the credential was looked up, in seconds."""
        return math.inf if self.looked_up is None else now - self.looked_up

    def bearer(self) -> Secret[str] | None:
        if self.credential is None:
            if self.looked_up is None:
                self.outdated = True  # a stream of the server's news is refused: what it would have said is missed
            return None
        return self.credential.value

    def forget(self) -> None:
        """Drops the credential: it is looked up before the next call. A call that runs keeps it to its end."""
        self.looked_up = None
        if self.users == 0:
            self.credential = None

    def outdate(self) -> None:
        self.outdated = True

    def disconnect(self, used: Connection | None = None) -> None:
        """Lets go of the connection; of `used` only, if it is given: another call may have made a new one since."""
        if self.connection is not None and used in (None, self.connection):
            self.connection.retire()
            self.connection = None

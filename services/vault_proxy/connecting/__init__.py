"""Connecting accounts by OAuth: the authorization code flow of an MCP server.

steps       what goes in and comes out
discovery   asks an MCP server, and the authorization server that it names, what they are
pending     accounts that are being connected, between the person's leaving and the redirect, for all replicas
sealing     why nobody who reads the vault can use what is pending
accounts    the two steps: start and finish

What is believed of strangers' answers is in `core/metadata.py` and `core/authorizing.py`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.vault_proxy.connecting.accounts import Accounts

ACCOUNTS = "services.vault_proxy.connecting.accounts"


class Connecting:
    """Loads `accounts` when it is first needed: it costs an HTTP library and a cipher, and most processes need none.

    `make` gets the loaded class and makes one.
    """

    def __init__(self, make: Callable[[type[Accounts]], Accounts]) -> None:
        self._make = make
        self._accounts: Accounts | None = None

    async def accounts(self) -> Accounts:
        """Returns what connects accounts."""
        if self._accounts is None:
            module = await asyncio.to_thread(importlib.import_module, ACCOUNTS)
            self._accounts = await asyncio.to_thread(self._make, module.Accounts)
        return self._accounts

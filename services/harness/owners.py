"""Whose the sessions at work here are: a client is told of its own tenant's alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from services.kit.access import Scope
from services.kit.errors import Gone
from services.kit.identity import Caller

MOST_KNOWN = 10_000


class Owners:
    """Knows sessions' tenants, which never change. `tenant_of` asks the session service."""

    def __init__(self, tenant_of: Callable[[str], Awaitable[str]]) -> None:
        self._ask = tenant_of
        self._known: OrderedDict[str, str] = OrderedDict()

    async def may_see(self, caller: Caller, session_id: str) -> bool:
        """Says whether a session may be shown to a caller: an operator sees all. Raises Unavailable."""
        return caller.scope >= Scope.OPERATOR or await self.tenant_of(session_id) == caller.tenant

    async def tenant_of(self, session_id: str) -> str | None:
        """Returns whose a session is; None when there is none. Raises Unavailable."""
        known = self._known.get(session_id)
        if known is None:
            try:
                known = self._known[session_id] = await self._ask(session_id)
            except Gone:
                return None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return known

"""Whose a session is, for those who may see one tenant's alone.

Somebody else's session is as good as none, in the answer and in what it takes to find out: for both, and nothing else,
the caller's own entry in the index and the log's first event are looked for. What is remembered are sessions that a
tenant has; so who is refused never gets the quick answer.
"""

from __future__ import annotations

from services.kit.errors import Gone
from services.session import codec
from services.session.bounded import Bounded
from services.session.index import BUCKET, key_of
from services.session.log import Log, Registry

MOST_OWNED = 65_536  # sessions whose tenant is remembered


class Tenancy:
    """Knows tenants. `log` is the store's own, in which deleted sessions still are what they were."""

    def __init__(self, log: Log, registry: Registry) -> None:
        self._log = log
        self._registry = registry
        self._owned: Bounded[str] = Bounded(MOST_OWNED)

    def owns(self, session_id: str, tenant: str) -> None:
        """Takes note of a session that was just made."""
        self._owned[session_id] = tenant

    async def check(self, session_id: str, tenant: str) -> None:
        """Raises Gone (`SESSION_NOT_FOUND`) unless the session is, or was, the tenant's."""
        if self._owned.get(session_id) == tenant or await self._is_of(session_id, tenant):
            self._owned[session_id] = tenant
            return
        raise Gone("SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id)

    async def _is_of(self, session_id: str, tenant: str) -> bool:
        if await self._registry.get(BUCKET, key_of(tenant, session_id)) is not None:
            return True
        for batch in await self._log.read(session_id, 1, 2, 1):
            if batch.first_position == 1:
                return codec.unseal(batch.data)[0].session_started.config.tenant == tenant
        return False

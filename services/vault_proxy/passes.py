"""How a session's secrets are read: with the session service's word for that session, which is kept for one call."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from services.kit.errors import Unavailable
from services.kit.grants import Grants
from services.kit.logs import Log
from services.vault_proxy.secret import Secret

FRESH_SECONDS = 20.0  # a word is good for a minute

_log = Log("services.vault_proxy.passes")


@dataclass(eq=False)
class GrantPass:
    """Implements `ports.Pass` with a grant. `word` came with what is known of it, at `since`: used once."""

    session_id: str
    epoch: int
    grants: Grants = field(repr=False)
    grant: Secret[str]
    word: Secret[str] | None = None
    since: float = field(default_factory=time.monotonic)

    async def voucher(self) -> Secret[str]:
        word, self.word = self.word, None
        if word is not None and time.monotonic() - self.since < FRESH_SECONDS:
            return word
        voucher = (await self.grants.vouched(self.grant.reveal())).vault_jwt
        if not voucher:
            _log.error("the session service vouches for nobody: it has no HANDMESH_VAULT_ISSUER_KEY_FILE")
            raise Unavailable("VAULT_UNAVAILABLE", "nobody vouches for the session to the vault")
        return Secret(voucher)

"""How a session's secrets are read: with the session service's word for that session, asked for when it is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.kit.errors import Unavailable
from services.kit.grants import Grants
from services.kit.logs import Log
from services.vault_proxy.secret import Secret

_log = Log("services.vault_proxy.passes")


@dataclass(frozen=True)
class GrantPass:
    """Implements `ports.Pass` with a grant."""

    session_id: str
    epoch: int
    grants: Grants = field(repr=False)
    grant: Secret[str]

    async def voucher(self) -> Secret[str]:
        voucher = (await self.grants.vouched(self.grant.reveal())).vault_jwt
        if not voucher:
            _log.error("the session service vouches for nobody: it has no HANDMESH_VAULT_ISSUER_KEY_FILE")
            raise Unavailable("VAULT_UNAVAILABLE", "nobody vouches for the session to the vault")
        return Secret(voucher)

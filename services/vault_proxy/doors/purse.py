"""The placeholders of sessions, and the credentials behind them: looked up at most every 30 seconds."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from services.kit import ids
from services.kit.logs import Log
from services.vault_proxy import trail
from services.vault_proxy.core import kinds
from services.vault_proxy.core.egress import fits
from services.vault_proxy.core.placeholders import Swap, placeholder_of
from services.vault_proxy.credentials import Credential, Credentials
from services.vault_proxy.grants import Access, read_secret
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.secret import Secret

KEPT_SECONDS = 30.0  # a credential is used so long before it is looked up again
SWEEP_SECONDS = 5.0
MOST_SESSIONS = 2_000  # whose credentials are kept; the one that was asked for the longest ago goes

_log = Log("services.vault_proxy.doors")


@dataclass
class _Kept:
    variables: list[Credential]
    until: float
    swaps: dict[str, tuple[Swap | None, float]] = field(default_factory=dict)


class Purse:
    """Reads the credentials of the kind `environment_variable` that a session's vaults have."""

    def __init__(
        self, store: CredentialStore, credentials: Credentials, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._credentials = credentials
        self._now = now
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._news = 0  # counts what is forgotten: what was read before that is not kept

    async def placeholders(self, access: Access) -> list[tuple[str, str]]:
        """Returns the variables of a session's sandboxes, each with its placeholder.

        Raises Unavailable (`VAULT_UNAVAILABLE`).
        """
        variables = (await self._of(access)).variables
        return [(each.facts["variable"], placeholder_of(access.session_id, each.credential_id)) for each in variables]

    async def swaps(self, access: Access, host: str) -> list[Swap]:
        """Returns the credentials that may be sent to a host, each with its secret.

        Raises Unavailable (`VAULT_UNAVAILABLE`), or Unauthenticated when the access is over.
        """
        kept = await self._of(access)
        found = [await self._swap(access, kept, each) for each in kept.variables if _may_go(each, host)]
        return [swap for swap in found if swap is not None]

    async def _of(self, access: Access) -> _Kept:
        """Returns what a session's vaults have: of two for one variable the one in the first vault, the older one."""
        kept = self._kept.get(access.session_id)
        if kept is not None and self._now() < kept.until:
            self._kept.move_to_end(access.session_id)
            return kept
        news, found = self._news, dict[str, Credential]()
        for vault_id in filter(ids.MINTED.fullmatch, access.vault_ids):
            for each in await self._credentials.all_of(access.tenant, vault_id, versions=False):
                if each.kind == kinds.ENVIRONMENT_VARIABLE and each.facts.get("variable"):
                    found.setdefault(each.facts["variable"], each)
        kept = _Kept(list(found.values()), self._now() + KEPT_SECONDS)
        if news == self._news:
            self._kept[access.session_id] = kept
            while len(self._kept) > MOST_SESSIONS:
                self._kept.popitem(last=False)
        return kept

    async def _swap(self, access: Access, kept: _Kept, credential: Credential) -> Swap | None:
        swap, until = kept.swaps.get(credential.credential_id, (None, 0.0))
        if self._now() < until:
            return swap
        path = trail.secret(access.tenant, credential.vault_id, credential.credential_id)
        document = await read_secret(self._store, access, path)
        fields = document.fields.reveal() if document else {}
        bound = all(fields.get(name, "") == credential.facts.get(name, "") for name in _FIXED)
        value = fields.get("value", "").strip()  # a file put in by hand often ends in a newline
        swap = None
        if bound and fields.get("kind") == credential.kind and kinds.is_value(value):
            swap = Swap(
                credential.credential_id,
                credential.vault_id,
                placeholder_of(access.session_id, credential.credential_id),
                Secret(value),
                bool(fields.get("in_headers")),
                bool(fields.get("in_bodies")),
            )
        else:
            _log.warning("a secret is not usable", vault_id=credential.vault_id, credential_id=credential.credential_id)
        kept.swaps[credential.credential_id] = swap, self._now() + KEPT_SECONDS
        return swap

    def changed(self, credential_id: str) -> None:
        """Forgets a credential that was replaced or purged, or that a server refused."""
        self._news += 1
        for session_id, kept in list(self._kept.items()):
            if any(each.credential_id == credential_id for each in kept.variables):
                del self._kept[session_id]

    async def keep_tidy(self) -> None:
        """Lets go of what is too old to be used, for ever: no secret stays because nobody asks for it."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._now()
            for session_id in [each for each, kept in self._kept.items() if kept.until <= now]:
                del self._kept[session_id]

    def forget(self, session_id: str) -> None:
        """Forgets a session that has ended."""
        self._news += 1
        self._kept.pop(session_id, None)


_FIXED = kinds.KINDS[kinds.ENVIRONMENT_VARIABLE].fixed


def _may_go(credential: Credential, host: str) -> bool:
    return any(fits(host, allowed) for allowed in credential.facts.get("allowed_hosts", "").split(" ") if allowed)

"""Finds the credential for a call, with its secret: what a session's vaults have for an origin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from services.kit import ids
from services.kit.logs import Log
from services.kit.origin import Origin, UrlRefused, origin_of
from services.vault_proxy import trail
from services.vault_proxy.core import kinds
from services.vault_proxy.credentials import Credential, Credentials
from services.vault_proxy.grants import Access, read_secret
from services.vault_proxy.ports import CredentialStore, Document, Fields
from services.vault_proxy.renewal import Renewal
from services.vault_proxy.secret import Secret

_log = Log("services.vault_proxy.wallet")


@dataclass(frozen=True)
class Usable:
    """A credential with the value that is sent to its origin. `version` counts its secrets."""

    credential_id: str
    vault_id: str
    kind: str
    origin: Origin
    value: Secret[str]
    version: int


@dataclass(frozen=True)
class Login:
    """A git host's credential: a user and a value, or what a GitHub App has. `version` counts its secrets."""

    credential_id: str
    vault_id: str
    origin: Origin
    version: int
    user: str
    value: Secret[str]
    app_id: str = ""
    installation_id: str = ""
    private_key: Secret[str] = field(default_factory=lambda: Secret(""))


class Wallet:
    """Reads secrets for sessions."""

    def __init__(self, store: CredentialStore, credentials: Credentials, renewal: Renewal) -> None:
        self._store = store
        self._credentials = credentials
        self._renewal = renewal

    async def find(self, access: Access, origin: Origin, refused: Secret[str] | None = None) -> Usable | None:
        """Returns the credential for an MCP server's origin: of the first vault that has one, the oldest; or None.

        `refused` is a value that the server has just refused: then an access that can be renewed is.
        Raises Refused (`CREDENTIAL_REVOKED`), or Unavailable (`CREDENTIAL_REFRESH_FAILED`, `VAULT_UNAVAILABLE`).
        """
        async for credential in self._of(access, origin):
            if credential.kind in kinds.FOR_MCP:
                found = _usable(credential, await self._read(access, credential, refused))
                if found is not None:
                    return found
        return None

    async def find_git(self, access: Access, origin: Origin) -> Login | None:
        """Returns the credential for a git host's origin: of the first vault that has one; or None.

        Raises Unavailable (`VAULT_UNAVAILABLE`), or Unauthenticated when the access is over.
        """
        async for credential in self._of(access, origin):
            if credential.kind == kinds.GIT:
                found = _login(credential, await self._read(access, credential, None))
                if found is not None:
                    return found
        return None

    async def _of(self, access: Access, origin: Origin) -> AsyncIterator[Credential]:
        """Yields what a session's vaults have for an origin: in the order of its vaults, the oldest first."""
        for vault_id in access.vault_ids:
            if not ids.MINTED.fullmatch(vault_id):
                _log.warning("a session names a vault that cannot be", vault_id=vault_id[:40])
                continue
            for credential in await self._credentials.all_of(access.tenant, vault_id, versions=False):
                if credential.origin == origin:
                    yield credential

    async def _read(self, access: Access, credential: Credential, refused: Secret[str] | None) -> Document | None:
        if credential.kind == kinds.MCP_OAUTH:
            return await self._renewal.fresh(access, credential, refused)
        path = trail.secret(access.tenant, credential.vault_id, credential.credential_id)
        return await read_secret(self._store, access, path)


def _usable(credential: Credential, document: Document | None) -> Usable | None:
    """Reads a secret document; None for one that is bound to something else than its facts say, or says nothing."""
    fields = document.fields.reveal() if document else {}
    bound = fields.get("kind") == credential.kind and _origin(fields) == credential.origin
    # A file put in by hand often ends in a newline.
    value = fields.get("access" if credential.kind == kinds.MCP_OAUTH else "value", "").strip()
    if document is None or not bound or not kinds.is_bearer(value) or credential.origin is None:
        _log.warning("a secret is not usable", vault_id=credential.vault_id, credential_id=credential.credential_id)
        return None
    return Usable(
        credential.credential_id,
        credential.vault_id,
        credential.kind,
        credential.origin,
        Secret(value),
        document.version,
    )


def _login(credential: Credential, document: Document | None) -> Login | None:
    """Reads a git host's secret document, as `_usable` does."""
    fields = document.fields.reveal() if document else {}
    value, app = fields.get("value", "").strip(), fields.get("private_key", "")
    bound = fields.get("kind") == credential.kind and _origin(fields) == credential.origin
    user = fields.get("user") or kinds.GIT_USER
    numbers = (fields.get("app_id", ""), fields.get("installation_id", ""))
    sendable = all(map(kinds.is_number, numbers)) if app else kinds.is_bearer(value)
    if document is None or not bound or not sendable or not kinds.is_user(user) or credential.origin is None:
        _log.warning("a secret is not usable", vault_id=credential.vault_id, credential_id=credential.credential_id)
        return None
    return Login(
        credential_id=credential.credential_id,
        vault_id=credential.vault_id,
        origin=credential.origin,
        version=document.version,
        user=user,
        value=Secret(value),
        app_id=numbers[0],
        installation_id=numbers[1],
        private_key=Secret(app),
    )


def _origin(fields: Fields) -> Origin | None:
    try:
        return origin_of(fields.get("origin", ""))
    except UrlRefused:
        return None

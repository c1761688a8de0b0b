"""Vaults and credentials: what the documents in the store mean.

The newest first and the oldest first below are by id: minted ids sort by age.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from services.kit import ids
from services.kit.errors import Conflict, Exists, Full, Gone, Invalid
from services.kit.logs import Log
from services.kit.origin import Origin, UrlRefused, origin_of
from services.vault_proxy import trail
from services.vault_proxy.ports import CredentialStore, Document
from services.vault_proxy.secret import Secret

STATIC_BEARER = "static_bearer"
MOST_CREDENTIALS = 20  # of one vault that are not archived
PAGE = 100
NAME_CHARACTERS = 255
BEARER_CHARACTERS = 8192

_BEARER = re.compile(r"[!-~]+")  # anything else is no header value
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z")
_log = Log("services.vault_proxy.vaults")


@dataclass(frozen=True)
class Vault:
    """A named set of credentials. Times are RFC 3339, empty when an operator made it by hand."""

    vault_id: str
    name: str = ""
    create_time: str = ""
    archived: bool = False


@dataclass(frozen=True)
class Credential:
    """A credential of one origin. `version` counts its secrets."""

    credential_id: str
    vault_id: str
    kind: str
    origin: Origin
    value: Secret[str]
    version: int
    name: str = ""
    create_time: str = ""
    update_time: str = ""


class Vaults:
    """Reads and changes vaults. `now` gives the time in RFC 3339."""

    def __init__(self, store: CredentialStore, now: Callable[[], str]) -> None:
        self._store = store
        self._now = now

    async def find(self, tenant: str, vault_ids: Sequence[str], origin: Origin) -> Credential | None:
        """Returns the credential for an origin: the oldest in the first vault that has one, or None."""
        for vault_id in vault_ids:
            if not ids.MINTED.fullmatch(vault_id):
                _log.warning("a session names a vault that cannot be", vault_id=vault_id[:40])
                continue
            for credential in await self._credentials(tenant, vault_id):
                if credential.origin == origin:
                    return credential
        return None

    async def create_vault(self, tenant: str, request_id: str, name: str) -> Vault:
        """Makes a vault, or returns the one that the same request made."""
        _check_name(name)
        vault = Vault(ids.mint("vault"), name, self._now())
        if request_id:
            vault_id = await self._claim(tenant, request_id, vault.vault_id)
            existing = await self._store.read(trail.about(tenant, vault_id))
            if existing is not None:
                found = _vault(vault_id, existing)
                if found.name != name:
                    raise Exists("REQUEST_ID_REUSED", "the request id made another vault", request_id=request_id)
                return found
            vault = Vault(vault_id, name, vault.create_time)
        try:
            await self._store.write(trail.about(tenant, vault.vault_id), _about(vault), 0)
        except Conflict:  # the same request at the same time was first
            return await self._vault(tenant, vault.vault_id)
        return vault

    async def _claim(self, tenant: str, request_id: str, vault_id: str) -> str:
        """Returns the id of the vault that a request makes: the given one, unless it was decided before."""
        path = trail.request(tenant, request_id)
        try:
            await self._store.write(path, {"vault_id": vault_id}, 0)
        except Conflict:
            document = await self._store.read(path)
            if document is None:
                raise
            return document.fields.reveal()["vault_id"]
        return vault_id

    async def list_vaults(self, tenant: str, page_size: int, page_token: str) -> tuple[list[Vault], str]:
        """Returns a page of vaults, newest first, and the token of the next one, empty at the end."""
        if page_size < 0:
            raise Invalid("ARGUMENT_INVALID", "page_size is from 0 up", field="page_size")
        names = await self._vault_ids(tenant)
        names = [name for name in reversed(names) if not page_token or name < page_token]
        size = min(page_size or PAGE, PAGE)
        page = [await self._vault(tenant, name) for name in names[:size]]
        return page, page[-1].vault_id if len(names) > size else ""

    async def archive_vault(self, tenant: str, vault_id: str) -> None:
        """Archives a vault and purges its secrets. Raises Gone (`VAULT_NOT_FOUND`)."""
        vault = await self._vault(tenant, vault_id)
        # First the mark, so that nothing is added meanwhile; a second call finishes what this one may leave.
        if not vault.archived:
            about = await self._store.read(trail.about(tenant, vault_id))
            archived = Vault(vault_id, vault.name, vault.create_time, archived=True)
            await self._store.write(trail.about(tenant, vault_id), _about(archived), about.version if about else 0)
        for credential_id in await self._credential_ids(tenant, vault_id):
            await self._purge(tenant, vault_id, credential_id)

    async def add(self, tenant: str, vault_id: str, name: str, origin: str, value: str) -> Credential:
        """Adds a fixed bearer value for an origin. Raises Gone, Exists (`CREDENTIAL_EXISTS`) or Full."""
        _check_name(name)
        bound = _bound(origin)
        _check_bearer(value)
        if (await self._vault(tenant, vault_id)).archived:
            raise Gone("VAULT_NOT_FOUND", "the vault is archived", vault_id=vault_id)
        others = await self._credentials(tenant, vault_id)
        if any(other.origin == bound for other in others):
            raise Exists("CREDENTIAL_EXISTS", f"the vault has a credential for {bound}", origin=str(bound))
        if len(others) >= MOST_CREDENTIALS:
            raise Full("FULL", f"the vault holds {MOST_CREDENTIALS} credentials")
        now = self._now()
        credential = Credential(
            ids.mint("cred"), vault_id, STATIC_BEARER, bound, Secret(value), 1, name, create_time=now, update_time=now
        )
        path = trail.credential(tenant, vault_id, credential.credential_id)
        await self._store.write(path, _fields(credential), 0)
        return credential

    async def update(self, tenant: str, credential_id: str, value: str, expected_version: int) -> Credential:
        """Replaces a secret. Raises Gone (`CREDENTIAL_NOT_FOUND`) or Conflict (`VERSION_CONFLICT`)."""
        _check_bearer(value)
        old = await self._locate(tenant, credential_id)
        if expected_version not in (0, old.version):
            raise Conflict("VERSION_CONFLICT", f"the newest version is {old.version}", version=old.version)
        new = replace(old, value=Secret(value), version=old.version + 1, update_time=self._now())
        version = await self._store.write(
            trail.credential(tenant, old.vault_id, credential_id), _fields(new), old.version
        )
        assert version == new.version, "the store counts by one"
        return new

    async def list_credentials(self, tenant: str, vault_id: str) -> list[Credential]:
        """Returns a vault's credentials, oldest first. Raises Gone (`VAULT_NOT_FOUND`)."""
        await self._vault(tenant, vault_id)
        return await self._credentials(tenant, vault_id)

    async def archive(self, tenant: str, credential_id: str) -> None:
        """Archives a credential and purges its secret. Idempotent. Raises Gone (`CREDENTIAL_NOT_FOUND`)."""
        for vault_id in await self._vault_ids(tenant):
            if await self._purge(tenant, vault_id, credential_id):
                return
        raise Gone("CREDENTIAL_NOT_FOUND", "no such credential", credential_id=credential_id)

    async def _purge(self, tenant: str, vault_id: str, credential_id: str) -> bool:
        """Puts a mark without the secret in a credential's place. Says whether there was one, or its mark."""
        path = trail.credential(tenant, vault_id, credential_id)
        document = await self._store.read(path)
        if document is None:
            return False
        fields = document.fields.reveal()
        if "archived" not in fields:
            kept = {key: fields[key] for key in ("kind", "origin", "name", "create_time") if key in fields}
            await self._store.write(path, {**kept, "archived": "1", "update_time": self._now()}, document.version)
        return True

    async def _locate(self, tenant: str, credential_id: str) -> Credential:
        for vault_id in await self._vault_ids(tenant):
            document = await self._store.read(trail.credential(tenant, vault_id, credential_id))
            if document is not None and (found := _credential(vault_id, credential_id, document)) is not None:
                return found
        raise Gone("CREDENTIAL_NOT_FOUND", "no such credential", credential_id=credential_id)

    async def _vault(self, tenant: str, vault_id: str) -> Vault:
        document = await self._store.read(trail.about(tenant, vault_id))
        if document is not None:
            return _vault(vault_id, document)
        if await self._store.list(trail.credentials_folder(tenant, vault_id)):
            return Vault(vault_id)  # an operator wrote credentials by hand
        raise Gone("VAULT_NOT_FOUND", "no such vault", vault_id=vault_id)

    async def _vault_ids(self, tenant: str) -> list[str]:
        names = await self._store.list(trail.vaults_folder(tenant))
        return [name[:-1] for name in names if name.endswith("/") and ids.MINTED.fullmatch(name[:-1])]

    async def _credential_ids(self, tenant: str, vault_id: str) -> list[str]:
        names = await self._store.list(trail.credentials_folder(tenant, vault_id))
        return [name for name in names if ids.MINTED.fullmatch(name)]

    async def _credentials(self, tenant: str, vault_id: str) -> list[Credential]:
        found = []
        for credential_id in await self._credential_ids(tenant, vault_id):
            document = await self._store.read(trail.credential(tenant, vault_id, credential_id))
            if document is not None and (credential := _credential(vault_id, credential_id, document)) is not None:
                found.append(credential)
        return found


def _vault(vault_id: str, document: Document) -> Vault:
    fields = document.fields.reveal()
    return Vault(vault_id, fields.get("name", ""), _moment(fields.get("create_time", "")), "archived" in fields)


def _about(vault: Vault) -> dict[str, str]:
    fields = {"name": vault.name, "create_time": vault.create_time}
    return {**fields, "archived": "1"} if vault.archived else fields


def _credential(vault_id: str, credential_id: str, document: Document) -> Credential | None:
    """Reads a credential's document; None for one that is archived, or that says nothing usable."""
    fields = document.fields.reveal()
    if "archived" in fields:
        return None
    value = fields.get("value", "").strip()  # a file put in by hand often ends in a newline
    try:
        origin = origin_of(fields.get("origin", ""))
        if fields.get("kind") != STATIC_BEARER or not _BEARER.fullmatch(value):
            raise ValueError
    except ValueError:
        _log.warning("a credential is not usable", vault_id=vault_id, credential_id=credential_id)
        return None
    return Credential(
        credential_id=credential_id,
        vault_id=vault_id,
        kind=STATIC_BEARER,
        origin=origin,
        value=Secret(value),
        version=document.version,
        name=fields.get("name", ""),
        create_time=_moment(fields.get("create_time", "")),
        update_time=_moment(fields.get("update_time", "")),
    )


def _fields(credential: Credential) -> dict[str, str]:
    return {
        "kind": credential.kind,
        "origin": str(credential.origin),
        "value": credential.value.reveal(),
        "name": credential.name,
        "create_time": credential.create_time,
        "update_time": credential.update_time,
    }


def _moment(text: str) -> str:
    return text if _MOMENT.fullmatch(text) else ""


def _bound(origin: str) -> Origin:
    try:
        found = origin_of(origin)
    except UrlRefused as refused:
        raise Invalid("ARGUMENT_INVALID", f"origin: {refused}", field="origin") from None
    if re.search("[/?]", origin.partition("://")[2].removesuffix("/")):
        raise Invalid("ARGUMENT_INVALID", "origin: expected scheme://host[:port] and nothing more", field="origin")
    return found


def _check_name(name: str) -> None:
    if len(name) > NAME_CHARACTERS:
        raise Invalid("ARGUMENT_INVALID", f"name: at most {NAME_CHARACTERS} characters", field="name")


def _check_bearer(value: str) -> None:
    if not _BEARER.fullmatch(value) or len(value) > BEARER_CHARACTERS:
        raise Invalid("ARGUMENT_INVALID", "secret: expected printable ASCII without spaces", field="secret")

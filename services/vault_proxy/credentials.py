"""Credentials without their secrets: what is told of them, and how secrets are written that nobody here can read.

A credential is two documents: its facts, and its secrets. Facts come first and go last, so that no secret lies anywhere
that is not listed; each step can be taken again by the next call. Oldest first is by id: minted ids sort by
age, those of one millisecond anyhow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.kit import ids
from services.kit.errors import Conflict, Exists, Full, Gone
from services.kit.logs import Log
from services.kit.origin import Origin, UrlRefused, origin_of
from services.vault_proxy import trail
from services.vault_proxy.core import kinds
from services.vault_proxy.core.kinds import Draft
from services.vault_proxy.core.renewal import CLEARED
from services.vault_proxy.ports import CredentialStore, Document

MOST_CREDENTIALS = 20  # of one vault that are not archived
ADDING_SECONDS = 10.0  # so long after its id was minted a credential may still be on its way into the vault
TRIES = 5  # of a compare-and-set on facts, which nobody changes often

_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z")
_log = Log("services.vault_proxy.credentials")


@dataclass(frozen=True)
class Credential:
    """What may be told of a credential. `version` counts its secrets; times are RFC 3339, or empty."""

    credential_id: str
    vault_id: str
    kind: str
    origin: Origin | None
    name: str = ""
    create_time: str = ""
    update_time: str = ""
    expire_time: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    revoked: bool = False
    archived: bool = False
    version: int = 0

    @property
    def key(self) -> str:
        """What its vault has only it for."""
        return kinds.key_of(self.kind, self.origin, self.facts)


class Credentials:
    """Reads and changes credentials. `now` gives the time in RFC 3339. Who asks has checked that the vault is there."""

    def __init__(self, store: CredentialStore, now: Callable[[], str]) -> None:
        self._store = store
        self._now = now

    async def all_of(
        self, tenant: str, vault_id: str, versions: bool = True, archived: bool = False
    ) -> list[Credential]:
        """Returns a vault's credentials, oldest first; without `versions` those are 0, which saves asking for them."""
        names = await self._store.list(trail.credentials_folder(tenant, vault_id))
        asked = [self._read(tenant, vault_id, name, versions) for name in names if ids.MINTED.fullmatch(name)]
        found = await asyncio.gather(*asked)
        return [each for each in found if each is not None and (archived or not each.archived)]

    async def ids_of(self, tenant: str, vault_id: str) -> list[str]:
        """Returns the ids of all that there is of credentials in a vault, also where it says nothing usable."""
        folders = trail.credentials_folder(tenant, vault_id), trail.secrets_folder(tenant, vault_id)
        names = {name for folder in folders for name in await self._store.list(folder)}
        return sorted(name for name in names if ids.MINTED.fullmatch(name))

    async def add(self, tenant: str, vault_id: str, name: str, origin: str, draft: Draft) -> Credential:
        """Adds a credential. Raises Invalid, Exists (`CREDENTIAL_EXISTS`) or Full."""
        draft, bound = kinds.checked(draft, origin)
        now = self._now()
        expires = draft.facts.get("expire_time", "")
        facts = {key: value for key, value in draft.facts.items() if key != "expire_time"}
        credential = Credential(
            ids.mint("cred"), vault_id, draft.kind, bound, name, now, now, expires, facts, version=1
        )
        others = await self.all_of(tenant, vault_id, versions=False)
        if any(other.key == credential.key for other in others):
            raise _exists(credential)
        check_room(others)
        await self._claim(tenant, credential)
        await self._store.write(_path(tenant, credential), _fields(credential), 0)
        if await self._holder(tenant, credential) != credential.credential_id:  # it was taken for one that broke off
            await self.purge(tenant, vault_id, credential.credential_id)
            raise _exists(credential)
        await self._store.write(_secret_path(tenant, credential), _secret_fields(credential, draft), 0)
        return credential

    async def _claim(self, tenant: str, credential: Credential) -> None:
        """Notes that this credential has its key, unless a living one has it: of two at once, at most one gets it.

        A holder that is not there is being added, until it is too old for that; then it broke off, or is only slow: so
        both it and whoever takes the key look again.
        """
        path = trail.key(tenant, credential.vault_id, credential.key)
        noted = await self._store.read(path)
        holder = noted.fields.reveal().get("credential_id", "") if noted else ""
        if holder and await self._lives(tenant, credential.vault_id, holder):
            raise _exists(credential)
        try:
            await self._store.write(path, {"credential_id": credential.credential_id}, noted.version if noted else 0)
        except Conflict:
            raise _exists(credential) from None
        if holder and await self._lives(tenant, credential.vault_id, holder):
            raise _exists(credential)

    async def _holder(self, tenant: str, credential: Credential) -> str:
        noted = await self._store.read(trail.key(tenant, credential.vault_id, credential.key))
        return noted.fields.reveal().get("credential_id", "") if noted else ""

    async def _lives(self, tenant: str, vault_id: str, credential_id: str) -> bool:
        found = await self._read(tenant, vault_id, credential_id, versions=False)
        if found is None:
            return ids.age_seconds(credential_id) < ADDING_SECONDS
        return not found.archived

    async def update(self, tenant: str, old: Credential, draft: Draft, expected_version: int) -> Credential:
        """Replaces what the draft says. Raises Invalid, Gone (`CREDENTIAL_NOT_FOUND`) or Conflict."""
        kinds.changed(draft, old.kind, old.facts)
        kinds.check_secrets(draft)
        if expected_version not in (0, old.version):
            raise Conflict("VERSION_CONFLICT", f"the newest version is {old.version}", version=old.version)
        facts = {**old.facts, **{name: draft.facts[name] for name in ("scope",) if draft.facts.get(name)}}
        expires = draft.facts.get("expire_time") or old.expire_time
        new = replace(old, facts=facts, expire_time=expires, update_time=self._now(), revoked=False)
        secret = _secret_fields(new, draft)
        if old.version == 0:  # adding it broke off before its secret was there
            kinds.checked(Draft(draft.kind, draft.secrets, facts), str(old.origin or ""))
            version = await self._store.write(_secret_path(tenant, old), secret, 0)
        else:
            version = await self._store.patch(_secret_path(tenant, old), {**secret, **CLEARED}, old.version)
        await self._tell(tenant, new, lambda now: replace(new, name=now.name))
        return replace(new, version=version)

    async def reconnect(self, tenant: str, old: Credential, draft: Draft) -> Credential:
        """Replaces all of a grant, also who renews it. Raises Gone, Conflict (`VERSION_CONFLICT`) or Invalid."""
        draft, _ = kinds.checked(draft, str(old.origin or ""))
        facts = {name: value for name, value in draft.facts.items() if name != "expire_time"}
        ends = draft.facts.get("expire_time", "")
        new = replace(old, facts=facts, expire_time=ends, update_time=self._now(), revoked=False)
        for _ in range(TRIES):
            version = await self._store.version(_secret_path(tenant, old))
            try:
                version = await self._store.write(_secret_path(tenant, old), _secret_fields(new, draft), version)
            except Conflict:
                continue  # it was being renewed
            await self._tell(tenant, new, lambda now: replace(new, name=now.name))
            return replace(new, version=version)
        raise Conflict("VERSION_CONFLICT", "somebody else changes the credential")

    async def _tell(self, tenant: str, credential: Credential, change: Callable[[Credential], Credential]) -> None:
        """Writes what an update changed of the facts. Raises Gone, the secret purged, if it was archived meanwhile."""
        for _ in range(TRIES):
            document = await self._store.read(_path(tenant, credential))
            now = _credential(credential.vault_id, credential.credential_id, document)
            if document is None or now is None or now.archived:
                await self._store.purge(_secret_path(tenant, credential))
                raise missing(credential.credential_id)
            try:
                await self._store.write(_path(tenant, credential), _fields(change(now)), document.version)
                return
            except Conflict:
                continue
        raise Conflict("VERSION_CONFLICT", "somebody else changes the credential", version=credential.version)

    async def renewed(self, tenant: str, credential: Credential, expire_time: str, revoked: bool) -> None:
        """Writes what came of renewing a credential's access."""
        await self._tell(tenant, credential, lambda now: replace(now, expire_time=expire_time, revoked=revoked))

    async def purge(self, tenant: str, vault_id: str, credential_id: str) -> bool:
        """Archives a credential: purges its secret, and keeps what may be told. False if there is none. Idempotent."""
        path = trail.credential(tenant, vault_id, credential_id)
        found = False
        for _ in range(TRIES):
            document = await self._store.read(path)
            if document is None:
                break
            found, fields = True, dict(document.fields.reveal())
            fields.pop("value", None)  # an operator may have put it here by mistake
            try:
                if "archived" not in fields:
                    marked = {**fields, "archived": "1", "update_time": self._now()}
                    await self._store.write(path, marked, document.version)
                break
            except Conflict:
                continue
        await self._store.purge(trail.secret(tenant, vault_id, credential_id))
        return found

    async def get(self, tenant: str, vault_id: str, credential_id: str) -> Credential | None:
        """Returns a credential, also an archived one, or None."""
        return await self._read(tenant, vault_id, credential_id, versions=True)

    async def _read(self, tenant: str, vault_id: str, credential_id: str, versions: bool) -> Credential | None:
        document = await self._store.read(trail.credential(tenant, vault_id, credential_id))
        found = _credential(vault_id, credential_id, document)
        if found is None or found.archived or not versions:
            return found
        return replace(found, version=await self._store.version(_secret_path(tenant, found)))


def check_room(others: Sequence[Credential]) -> None:
    """Raises Full when a vault with these living credentials takes no more."""
    if len(others) >= MOST_CREDENTIALS:
        raise Full("FULL", f"the vault holds {MOST_CREDENTIALS} credentials")


def missing(credential_id: str) -> Gone:
    """Returns the error for a credential that is not there."""
    return Gone("CREDENTIAL_NOT_FOUND", "no such credential", credential_id=credential_id)


def _exists(credential: Credential) -> Exists:
    key = credential.key.partition(" ")[2]
    return Exists("CREDENTIAL_EXISTS", f"the vault has a credential for {key}", key=key)


def _path(tenant: str, credential: Credential) -> str:
    return trail.credential(tenant, credential.vault_id, credential.credential_id)


def _secret_path(tenant: str, credential: Credential) -> str:
    return trail.secret(tenant, credential.vault_id, credential.credential_id)


def _secret_fields(credential: Credential, draft: Draft) -> dict[str, str]:
    """Returns the secret document: the secrets, and with them what they are bound to."""
    secrets = {name: draft.secret(name) for name in kinds.KINDS[draft.kind].secrets if draft.secret(name)}
    bound = {"kind": credential.kind, "origin": str(credential.origin or "")}
    expires = {"expire_time": credential.expire_time} if credential.expire_time else {}
    return {**credential.facts, **bound, **expires, **secrets}


def _fields(credential: Credential) -> dict[str, str]:
    said = {
        "kind": credential.kind,
        "origin": str(credential.origin or ""),
        "name": credential.name,
        "create_time": credential.create_time,
        "update_time": credential.update_time,
        "expire_time": credential.expire_time,
        "revoked": "1" if credential.revoked else "",
    }
    return {**credential.facts, **{name: value for name, value in said.items() if value}}


def _credential(vault_id: str, credential_id: str, document: Document | None) -> Credential | None:
    """Reads a credential's facts; None where there are none, or none that are usable."""
    if document is None:
        return None
    fields = document.fields.reveal()
    kind = fields.get("kind", "")
    try:
        origin = None if kind == kinds.ENVIRONMENT_VARIABLE else origin_of(fields.get("origin", ""))
        its = kinds.KINDS[kind]
    except (UrlRefused, KeyError):
        _log.warning("a credential is not usable", vault_id=vault_id, credential_id=credential_id)
        return None
    return Credential(
        credential_id=credential_id,
        vault_id=vault_id,
        kind=kind,
        origin=origin,
        name=fields.get("name", ""),
        create_time=moment(fields.get("create_time", "")),
        update_time=moment(fields.get("update_time", "")),
        expire_time=moment(fields.get("expire_time", "")),
        facts={name: fields[name] for name in (*its.fixed, "scope") if fields.get(name)},
        revoked=bool(fields.get("revoked")),
        archived="archived" in fields,
    )


def moment(text: str) -> str:
    """Returns a time of the store's as it is, and what is none as nothing."""
    return text if _MOMENT.fullmatch(text) else ""

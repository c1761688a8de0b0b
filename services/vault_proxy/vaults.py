"""Vaults: named sets of credentials of a tenant. Newest first is by id: minted ids sort by age."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from services.kit import ids
from services.kit.errors import Conflict, Exists, Gone, Invalid
from services.kit.origin import Origin
from services.vault_proxy import trail
from services.vault_proxy.core.kinds import MCP_OAUTH, NAME_CHARACTERS, Draft, key_of
from services.vault_proxy.credentials import Credential, Credentials, check_room, missing, moment
from services.vault_proxy.ports import CredentialStore, Document

PAGE = 100


@dataclass(frozen=True)
class Vault:
    """A named set of credentials. Times are RFC 3339, empty when an operator made it by hand."""

    vault_id: str
    name: str = ""
    create_time: str = ""
    archived: bool = False


class Vaults:
    """Reads and changes vaults, and the credentials in them.

    `now` gives the time in RFC 3339; `changed` is told of each credential whose secret was replaced or purged.
    """

    def __init__(
        self, store: CredentialStore, now: Callable[[], str], changed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._store = store
        self._now = now
        self._changed = changed
        self._credentials = Credentials(store, now)

    async def create_vault(self, tenant: str, request_id: str, name: str) -> Vault:
        """Makes a vault, or returns the one that the same request made."""
        check_name(name)
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
            return await self.get_vault(tenant, vault.vault_id)
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

    async def get_vault(self, tenant: str, vault_id: str) -> Vault:
        """Returns a vault. Raises Gone (`VAULT_NOT_FOUND`)."""
        document = await self._store.read(trail.about(tenant, vault_id))
        if document is not None:
            return _vault(vault_id, document)
        if await self._store.list(trail.credentials_folder(tenant, vault_id)):
            return Vault(vault_id)  # an operator wrote credentials by hand
        raise Gone("VAULT_NOT_FOUND", "no such vault", vault_id=vault_id)

    async def list_vaults(self, tenant: str, page_size: int, page_token: str) -> tuple[list[Vault], str]:
        """Returns a page of vaults, newest first, and the token of the next one, empty at the end."""
        if page_size < 0:
            raise Invalid("ARGUMENT_INVALID", "page_size is from 0 up", field="page_size")
        names = await self._vault_ids(tenant)
        names = [name for name in reversed(names) if not page_token or name < page_token]
        size = min(page_size or PAGE, PAGE)
        page = [await self.get_vault(tenant, name) for name in names[:size]]
        return page, page[-1].vault_id if len(names) > size else ""

    async def archive_vault(self, tenant: str, vault_id: str) -> None:
        """Archives a vault and purges its secrets. Idempotent. Raises Gone (`VAULT_NOT_FOUND`)."""
        vault = await self.get_vault(tenant, vault_id)
        # First the mark, so that nothing is added meanwhile; a second call finishes what this one may leave.
        if not vault.archived:
            about = await self._store.read(trail.about(tenant, vault_id))
            archived = replace(vault, archived=True)
            await self._store.write(trail.about(tenant, vault_id), _about(archived), about.version if about else 0)
        for credential_id in await self._credentials.ids_of(tenant, vault_id):
            await self._credentials.purge(tenant, vault_id, credential_id)
            self._changed(credential_id)

    async def add(self, tenant: str, vault_id: str, name: str, origin: str, draft: Draft) -> Credential:
        """Adds a credential. Raises Gone (`VAULT_NOT_FOUND`), Invalid, Exists (`CREDENTIAL_EXISTS`) or Full."""
        check_name(name)
        await self._living(tenant, vault_id)
        added = await self._credentials.add(tenant, vault_id, name, origin, draft)
        try:
            await self._living(tenant, vault_id)
        except Gone:  # archived meanwhile, and perhaps before this credential was there to be purged
            await self._credentials.purge(tenant, vault_id, added.credential_id)
            raise
        return added

    async def check_place(self, tenant: str, vault_id: str, origin: Origin) -> Credential | None:
        """Returns the OAuth grant that a vault has for an origin, if any.

        Raises Gone (`VAULT_NOT_FOUND`), Exists (`CREDENTIAL_EXISTS`) when there is another kind in its place, or Full.
        """
        await self._living(tenant, vault_id)
        others = await self._credentials.all_of(tenant, vault_id, versions=False)
        for each in others:
            if each.key == key_of(MCP_OAUTH, origin, {}):
                if each.kind != MCP_OAUTH:
                    message = f"the vault has a {each.kind} for {origin}: archive it first"
                    raise Exists("CREDENTIAL_EXISTS", message, key=str(origin))
                return each
        check_room(others)
        return None

    async def connect(self, tenant: str, vault_id: str, name: str, origin: Origin, draft: Draft) -> Credential:
        """Adds an account's OAuth grant, or puts it in the place of the one that the vault has for the origin.

        Raises as `check_place` and `add`.
        """
        old = await self.check_place(tenant, vault_id, origin)
        if old is None:
            return await self.add(tenant, vault_id, name, str(origin), draft)
        connected = await self._credentials.reconnect(tenant, old, draft)
        self._changed(old.credential_id)
        return connected

    async def update(self, tenant: str, credential_id: str, draft: Draft, expected_version: int) -> Credential:
        """Replaces secrets. Raises Gone (`CREDENTIAL_NOT_FOUND`), Invalid or Conflict (`VERSION_CONFLICT`)."""
        old = await self.locate(tenant, credential_id)
        updated = await self._credentials.update(tenant, old, draft, expected_version)
        self._changed(credential_id)
        return updated

    async def list_credentials(self, tenant: str, vault_id: str, archived: bool = False) -> list[Credential]:
        """Returns a vault's credentials, oldest first. Raises Gone (`VAULT_NOT_FOUND`)."""
        await self.get_vault(tenant, vault_id)
        return await self._credentials.all_of(tenant, vault_id, archived=archived)

    async def archive(self, tenant: str, credential_id: str) -> None:
        """Archives a credential and purges its secret. Idempotent. Raises Gone (`CREDENTIAL_NOT_FOUND`)."""
        for vault_id in await self._vault_ids(tenant):
            if await self._credentials.purge(tenant, vault_id, credential_id):
                self._changed(credential_id)
                return
        raise missing(credential_id)

    async def locate(self, tenant: str, credential_id: str) -> Credential:
        """Returns a credential that is not archived. Raises Gone (`CREDENTIAL_NOT_FOUND`)."""
        for vault_id in await self._vault_ids(tenant):
            found = await self._credentials.get(tenant, vault_id, credential_id)
            if found is not None and not found.archived:
                return found
        raise missing(credential_id)

    async def _living(self, tenant: str, vault_id: str) -> None:
        if (await self.get_vault(tenant, vault_id)).archived:
            raise Gone("VAULT_NOT_FOUND", "the vault is archived", vault_id=vault_id)

    async def _vault_ids(self, tenant: str) -> list[str]:
        names = await self._store.list(trail.vaults_folder(tenant))
        return [name[:-1] for name in names if name.endswith("/") and ids.MINTED.fullmatch(name[:-1])]


def _vault(vault_id: str, document: Document) -> Vault:
    fields = document.fields.reveal()
    return Vault(vault_id, fields.get("name", ""), moment(fields.get("create_time", "")), "archived" in fields)


def _about(vault: Vault) -> dict[str, str]:
    fields = {"name": vault.name, "create_time": vault.create_time}
    return {**fields, "archived": "1"} if vault.archived else fields


def check_name(name: str) -> None:
    """Raises Invalid (`ARGUMENT_INVALID`) for a name that is too long."""
    if len(name) > NAME_CHARACTERS:
        raise Invalid("ARGUMENT_INVALID", f"name: at most {NAME_CHARACTERS} characters", field="name")

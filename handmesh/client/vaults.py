"""Vaults and the credentials in them. Secrets go one way: nothing here returns one."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from handmesh.client.errors import HandmeshError
from handmesh.session.v1 import session_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub

if TYPE_CHECKING:
    from handmesh.client.client import Client
    from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceAsyncStub

START_SECONDS = 60.0
"""How long it may take to find out how an account is connected, or to try a credential."""

_SERVICE = "handmesh.vault_proxy.v1.VaultProxyService"
ONCE = tuple(
    (_SERVICE, method) for method in ("AddCredential", "StartConnection", "FinishConnection", "ValidateCredential")
)
"""Calls that are not made again by themselves: what they bring works once."""


class Vaults:
    """The vaults of a client's tenant. Methods raise HandmeshError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._link = client.vault_proxy_link
        self._stub: VaultProxyServiceAsyncStub = VaultProxyServiceStub(self._link.channel)

    async def create(self, name: str = "", *, request_id: str = "") -> pb.Vault:
        """Makes a vault. A `request_id` of your own makes it idempotent across your calls."""
        request = pb.CreateVaultRequest(name=name, request_id=request_id or f"cli_{secrets.token_hex(13)}")
        return (await self._link.call(self._stub.CreateVault, request)).vault

    async def all(self, *, include_archived: bool = False) -> AsyncIterator[pb.Vault]:
        """Yields the vaults, newest first."""
        request = pb.ListVaultsRequest()
        while True:
            page = await self._link.call(self._stub.ListVaults, request)
            for vault in page.vaults:
                if include_archived or not vault.archived:
                    yield vault
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def named(self, name: str) -> list[pb.Vault]:
        """Returns the living vault of an id, or all of a name, newest first."""
        return [vault async for vault in self.all() if name in (vault.vault_id, vault.name)]

    async def archive(self, vault_id: str) -> None:
        """Archives a vault and purges its secrets. Idempotent."""
        await self._link.call(self._stub.ArchiveVault, pb.ArchiveVaultRequest(vault_id=vault_id))

    async def credentials(self, vault_id: str, *, include_archived: bool = False) -> list[pb.Credential]:
        """Returns a vault's credentials, oldest first."""
        request = pb.ListCredentialsRequest(vault_id=vault_id, include_archived=include_archived)
        return list((await self._link.call(self._stub.ListCredentials, request)).credentials)

    async def credential(self, credential_id: str) -> pb.Credential:
        """Returns a living credential of whatever vault. Raises `CREDENTIAL_NOT_FOUND`."""
        async for vault in self.all():
            for credential in await self.credentials(vault.vault_id):
                if credential.credential_id == credential_id:
                    return credential
        raise HandmeshError("CREDENTIAL_NOT_FOUND", f"no such credential: {credential_id}", code="NOT_FOUND")

    async def add(
        self, vault_id: str, secret: pb.CredentialSecret, *, origin: str = "", name: str = ""
    ) -> pb.Credential:
        """Adds a credential, bound to its origin for ever."""
        request = pb.AddCredentialRequest(vault_id=vault_id, name=name, origin=origin, secret=secret)
        return (await self._link.call(self._stub.AddCredential, request)).credential

    async def archive_credential(self, credential_id: str) -> None:
        """Archives a credential and purges its secrets. Idempotent."""
        request = pb.ArchiveCredentialRequest(credential_id=credential_id)
        await self._link.call(self._stub.ArchiveCredential, request)

    async def validate(self, credential: pb.Credential, url: str = "") -> pb.ValidateCredentialResponse:
        """Uses a credential once, harmlessly, and says whether it works. An empty `url` is left to the service."""
        asked = session_pb2.VouchVaultRequest(vault_id=credential.vault_id)
        vouched = await self._client.session_link.call(self._client.session_stub.VouchVault, asked)
        request = pb.ValidateCredentialRequest(credential_id=credential.credential_id, voucher=vouched.voucher, url=url)
        return await self._link.call(self._stub.ValidateCredential, request, START_SECONDS)

    async def start_connection(self, request: pb.StartConnectionRequest) -> pb.StartConnectionResponse:
        """Begins to connect an account: returns where to send the person."""
        return await self._link.call(self._stub.StartConnection, request, START_SECONDS)

    async def finish_connection(self, request: pb.FinishConnectionRequest) -> pb.Credential:
        """Finishes it with what the redirect brought. Each state works once."""
        return (await self._link.call(self._stub.FinishConnection, request)).credential

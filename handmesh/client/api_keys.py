"""The API keys of clients. Each is told once, when it is made."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from handmesh.client.errors import HandmeshError
from handmesh.session.v1 import session_pb2 as pb

if TYPE_CHECKING:
    from handmesh.client.client import Client


class ApiKeys:
    """The API keys of a tenant. An empty tenant is the client's own. Methods raise HandmeshError."""

    def __init__(self, client: Client) -> None:
        self._link = client.session_link
        self._stub = client.session_stub

    async def create(
        self,
        name: str,
        scope: pb.Scope.ValueType,
        *,
        tenant: str = "",
        expires: datetime.datetime | None = None,
        limits: pb.CallerLimits | None = None,
    ) -> pb.CreateApiKeyResponse:
        """Makes a key. Nobody tells it again. `expires` is aware."""
        request = pb.CreateApiKeyRequest(tenant=tenant, name=name, scope=scope, limits=limits)
        if expires is not None:
            request.expire_time.FromDatetime(expires.astimezone(datetime.UTC))
        return await self._link.call(self._stub.CreateApiKey, request)

    async def all(self, tenant: str = "") -> list[pb.ApiKey]:
        """Lists the keys, without the keys, oldest first."""
        return list((await self._link.call(self._stub.ListApiKeys, pb.ListApiKeysRequest(tenant=tenant))).api_keys)

    async def revoke(self, name: str, tenant: str = "") -> list[pb.ApiKey]:
        """Makes the key of an id, or all of a name, void. Raises `API_KEY_NOT_FOUND` for none."""
        found = [each for each in await self.all(tenant) if name in (each.api_key_id, each.name)]
        if not found:
            raise HandmeshError("API_KEY_NOT_FOUND", f"there is no API key {name!r}", code="NOT_FOUND")
        revoked = []
        for each in found:
            request = pb.RevokeApiKeyRequest(api_key_id=each.api_key_id)
            revoked.append((await self._link.call(self._stub.RevokeApiKey, request)).api_key)
        return revoked

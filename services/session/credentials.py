"""Clients' credentials: the operator's keys from a file, API keys that were minted here, and tokens of issuers.

This service alone knows them; the others ask `CheckCaller`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from handmesh.session.v1 import session_pb2 as pb
from services.kit.callers import CREDENTIAL_CHARACTERS
from services.kit.identity import Caller, CallerLimits, unknown
from services.kit.identity import current as caller
from services.kit.key_file import KeyFile
from services.session import codec
from services.session.api_keys import ApiKey, ApiKeys, Wanted, is_key
from services.session.grants import Grants

_NANOSECONDS = 1_000_000_000


class Tokens(Protocol):
    """Knows the tokens of issuers that the mesh trusts."""

    def is_token(self, credential: str) -> bool:
        """Says whether it has the form of a token."""

    async def check(self, credential: str) -> Caller:
        """Says who shows it. Raises Unauthenticated (`IDENTITY_UNKNOWN`), Unavailable (`ISSUER_UNAVAILABLE`)."""


class Credentials:
    """A `Source` (see `services.kit.callers`). `follow_file` has to run."""

    def __init__(self, keys: ApiKeys, file: KeyFile, tokens: Tokens | None, grants: Grants) -> None:
        self.keys = keys
        self._file = file
        self._tokens = tokens
        self._grants = grants

    async def ask(self, credential: str) -> Caller:
        """See `Source.ask`."""
        if len(credential) > CREDENTIAL_CHARACTERS:
            raise unknown()
        if is_key(credential):
            return await self.keys.check(credential)
        if self._tokens is not None and self._tokens.is_token(credential):
            return await self._tokens.check(credential)
        return await self._file.ask(credential)

    async def news(self) -> AsyncIterator[str]:
        """See `Source.news`."""
        heard = False
        async for revoked in self._grants.watch():
            if not heard:
                heard = True
                yield ""
            if revoked is not None and revoked.caller_id:
                yield revoked.caller_id

    async def follow_file(self) -> None:
        """Tells everybody which keys are not in the operator's file any more, for ever."""
        async for caller_id in self._file.news():
            await self._grants.revoke_caller(caller_id)


class ApiKeyCalls:
    """The service's methods about clients' credentials."""

    _credentials: Credentials

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: object) -> pb.CreateApiKeyResponse:
        expires = max(codec.nanoseconds(request.expire_time), 1) if request.HasField("expire_time") else 0
        limits = request.limits
        wanted = Wanted(
            request.tenant,
            request.name,
            request.scope,
            expires,
            CallerLimits(limits.calls_per_second, limits.burst, limits.calls, limits.streams),
        )
        key, made = await self._credentials.keys.create(caller(), wanted)
        return pb.CreateApiKeyResponse(key=key, api_key=_told(made))

    async def ListApiKeys(self, request: pb.ListApiKeysRequest, context: object) -> pb.ListApiKeysResponse:
        found = await self._credentials.keys.all_of(caller(), request.tenant)
        return pb.ListApiKeysResponse(api_keys=map(_told, found))

    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: object) -> pb.RevokeApiKeyResponse:
        return pb.RevokeApiKeyResponse(api_key=_told(await self._credentials.keys.revoke(caller(), request.api_key_id)))

    async def CheckCaller(self, request: pb.CheckCallerRequest, context: object) -> pb.CheckCallerResponse:
        found = await self._credentials.ask(request.credential)
        answer = pb.CheckCallerResponse(
            caller_id=found.id,
            tenant=found.tenant or "",
            name=found.name,
            scope=pb.Scope.ValueType(found.scope),
            limits=_limits(found.limits),
        )
        if found.expires:
            answer.expire_time.FromNanoseconds(int(found.expires * _NANOSECONDS))
        return answer


def _told(kept: ApiKey) -> pb.ApiKey:
    """Says what is known of a key: not its hash."""
    told = pb.ApiKey(
        api_key_id=kept.id,
        tenant=kept.tenant,
        name=kept.name,
        scope=pb.Scope.ValueType(kept.scope),
        limits=_limits(kept.limits),
        create_time=codec.timestamp(kept.created),
    )
    if kept.expires:
        told.expire_time.CopyFrom(codec.timestamp(kept.expires))
    if kept.revoked:
        told.revoke_time.CopyFrom(codec.timestamp(kept.revoked))
    return told


def _limits(limits: CallerLimits) -> pb.CallerLimits:
    return pb.CallerLimits(
        calls_per_second=limits.calls_per_second, burst=limits.burst, calls=limits.calls, streams=limits.streams
    )

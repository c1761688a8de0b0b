"""Hand tokens: a worker's right to connect as one hand of a tenant, and to nothing else.

A token is `hand_...`, its id, and 256 random bits. Only its SHA-256 is kept, in the bucket `hand_tokens`:

    s.<id>             whose it is, which hand's, and its hash
    t.<tenant>.<id>    finds a tenant's tokens; one without an `s.` was never quite made
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from handmesh.session.v1 import session_pb2 as pb
from services.kit import identity, ids
from services.kit.errors import Conflict, Full, Gone, Invalid, Unauthenticated
from services.session import codec
from services.session.grants import Grants
from services.session.log import Registry
from services.session.memories_core import tenant_key

BUCKET = "hand_tokens"
PREFIX = "hand"
BYTES = 32
CHARACTERS = 128
MOST_TOKENS = 10_000  # of a tenant, revoked ones too
MOST_TRIES = 16  # of two who revoke the same at once
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class HandToken:
    """What is kept of a token. Times are in nanoseconds; one that is good was revoked at 0."""

    id: str
    tenant: str
    name: str
    sha256: str
    created: int
    revoked: int = 0


class HandTokens:
    """All hand tokens. `now` is in nanoseconds."""

    def __init__(self, registry: Registry, grants: Grants, now: Callable[[], int]) -> None:
        """Tells of revoked ones where those of grants are told."""
        self._registry = registry
        self._grants = grants
        self._now = now

    async def create(self, tenant: str, name: str) -> tuple[str, HandToken]:
        """Makes a token. Raises Invalid (`ARGUMENT_INVALID`) for a name that no hand can have, Full (`FULL`)."""
        if not _NAME.fullmatch(name):
            raise Invalid("ARGUMENT_INVALID", f"a hand's name must match ^{_NAME.pattern}$", field="name")
        if len(await self._ids(tenant)) >= MOST_TOKENS:
            raise Full("FULL", f"a tenant has at most {MOST_TOKENS} hand tokens", limit=MOST_TOKENS)
        id = ids.mint(PREFIX)
        token = f"{id}.{secrets.token_urlsafe(BYTES)}"
        made = HandToken(id, tenant, name, _digest(token), self._now())
        await self._registry.put(BUCKET, f"t.{tenant_key(tenant)}.{id}", b"")
        await self._registry.put(BUCKET, f"s.{id}", _value(made))
        return token, made

    async def all_of(self, tenant: str) -> list[HandToken]:
        """Lists a tenant's tokens, oldest first."""
        found = await self._registry.get_many(BUCKET, [f"s.{id}" for id in await self._ids(tenant)])
        return sorted((HandToken(**json.loads(value)) for value in found.values()), key=lambda it: it.id)

    async def _ids(self, tenant: str) -> list[str]:
        prefix = f"t.{tenant_key(tenant)}."
        return [key.removeprefix(prefix) for key in await self._registry.keys(BUCKET, prefix)]

    async def revoke(self, tenant: str, id: str) -> HandToken:
        """Makes a token void, and tells everybody. Raises Gone (`HAND_TOKEN_NOT_FOUND`)."""
        for _ in range(MOST_TRIES):
            entry = await self._registry.get(BUCKET, f"s.{id}")
            kept = HandToken(**json.loads(entry.value)) if entry is not None else None
            if entry is None or kept is None or kept.tenant != tenant:
                raise Gone("HAND_TOKEN_NOT_FOUND", "there is no such hand token", hand_token_id=id)
            if not kept.revoked:
                kept = replace(kept, revoked=self._now())
                if not await self._registry.swap(BUCKET, f"s.{id}", _value(kept), entry.revision):
                    continue
            await self._grants.revoke_hand(id)
            return kept
        raise Conflict("VERSION_CONFLICT", "others change the token all the time")

    async def check(self, token: str) -> HandToken:
        """Says whose a token is. Raises Unauthenticated (`GRANT_INVALID`) when it is nobody's, or not any more."""
        id, _, rest = token.partition(".")
        if len(token) > CHARACTERS or not rest or not ids.MINTED.fullmatch(id) or not id.startswith(f"{PREFIX}_"):
            raise _invalid()
        entry = await self._registry.get(BUCKET, f"s.{id}")
        kept = HandToken(**json.loads(entry.value)) if entry is not None else None
        if kept is None or not hmac.compare_digest(kept.sha256, _digest(token)) or kept.revoked:
            raise _invalid()
        return kept


class HandTokenCalls:
    """The service's methods about hand tokens."""

    _hand_tokens: HandTokens

    async def CreateHandToken(self, request: pb.CreateHandTokenRequest, context: object) -> pb.CreateHandTokenResponse:
        token, made = await self._hand_tokens.create(_tenant(), request.name)
        return pb.CreateHandTokenResponse(token=token, hand_token=_told(made))

    async def ListHandTokens(self, request: pb.ListHandTokensRequest, context: object) -> pb.ListHandTokensResponse:
        return pb.ListHandTokensResponse(hand_tokens=map(_told, await self._hand_tokens.all_of(_tenant())))

    async def RevokeHandToken(self, request: pb.RevokeHandTokenRequest, context: object) -> pb.RevokeHandTokenResponse:
        revoked = await self._hand_tokens.revoke(_tenant(), request.hand_token_id)
        return pb.RevokeHandTokenResponse(hand_token=_told(revoked))

    async def CheckHandToken(self, request: pb.CheckHandTokenRequest, context: object) -> pb.CheckHandTokenResponse:
        kept = await self._hand_tokens.check(request.token)
        return pb.CheckHandTokenResponse(hand_token_id=kept.id, tenant=kept.tenant, name=kept.name)


def _tenant() -> str:
    tenant = identity.current().tenant
    assert tenant is not None, "the access table lets only clients in"
    return tenant


def _told(kept: HandToken) -> pb.HandToken:
    """Says what is known of a token: not its hash."""
    told = pb.HandToken(hand_token_id=kept.id, name=kept.name, create_time=codec.timestamp(kept.created))
    if kept.revoked:
        told.revoke_time.CopyFrom(codec.timestamp(kept.revoked))
    return told


def _value(kept: HandToken) -> bytes:
    return json.dumps(asdict(kept)).encode()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _invalid() -> Unauthenticated:
    return Unauthenticated("GRANT_INVALID", "the hand's token is not valid, or not any more")

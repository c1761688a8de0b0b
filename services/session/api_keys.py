"""API keys: a client's right to call for one tenant, within a scope. Minted, kept, listed and revoked here alone.

A key is `hm_<id>_<256 random bits>`. Only its SHA-256 is kept, in the bucket `api_keys`:

    s.<id>             whose it is, what it may do, and its hash
    t.<tenant>.<id>    finds a tenant's keys; one without an `s.` was never quite made
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from services.kit import ids
from services.kit.access import Scope
from services.kit.errors import Conflict, Full, Gone, Invalid
from services.kit.identity import Caller, CallerLimits, scope_denied, unknown
from services.session.grants import Grants
from services.session.log import Registry
from services.session.memories_core import tenant_key

BUCKET = "api_keys"
PREFIX = "key"
BYTES = 32
MOST_KEYS = 10_000  # of a tenant, revoked ones too
MOST_TRIES = 16  # of two who revoke the same at once
MOST_LIMIT = 1_000_000
NAME_CHARACTERS = 64
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"hm_(key_[a-z0-9]{26})_[a-z2-7]{52}")
_SECOND = 1_000_000_000


@dataclass(frozen=True)
class ApiKey:
    """What is kept of a key. Times are in nanoseconds; 0 is never."""

    id: str
    tenant: str
    name: str
    sha256: str = field(repr=False)
    scope: Scope
    limits: CallerLimits
    created: int
    expires: int = 0
    revoked: int = 0

    def to_bytes(self) -> bytes:
        """Writes it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ApiKey:
        """Reads what `to_bytes` has written."""
        kept: dict[str, Any] = json.loads(data)
        scope, limits = Scope(kept.pop("scope")), CallerLimits(**kept.pop("limits"))
        return cls(scope=scope, limits=limits, **kept)


@dataclass(frozen=True)
class Wanted:
    """What a key shall be. An empty tenant is the caller's own; `expires` is in nanoseconds, and 0 is never."""

    tenant: str
    name: str
    scope: int
    expires: int = 0
    limits: CallerLimits = field(default=CallerLimits())


class ApiKeys:
    """All API keys. `now` is in nanoseconds. `by` is who asks: an operator for all tenants, others for their own."""

    def __init__(self, registry: Registry, grants: Grants, now: Callable[[], int]) -> None:
        """Tells of revoked ones where those of grants are told."""
        self._registry = registry
        self._grants = grants
        self._now = now

    async def create(self, by: Caller, wanted: Wanted) -> tuple[str, ApiKey]:
        """Makes a key. Raises Invalid (`ARGUMENT_INVALID`), Denied (`SCOPE_DENIED`), Full (`FULL`)."""
        tenant = _tenant(by, wanted.tenant)
        scope = _checked(wanted, self._now())
        if scope > by.scope:
            raise scope_denied(by, scope)
        if len(await self._ids(tenant)) >= MOST_KEYS:
            raise Full("FULL", f"a tenant has at most {MOST_KEYS} API keys", limit=MOST_KEYS)
        id = ids.mint(PREFIX)
        key = f"hm_{id}_{base64.b32encode(secrets.token_bytes(BYTES)).decode().rstrip('=').lower()}"
        made = ApiKey(id, tenant, wanted.name, _digest(key), scope, wanted.limits, self._now(), wanted.expires)
        await self._registry.put(BUCKET, f"t.{tenant_key(tenant)}.{id}", b"")
        await self._registry.put(BUCKET, f"s.{id}", made.to_bytes())
        return key, made

    async def all_of(self, by: Caller, tenant: str) -> list[ApiKey]:
        """Lists a tenant's keys, oldest first. Raises Denied (`SCOPE_DENIED`)."""
        found = await self._registry.get_many(BUCKET, [f"s.{id}" for id in await self._ids(_tenant(by, tenant))])
        return sorted(map(ApiKey.from_bytes, found.values()), key=lambda it: it.id)

    async def _ids(self, tenant: str) -> list[str]:
        prefix = f"t.{tenant_key(tenant)}."
        return [key.removeprefix(prefix) for key in await self._registry.keys(BUCKET, prefix)]

    async def revoke(self, by: Caller, id: str) -> ApiKey:
        """Makes a key void, and tells everybody. Raises Gone (`API_KEY_NOT_FOUND`)."""
        for _ in range(MOST_TRIES):
            entry = await self._registry.get(BUCKET, f"s.{id}")
            kept = ApiKey.from_bytes(entry.value) if entry is not None else None
            if entry is None or kept is None or (kept.tenant != by.tenant and by.scope < Scope.OPERATOR):
                raise Gone("API_KEY_NOT_FOUND", "there is no such API key", api_key_id=id)
            if not kept.revoked:
                kept = replace(kept, revoked=self._now())
                if not await self._registry.swap(BUCKET, f"s.{id}", kept.to_bytes(), entry.revision):
                    continue
            await self._grants.revoke_caller(id)
            return kept
        raise Conflict("VERSION_CONFLICT", "others change the key all the time")

    async def check(self, key: str) -> Caller:
        """Says who shows a key. Raises Unauthenticated (`IDENTITY_UNKNOWN`) when it is nobody's, or not any more."""
        form = _KEY.fullmatch(key)
        entry = await self._registry.get(BUCKET, f"s.{form[1]}") if form is not None else None
        kept = ApiKey.from_bytes(entry.value) if entry is not None else None
        if kept is None or not hmac.compare_digest(kept.sha256, _digest(key)) or kept.revoked:
            raise unknown()
        if kept.expires and kept.expires <= self._now():
            raise unknown()
        return Caller(
            "client",
            kept.tenant,
            kept.name,
            id=kept.id,
            scope=kept.scope,
            limits=kept.limits,
            expires=kept.expires / _SECOND,
        )


def is_key(credential: str) -> bool:
    """Says whether it has the form of a key that was minted here."""
    return _KEY.fullmatch(credential) is not None


def _tenant(by: Caller, wanted: str) -> str:
    assert by.tenant is not None, "the access table lets only clients in"
    if wanted in ("", by.tenant):
        return by.tenant
    if by.scope < Scope.OPERATOR:
        raise scope_denied(by, Scope.OPERATOR)
    if not TENANT.fullmatch(wanted):
        raise Invalid("ARGUMENT_INVALID", f"a tenant must match ^{TENANT.pattern}$", field="tenant")
    return wanted


def _checked(wanted: Wanted, now: int) -> Scope:
    """Returns the scope. Raises Invalid for the first thing that cannot be."""
    if not 0 < len(wanted.name) <= NAME_CHARACTERS or not wanted.name.isprintable():
        raise Invalid("ARGUMENT_INVALID", f"a key's name has 1 to {NAME_CHARACTERS} characters", field="name")
    if wanted.scope not in (Scope.READ, Scope.RUN, Scope.ADMIN):
        raise Invalid("ARGUMENT_INVALID", "a key's scope is read, run or admin", field="scope")
    if wanted.expires and wanted.expires <= now:
        raise Invalid("ARGUMENT_INVALID", "a key expires in the future", field="expire_time")
    if not all(0 <= limit <= MOST_LIMIT for limit in asdict(wanted.limits).values()):
        raise Invalid("ARGUMENT_INVALID", f"a limit is 0 to {MOST_LIMIT}", field="limits")
    return Scope(wanted.scope)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()

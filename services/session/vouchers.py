"""Vouchers: a client's right to have one vault's secrets used once, without a session.

A voucher is 256 random bits; only its SHA-256 is kept, beside the grants. To the vault it is nothing: the vault proxy
brings it here, over mutual TLS, and gets the word that the vault takes. So a client never holds anything with which a
secret could be read past the vault proxy.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import identity, ids
from services.kit.errors import Unauthenticated
from services.session import codec
from services.session.grants import BUCKET, Granted, Vouch
from services.session.log import Registry

LIFETIME_SECONDS = 60
BYTES = 32
CHARACTERS = 128
_USED = b"{}"


@dataclass(frozen=True)
class Redeemed:
    """Whose a voucher was. `word` is for the vault, and empty when this service has no key to sign with."""

    tenant: str
    vault_id: str
    word: str


class Vouchers:
    """Mints and redeems vouchers. `now` is in nanoseconds."""

    def __init__(self, registry: Registry, now: Callable[[], int], vouch: Vouch | None) -> None:
        self._registry = registry
        self._now = now
        self._vouch = vouch

    async def mint(self, tenant: str, vault_id: str) -> tuple[str, int]:
        """Returns a voucher for a tenant's vault, which need not be there, and when it ends, in nanoseconds."""
        ids.check("vault_id", vault_id)
        voucher = secrets.token_urlsafe(BYTES)
        expires = self._now() + LIFETIME_SECONDS * 1_000_000_000
        kept = {"tenant": tenant, "vault_id": vault_id, "expires": expires}
        await self._registry.put(BUCKET, _key(voucher), json.dumps(kept).encode())
        return voucher, expires

    async def redeem(self, voucher: str) -> Redeemed:
        """Returns what a voucher is for, once. Raises Unauthenticated (`GRANT_INVALID`)."""
        if not 0 < len(voucher) <= CHARACTERS:
            raise _invalid()
        entry = await self._registry.get(BUCKET, _key(voucher))
        if entry is None or entry.value == _USED:
            raise _invalid()
        kept = json.loads(entry.value)
        # Used up before it is looked at: of two at once, one gets it.
        if not await self._registry.swap(BUCKET, _key(voucher), _USED, entry.revision):
            raise _invalid()
        if self._now() >= kept["expires"]:
            raise _invalid()
        tenant, vault_id = kept["tenant"], kept["vault_id"]
        granted = Granted("", tenant, 0, kept["expires"], SessionConfig(vault_ids=[vault_id]))
        return Redeemed(tenant, vault_id, self._vouch(granted) if self._vouch is not None else "")


class VoucherCalls:
    """The service's methods about vouchers."""

    _vouchers: Vouchers

    async def VouchVault(self, request: pb.VouchVaultRequest, context: object) -> pb.VouchVaultResponse:
        tenant = identity.current().tenant
        assert tenant is not None, "the access table lets only clients in"
        voucher, expires = await self._vouchers.mint(tenant, request.vault_id)
        return pb.VouchVaultResponse(voucher=voucher, expire_time=codec.timestamp(expires))

    async def RedeemVoucher(self, request: pb.RedeemVoucherRequest, context: object) -> pb.RedeemVoucherResponse:
        redeemed = await self._vouchers.redeem(request.voucher)
        return pb.RedeemVoucherResponse(tenant=redeemed.tenant, vault_id=redeemed.vault_id, vault_jwt=redeemed.word)


def _key(voucher: str) -> str:
    """Returns a voucher's key: one that no grant has, whose key begins with a session's id."""
    return f"voucher.{hashlib.sha256(voucher.encode()).hexdigest()}"


def _invalid() -> Unauthenticated:
    return Unauthenticated("GRANT_INVALID", "the voucher is not valid, or not any more")

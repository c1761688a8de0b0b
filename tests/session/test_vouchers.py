"""Vouchers: a client's right to one use of a vault of its own tenant, worth nothing without the vault proxy."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from handmesh.session.v1 import session_pb2 as pb
from services.session import vouchers
from services.session.vouching import Voucher
from tests.session.running import Service, refusal

VAULT = "vault_" + "0" * 26


def mint(stub: Any, vault_id: str = VAULT) -> Any:
    return stub.VouchVault(pb.VouchVaultRequest(vault_id=vault_id))


def redeem(service: Service, voucher: str) -> Any:
    return service.vault_proxy.RedeemVoucher(pb.RedeemVoucherRequest(voucher=voucher))


async def invalid(service: Service, voucher: str) -> bool:
    error = await refusal(redeem(service, voucher))
    return (error.code, error.reason, error.metadata) == ("UNAUTHENTICATED", "GRANT_INVALID", {})


async def test_a_voucher_is_redeemed_once_for_its_clients_tenant(service: Service) -> None:
    """It becomes a word for that one vault of the tenant of whoever asked; a second time it is nothing."""
    key = Ed25519PrivateKey.generate()
    service.parts.vouchers._vouch = Voucher(key, time.time_ns).sign
    minted = await mint(service.client)
    assert 0 < minted.expire_time.seconds - time.time() <= vouchers.LIFETIME_SECONDS
    redeemed = await redeem(service, minted.voucher)
    assert (redeemed.tenant, redeemed.vault_id) == ("default", VAULT)
    _, claims, signature = (base64.urlsafe_b64decode(part + "==") for part in redeemed.vault_jwt.split("."))
    key.public_key().verify(signature, redeemed.vault_jwt.rpartition(".")[0].encode())
    said = json.loads(claims)
    assert said["exp"] - said["iat"] == 60
    assert (said["tenant"], said["vault_0"], "vault_1" in said) == ("default", VAULT, False)
    assert await invalid(service, minted.voucher)
    other = await redeem(service, (await mint(service.other)).voucher)
    assert other.tenant not in ("", "default")


async def test_of_two_at_once_one_gets_it(service: Service) -> None:
    """Ten vault proxies with one voucher: one is served."""
    voucher = (await mint(service.client)).voucher
    found = await asyncio.gather(*(redeem(service, voucher) for _ in range(10)), return_exceptions=True)
    assert sum(not isinstance(each, BaseException) for each in found) == 1


async def test_an_old_voucher_is_none(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute and no longer."""
    good, late = (await mint(service.client)).voucher, (await mint(service.client)).voucher
    assert (await redeem(service, good)).vault_id == VAULT
    ahead = time.time_ns() + vouchers.LIFETIME_SECONDS * 1_000_000_000
    monkeypatch.setattr(service.parts.vouchers, "_now", lambda: ahead)
    assert await invalid(service, late)


@pytest.mark.parametrize("voucher", ["", "x", "*", ">", "a" * 5_000])
async def test_what_is_no_voucher_is_refused(service: Service, voucher: str) -> None:
    """Nothing, guesses, wildcards and long ones."""
    assert await invalid(service, voucher)


async def test_who_may(service: Service) -> None:
    """A client asks and redeems nothing; only the vault proxy redeems; a voucher is no grant and a grant no voucher."""
    voucher = (await mint(service.client)).voucher
    for stub in (service.harness, service.sandbox, service.vault_proxy):
        assert (await refusal(mint(stub))).reason == "METHOD_DENIED"
    for stub in (service.client, service.harness, service.sandbox):
        error = await refusal(stub.RedeemVoucher(pb.RedeemVoucherRequest(voucher=voucher)))
        assert error.reason == "METHOD_DENIED"
    for grant in (voucher, f"voucher.{voucher}"):
        asked = pb.CheckGrantRequest(vault_access=True)
        error = await refusal(service.vault_proxy.CheckGrant(asked, metadata=(("x-handmesh-grant", grant),)))
        assert error.reason == "GRANT_INVALID"
    error = await refusal(mint(service.client, "no id"))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "ID_INVALID")
    assert (await redeem(service, voucher)).vault_id == VAULT

"""What holds for vaults whatever keeps them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from services.kit.errors import Full, Gone, Invalid
from services.kit.origin import Allowed
from services.vault_proxy import credentials
from services.vault_proxy.audit import Audit
from services.vault_proxy.core.kinds import STATIC_BEARER, Draft
from services.vault_proxy.credentials import Credentials
from services.vault_proxy.grants import Access
from services.vault_proxy.renewal import Renewal
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.memory import MemoryStore
from services.vault_proxy.vaults import Vault, Vaults
from services.vault_proxy.wallet import Wallet
from tests.vault_proxy.bao import SessionPass

VALUE = "canary-in-the-api"
ORIGIN = "https://mcp.example"


def now() -> str:
    return "2026-01-01T00:00:00Z"


def bearer(value: str = VALUE) -> Draft:
    return Draft(STATIC_BEARER, Secret({"value": value}))


def wallet_of(store: MemoryStore) -> Wallet:
    kept = Credentials(store, now)
    return Wallet(store, kept, Renewal(store, kept, Audit(None), time.time, Allowed(), None))  # type: ignore[arg-type]


def access_of(tenant: str, vault: Vault) -> Access:
    holder = SessionPass(Path("unused"), tenant, (vault.vault_id,))
    return Access(holder.session_id, tenant, 1, vault_ids=holder.vault_ids, secrets=holder)


async def test_tenants_do_not_meet() -> None:
    """Another tenant's vaults are not listed, found, changed or used."""
    store = MemoryStore()
    mine = Vaults(store, now)
    vault = await mine.create_vault("a", "", "mine")
    credential = await mine.add("a", vault.vault_id, "", ORIGIN, bearer())
    assert await mine.list_vaults("b", 0, "") == ([], "")
    assert credential.origin is not None
    wallet = wallet_of(store)
    assert await wallet.find(access_of("b", vault), credential.origin) is None
    for call in (
        mine.list_credentials("b", vault.vault_id),
        mine.update("b", credential.credential_id, bearer("x"), 0),
        mine.archive("b", credential.credential_id),
        mine.archive_vault("b", vault.vault_id),
        mine.add("b", vault.vault_id, "", ORIGIN, bearer("x")),
    ):
        with pytest.raises(Gone):
            await call
    found = await wallet.find(access_of("a", vault), credential.origin)
    assert found is not None
    assert found.value == Secret(VALUE)
    for tenant in ("", "A", "../a", "a/b", "a" * 65):
        with pytest.raises(Invalid):
            await mine.list_vaults(tenant, 0, "")


async def test_a_vault_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many credentials, and names of so many characters."""
    monkeypatch.setattr(credentials, "MOST_CREDENTIALS", 2)
    kept = Vaults(MemoryStore(), now)
    vault = await kept.create_vault("a", "", "x" * 255)
    assert vault == Vault(vault.vault_id, "x" * 255, "2026-01-01T00:00:00Z")
    for port in (1443, 2443):
        await kept.add("a", vault.vault_id, "", f"{ORIGIN}:{port}", bearer())
    with pytest.raises(Full):
        await kept.add("a", vault.vault_id, "", ORIGIN, bearer())
    with pytest.raises(Invalid):
        await kept.create_vault("a", "", "x" * 256)

"""What holds for vaults whatever keeps them."""

from __future__ import annotations

import pytest

from services.kit.errors import Full, Gone, Invalid
from services.vault_proxy import vaults
from services.vault_proxy.stores.memory import MemoryStore
from services.vault_proxy.vaults import Vault, Vaults

VALUE = "canary-in-the-api"
ORIGIN = "https://mcp.example"


async def test_tenants_do_not_meet() -> None:
    """Another tenant's vaults are not listed, found, changed or used."""
    store = MemoryStore()
    mine = Vaults(store, lambda: "2026-01-01T00:00:00Z")
    vault = await mine.create_vault("a", "", "mine")
    credential = await mine.add("a", vault.vault_id, "", ORIGIN, VALUE)
    assert await mine.list_vaults("b", 0, "") == ([], "")
    assert await mine.find("b", [vault.vault_id], credential.origin) is None
    for call in (
        mine.list_credentials("b", vault.vault_id),
        mine.update("b", credential.credential_id, "x", 0),
        mine.archive("b", credential.credential_id),
        mine.archive_vault("b", vault.vault_id),
        mine.add("b", vault.vault_id, "", ORIGIN, "x"),
    ):
        with pytest.raises(Gone):
            await call
    assert await mine.find("a", [vault.vault_id], credential.origin) == credential
    for tenant in ("", "A", "../a", "a/b", "a" * 65):
        with pytest.raises(Invalid):
            await mine.list_vaults(tenant, 0, "")


async def test_a_vault_has_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many credentials, and names of so many characters."""
    monkeypatch.setattr(vaults, "MOST_CREDENTIALS", 2)
    kept = Vaults(MemoryStore(), lambda: "2026-01-01T00:00:00Z")
    vault = await kept.create_vault("a", "", "x" * 255)
    assert vault == Vault(vault.vault_id, "x" * 255, "2026-01-01T00:00:00Z")
    for port in (1443, 2443):
        await kept.add("a", vault.vault_id, "", f"{ORIGIN}:{port}", VALUE)
    with pytest.raises(Full):
        await kept.add("a", vault.vault_id, "", ORIGIN, VALUE)
    with pytest.raises(Invalid):
        await kept.create_vault("a", "", "x" * 256)

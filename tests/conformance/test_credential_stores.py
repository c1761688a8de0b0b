"""The checks of services/vault_proxy/conformance.py, for each folder of stores/, the vault's on a real OpenBao."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import services.vault_proxy.stores as stores
from services.kit import ids
from services.vault_proxy.conformance import CHECKS, Check, check_secrets, check_shut_and_open
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.stores.hashicorp.store import HashicorpStore
from services.vault_proxy.stores.memory import MemoryStore
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator

FOLDERS = sorted(each.parent.name for each in Path(str(stores.__file__)).parent.glob("*/__init__.py"))


def test_every_store_is_checked() -> None:
    """A new folder below stores/ is found by itself."""
    assert {"hashicorp", "memory"} <= set(FOLDERS)


def _needs(folder: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.vault] if folder == "hashicorp" else []


@pytest.fixture(params=[pytest.param(folder, marks=_needs(folder)) for folder in FOLDERS])
def store_settings(request: pytest.FixtureRequest) -> SimpleNamespace:
    """What the service's settings say of a store of each kind."""
    settings = SimpleNamespace(
        store=request.param, vault_mount="handmesh", vault_auth_mount="handmesh", vault_ca_file=None
    )
    if request.param == "hashicorp":
        bao: OpenBaoServer = request.getfixturevalue("openbao")
        settings.vault_url, settings.vault_approle_file = bao.url, bao.approle_file()
    return settings


@pytest.fixture
async def store(store_settings: SimpleNamespace) -> AsyncIterator[CredentialStore]:
    """A store, made as the service makes it."""
    made = stores.make(store_settings)  # type: ignore[arg-type]
    yield made
    await made.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_store(check: Check, store: CredentialStore) -> None:
    """Each promise of the port holds for each store."""
    await check(store, f"tenants/t{os.urandom(6).hex()}/vaults")


async def test_a_sessions_secrets(store: CredentialStore, request: pytest.FixtureRequest) -> None:
    """Written by everybody's store, read with a session's pass."""
    vault_id = ids.mint("vault")
    bao: OpenBaoServer | None = None if isinstance(store, MemoryStore) else request.getfixturevalue("openbao")
    key = bao.issuer_key_file if bao else Path("unused")
    await check_secrets(store, "default", vault_id, operator.SessionPass(key, "default", (vault_id,)))


@pytest.mark.vault
async def test_a_sealed_vault_says_so_and_comes_back(own_openbao: OpenBaoServer) -> None:
    """Sealed: VAULT_UNAVAILABLE within 2 seconds. Unsealed: it works, without a restart of anything."""
    store = HashicorpStore(own_openbao.url, "handmesh", own_openbao.approle_file())

    async def seal() -> None:
        await asyncio.to_thread(operator.seal, own_openbao)

    async def unseal() -> None:
        await asyncio.to_thread(operator.unseal, own_openbao)

    await check_shut_and_open(store, "tenants/sealed/vaults", seal, unseal)
    await store.close()


@pytest.mark.vault
async def test_a_dead_vault_says_so_and_comes_back(own_openbao: OpenBaoServer) -> None:
    """Killed: VAULT_UNAVAILABLE within 2 seconds. Started again: it works; the old login is not known, a new one is."""
    store = HashicorpStore(own_openbao.url, "handmesh", own_openbao.approle_file())
    await check_shut_and_open(store, "tenants/dead/vaults", own_openbao.kill, own_openbao.restart)
    await store.close()


@pytest.mark.vault
async def test_replaced_secrets_cannot_be_read_by_anyone(openbao: OpenBaoServer) -> None:
    """An operator with the root token finds the old version destroyed."""
    store = HashicorpStore(openbao.url, "handmesh", openbao.approle_file())
    await store.write("tenants/replaced/vaults/a", {"value": "old"}, 0)
    await store.write("tenants/replaced/vaults/a", {"value": "new"}, 1)
    old = operator.call(openbao, "GET", "handmesh/data/tenants/replaced/vaults/a?version=1")
    assert old["data"]["data"] is None
    assert old["data"]["metadata"]["destroyed"] is True
    await store.close()

"""The checks of services/vault_proxy/conformance.py, for each folder of stores/, the vault's on a real OpenBao."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import services.vault_proxy.stores as stores
from services.vault_proxy.conformance import CHECKS, Check, check_shut_and_open
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.stores.hashicorp.store import HashicorpStore
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator

FOLDERS = sorted(each.parent.name for each in Path(str(stores.__file__)).parent.glob("*/__init__.py"))


def test_every_store_is_checked() -> None:
    """A new folder below stores/ is found by itself."""
    assert {"hashicorp", "memory"} <= set(FOLDERS)


def _needs(folder: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.vault] if folder == "hashicorp" else []


@pytest.fixture(params=[pytest.param(folder, marks=_needs(folder)) for folder in FOLDERS])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> SimpleNamespace:
    """What the service's settings say of a store of each kind."""
    settings = SimpleNamespace(store=request.param, vault_mount="handmesh", vault_ca_file=None)
    if request.param == "hashicorp":
        bao: OpenBaoServer = request.getfixturevalue("openbao")
        settings.vault_url, settings.vault_approle_file = bao.url, operator.writer_file(bao, tmp_path)
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
    await check(store, f"tenants/t{os.urandom(6).hex()}")


@pytest.mark.vault
async def test_a_sealed_vault_says_so_and_comes_back(own_openbao: OpenBaoServer, tmp_path: Path) -> None:
    """Sealed: VAULT_UNAVAILABLE within 2 seconds. Unsealed: it works, without a restart of anything."""
    store = HashicorpStore(own_openbao.url, "handmesh", operator.writer_file(own_openbao, tmp_path))

    async def seal() -> None:
        await asyncio.to_thread(operator.seal, own_openbao)

    async def unseal() -> None:
        await asyncio.to_thread(operator.unseal, own_openbao)

    await check_shut_and_open(store, "tenants/sealed", seal, unseal)
    await store.close()


@pytest.mark.vault
async def test_a_dead_vault_says_so_and_comes_back(own_openbao: OpenBaoServer, tmp_path: Path) -> None:
    """Killed: VAULT_UNAVAILABLE within 2 seconds. Started again: it works; the old login is not known, a new one is."""
    store = HashicorpStore(own_openbao.url, "handmesh", operator.writer_file(own_openbao, tmp_path))
    await check_shut_and_open(store, "tenants/dead", own_openbao.kill, own_openbao.restart)
    await store.close()


@pytest.mark.vault
async def test_a_login_that_ended_is_made_anew(openbao: OpenBaoServer, tmp_path: Path) -> None:
    """A token that the vault has revoked, or that ran out, costs one more login and no error."""
    store = HashicorpStore(openbao.url, "handmesh", operator.writer_file(openbao, tmp_path))
    await store.write("tenants/relogin/a", {"value": "1"}, 0)
    first = store._login._client.token
    operator.call(openbao, "POST", "auth/token/revoke", {"token": first})
    document = await store.read("tenants/relogin/a")
    assert document is not None
    assert document.version == 1
    assert store._login._client.token != first
    await store.close()


@pytest.mark.vault
async def test_replaced_secrets_cannot_be_read_by_anyone(openbao: OpenBaoServer, tmp_path: Path) -> None:
    """An operator with the root token finds the old version destroyed."""
    store = HashicorpStore(openbao.url, "handmesh", operator.writer_file(openbao, tmp_path))
    await store.write("tenants/replaced/a", {"value": "old"}, 0)
    await store.write("tenants/replaced/a", {"value": "new"}, 1)
    old = operator.call(openbao, "GET", "handmesh/data/tenants/replaced/a?version=1")
    assert old["data"]["data"] is None
    assert old["data"]["metadata"]["destroyed"] is True
    await store.close()

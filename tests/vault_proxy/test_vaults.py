"""Vaults and credentials through the API: written, never read back, bound for ever, purged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit import ids
from services.kit.channels import raised
from services.kit.errors import Conflict, Denied, Exists, Gone, Invalid, ServiceError
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Shop, Start, put_credential, vault_settings

VALUE = "canary-in-the-api"
ORIGIN = "https://mcp.example"


@pytest.fixture
async def proxy(start: Start, store_settings: dict[str, str]) -> AsyncIterator[Proxy]:
    """A vault_proxy whose vaults can be changed."""
    async with start(**store_settings) as started:
        yield started


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with, as the service raised it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert VALUE not in str(caught.value)
    return raised(caught.value)


def secret(value: str = VALUE) -> pb.CredentialSecret:
    return pb.CredentialSecret(static_bearer=pb.StaticBearer(value=value))


async def new_vault(proxy: Proxy, name: str = "mine", request_id: str = "") -> pb.Vault:
    return (await proxy.client.CreateVault(pb.CreateVaultRequest(name=name, request_id=request_id))).vault


async def add(proxy: Proxy, vault_id: str, origin: str = ORIGIN, value: str = VALUE) -> pb.Credential:
    request = pb.AddCredentialRequest(vault_id=vault_id, name="key", origin=origin, secret=secret(value))
    return (await proxy.client.AddCredential(request)).credential


async def credentials(proxy: Proxy, vault_id: str) -> list[pb.Credential]:
    return list((await proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=vault_id))).credentials)


async def test_a_vault_is_made_once_for_a_request(proxy: Proxy) -> None:
    """Idempotent by request id, also at once; another name under the same id is refused; without one, each is new."""
    made = await asyncio.gather(*(new_vault(proxy, "one", "request-1") for _ in range(5)))
    assert {vault.vault_id for vault in made} == {made[0].vault_id}
    assert (made[0].name, made[0].archived, made[0].create_time.seconds > 0) == ("one", False, True)
    assert (await proxy.client.GetVault(pb.GetVaultRequest(vault_id=made[0].vault_id))).vault == made[0]
    problem = await failure(new_vault(proxy, "two", "request-1"))
    assert (type(problem), problem.reason) == (Exists, "REQUEST_ID_REUSED")
    assert (await new_vault(proxy)).vault_id != (await new_vault(proxy)).vault_id


async def test_vaults_are_listed_newest_first_in_pages(proxy: Proxy) -> None:
    """Each vault once, whatever the pages' size."""
    made = [(await new_vault(proxy, f"v{number}")).vault_id for number in range(5)]
    found: list[str] = []
    token = ""
    while True:
        page = await proxy.client.ListVaults(pb.ListVaultsRequest(page_size=2, page_token=token))
        assert len(page.vaults) <= 2
        found += [vault.vault_id for vault in page.vaults if vault.vault_id in made]
        token = page.next_page_token
        if not token:
            break
    assert sorted(found) == sorted(made)
    assert found == sorted(found, reverse=True)
    problem = await failure(proxy.client.ListVaults(pb.ListVaultsRequest(page_size=-1)))
    assert (type(problem), problem.reason) == (Invalid, "ARGUMENT_INVALID")


async def test_a_credential_is_used_and_never_told(proxy: Proxy, shop: Shop) -> None:
    """What was added through the API opens the server; no answer holds it, its length or its hash."""
    vault = await new_vault(proxy)
    added = await add(proxy, vault.vault_id, shop.origin, shop.token)
    assert added == pb.Credential(
        credential_id=added.credential_id,
        vault_id=vault.vault_id,
        name="key",
        kind=pb.CREDENTIAL_KIND_STATIC_BEARER,
        origin=shop.origin,
        create_time=added.create_time,
        update_time=added.create_time,
        version=1,
    )
    assert await credentials(proxy, vault.vault_id) == [added]
    grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault.vault_id,))
    assert "Rome" in (await proxy.execute(grant, "shop__weather", {"city": "Rome"})).output


async def test_a_secret_is_replaced_by_version(proxy: Proxy) -> None:
    """Compare and set: a stale version is a conflict; 0 is any; the origin stays."""
    vault = await new_vault(proxy)
    added = await add(proxy, vault.vault_id)

    async def update(expected: int) -> pb.Credential:
        request = pb.UpdateCredentialRequest(
            credential_id=added.credential_id, secret=secret("newer"), expected_version=expected
        )
        return (await proxy.client.UpdateCredential(request)).credential

    assert (await update(1)).version == 2
    problem = await failure(update(1))
    assert (type(problem), problem.reason, problem.metadata) == (Conflict, "VERSION_CONFLICT", {"version": "2"})
    updated = await update(0)
    assert (updated.version, updated.origin, updated.create_time) == (3, ORIGIN, added.create_time)


async def test_running_sessions_take_up_a_change_at_once(proxy: Proxy, shop: Shop) -> None:
    """On the replica that changes a credential: the next call has the new secret, and after archiving has none."""
    vault = await new_vault(proxy)
    added = await add(proxy, vault.vault_id, shop.origin, shop.token)
    grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault.vault_id,))
    assert "Rome" in (await proxy.execute(grant, "shop__weather", {"city": "Rome"})).output

    async def update(value: str) -> None:
        request = pb.UpdateCredentialRequest(credential_id=added.credential_id, secret=secret(value))
        await proxy.client.UpdateCredential(request)

    await update("wrong")
    problem = await failure(proxy.execute(grant, "shop__weather", {"city": "Oslo"}))
    assert problem.reason == "CREDENTIAL_REVOKED"
    await update(shop.token)
    assert "Oslo" in (await proxy.execute(grant, "shop__weather", {"city": "Oslo"})).output
    await proxy.client.ArchiveCredential(pb.ArchiveCredentialRequest(credential_id=added.credential_id))
    problem = await failure(proxy.execute(grant, "shop__weather", {"city": "Bern"}))
    assert problem.reason == "CREDENTIAL_REVOKED"


async def test_an_archived_credential_is_gone(proxy: Proxy) -> None:
    """Purged, not listed, not updated; archiving again is no error; its origin is free again."""
    vault = await new_vault(proxy)
    added = await add(proxy, vault.vault_id)
    archive = pb.ArchiveCredentialRequest(credential_id=added.credential_id)
    await proxy.client.ArchiveCredential(archive)
    await proxy.client.ArchiveCredential(archive)
    assert await credentials(proxy, vault.vault_id) == []
    listing = pb.ListCredentialsRequest(vault_id=vault.vault_id, include_archived=True)
    [kept] = (await proxy.client.ListCredentials(listing)).credentials
    assert (kept.credential_id, kept.origin, kept.archived, kept.version) == (added.credential_id, ORIGIN, True, 0)
    request = pb.UpdateCredentialRequest(credential_id=added.credential_id, secret=secret())
    problem = await failure(proxy.client.UpdateCredential(request))
    assert (type(problem), problem.reason) == (Gone, "CREDENTIAL_NOT_FOUND")
    again = await add(proxy, vault.vault_id)
    assert await credentials(proxy, vault.vault_id) == [again]


async def test_an_archived_vault_is_empty_for_ever(proxy: Proxy, shop: Shop) -> None:
    """Its secrets are purged, running sessions included; it is listed as archived and takes nothing more."""
    vault = await new_vault(proxy)
    await add(proxy, vault.vault_id, shop.origin, shop.token)
    await add(proxy, vault.vault_id)
    archive = pb.ArchiveVaultRequest(vault_id=vault.vault_id)
    await proxy.client.ArchiveVault(archive)
    await proxy.client.ArchiveVault(archive)
    assert await credentials(proxy, vault.vault_id) == []
    listed = {each.vault_id: each for each in (await proxy.client.ListVaults(pb.ListVaultsRequest())).vaults}
    assert listed[vault.vault_id].archived
    problem = await failure(add(proxy, vault.vault_id))
    assert (type(problem), problem.reason) == (Gone, "VAULT_NOT_FOUND")
    grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault.vault_id,))
    problem = await failure(proxy.execute(grant, "shop__weather", {"city": "Rome"}))
    assert problem.reason == "CREDENTIAL_REVOKED"


async def test_an_origin_has_one_credential_in_a_vault(proxy: Proxy) -> None:
    """In any spelling; another port or scheme is another origin."""
    vault = await new_vault(proxy)
    await add(proxy, vault.vault_id, "https://MCP.example:443/")
    problem = await failure(add(proxy, vault.vault_id, "https://mcp.example"))
    assert (type(problem), problem.reason) == (Exists, "CREDENTIAL_EXISTS")
    assert problem.metadata == {"key": "https://mcp.example"}
    await add(proxy, vault.vault_id, "https://mcp.example:8443")
    await add(proxy, (await new_vault(proxy)).vault_id, "https://mcp.example")


@pytest.mark.parametrize(
    ("origin", "value", "field"),
    [
        ("mcp.example", VALUE, "origin"),
        ("https://mcp.example/path", VALUE, "origin"),
        ("https://mcp.example?x", VALUE, "origin"),
        ("https://user@mcp.example", VALUE, "origin"),
        ("https://127.1", VALUE, "origin"),
        (ORIGIN, "", "secret.value"),
        (ORIGIN, "two words", "secret.value"),
        (ORIGIN, "line\r\nX: y", "secret.value"),
        (ORIGIN, "schlüssel", "secret.value"),
        (ORIGIN, "x" * 9000, "secret.value"),
    ],
)
async def test_what_cannot_be_a_credential_is_refused(proxy: Proxy, origin: str, value: str, field: str) -> None:
    """Origins with more than an origin in them, and values that are no header."""
    vault = await new_vault(proxy)
    problem = await failure(add(proxy, vault.vault_id, origin, value))
    assert (type(problem), problem.reason, problem.metadata) == (Invalid, "ARGUMENT_INVALID", {"field": field})
    assert await credentials(proxy, vault.vault_id) == []


async def test_unknown_ids_are_not_found(proxy: Proxy) -> None:
    """Vaults and credentials that do not exist, and ids that are none."""
    vault_id, credential_id = ids.mint("vault"), ids.mint("cred")
    client = proxy.client
    for call, reason in (
        (client.ListCredentials(pb.ListCredentialsRequest(vault_id=vault_id)), "VAULT_NOT_FOUND"),
        (client.ArchiveVault(pb.ArchiveVaultRequest(vault_id=vault_id)), "VAULT_NOT_FOUND"),
        (client.GetVault(pb.GetVaultRequest(vault_id=vault_id)), "VAULT_NOT_FOUND"),
        (add(proxy, vault_id), "VAULT_NOT_FOUND"),
        (client.ArchiveCredential(pb.ArchiveCredentialRequest(credential_id=credential_id)), "CREDENTIAL_NOT_FOUND"),
    ):
        problem = await failure(call)
        assert (type(problem), problem.reason) == (Gone, reason)
    for bad in ("", "../x", vault_id.upper(), f"{vault_id}/credentials", "vault_*"):
        problem = await failure(client.ListCredentials(pb.ListCredentialsRequest(vault_id=bad)))
        assert (type(problem), problem.reason) == (Invalid, "ID_INVALID")


async def test_a_credential_without_a_secret_is_none(proxy: Proxy) -> None:
    """Nothing is kept for an origin alone."""
    vault = await new_vault(proxy)
    request = pb.AddCredentialRequest(vault_id=vault.vault_id, origin=ORIGIN)
    problem = await failure(proxy.client.AddCredential(request))
    assert (type(problem), problem.metadata) == (Invalid, {"field": "secret"})


async def test_only_clients_keep_vaults(proxy: Proxy) -> None:
    """A harness, whoever has taken it over, cannot list or change a vault."""
    problem = await failure(proxy.harness.ListVaults(pb.ListVaultsRequest()))
    assert (type(problem), problem.reason) == (Denied, "METHOD_DENIED")


@pytest.mark.vault
async def test_a_vault_that_an_operator_made_by_hand_is_one(
    start: Start, openbao: OpenBaoServer, tmp_path: Path
) -> None:
    """It is listed, its credentials can be replaced and archived, whatever is missing in them."""
    vault_id = put_credential(openbao, ORIGIN, VALUE)
    unusable = ids.mint("cred")
    openbao.operator.put_secret(f"tenants/default/vaults/{vault_id}/credentials/{unusable}", {"value": VALUE})
    openbao.operator.put_secret(f"tenants/default/secrets/{vault_id}/{unusable}", {"value": VALUE})
    async with start(**vault_settings(openbao)) as proxy:
        listed = {each.vault_id: each for each in (await proxy.client.ListVaults(pb.ListVaultsRequest())).vaults}
        assert listed[vault_id] == pb.Vault(vault_id=vault_id)
        [credential] = await credentials(proxy, vault_id)
        assert (credential.name, credential.version) == ("by hand", 1)
        request = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=secret("newer"))
        assert (await proxy.client.UpdateCredential(request)).credential.version == 2
        await proxy.client.ArchiveVault(pb.ArchiveVaultRequest(vault_id=vault_id))
    for credential_id in (credential.credential_id, unusable):
        path = f"handmesh/data/tenants/default/vaults/{vault_id}/credentials/{credential_id}"
        kept = operator.call(openbao, "GET", path)["data"]["data"]
        assert kept["archived"] == "1"
        assert "value" not in kept
        secrets = operator.call(openbao, "GET", f"handmesh/metadata/tenants/default/secrets/{vault_id}/{credential_id}")
        assert secrets["errors"] == []

"""Each kind of credential: what it must have, what never changes, and what clients see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.channels import raised
from services.kit.errors import Exists, Gone, Invalid, ServiceError
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Shop, Start, vault_settings

CANARY = "canary-of-every-kind"
ORIGIN = "https://mcp.example"
PEM = f"-----BEGIN PRIVATE KEY-----\n{'QUJD' * 8}\n-----END PRIVATE KEY-----\n"


def oauth(**fields: Any) -> pb.CredentialSecret:
    base = {
        "access": CANARY,
        "refresh": f"refresh {CANARY}",
        "renewal_endpoint": "https://as.example/token",
        "client_id": "client",
        "client_auth": "client_secret_basic",
        "client_secret": f"client {CANARY}",
        "scope": "read write",
        "resource": "https://mcp.example/mcp",
    }
    return pb.CredentialSecret(mcp_oauth=pb.McpOauth(**{**base, **fields}))


def variable(**fields: Any) -> pb.CredentialSecret:
    base = {"variable": "API_KEY", "value": CANARY, "allowed_hosts": ["api.example", "*.cdn.example"]}
    return pb.CredentialSecret(environment_variable=pb.EnvironmentVariable(**{**base, "in_headers": True, **fields}))


def git(**fields: Any) -> pb.CredentialSecret:
    return pb.CredentialSecret(git=pb.GitAccess(**({"value": CANARY} | fields)))


def app(**fields: Any) -> pb.CredentialSecret:
    base = {"app_id": "12", "installation_id": "34", "private_key": PEM}
    return pb.CredentialSecret(git=pb.GitAccess(**{**base, **fields}))


@pytest.fixture
async def proxy(start: Start, store_settings: dict[str, str]) -> AsyncIterator[Proxy]:
    """A vault_proxy whose vaults can be changed, on each store."""
    async with start(**store_settings) as started:
        yield started


@pytest.fixture
async def vault_id(proxy: Proxy) -> str:
    """A new vault."""
    return (await proxy.client.CreateVault(pb.CreateVaultRequest(name="kinds"))).vault.vault_id


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert CANARY not in str(caught.value)
    return raised(caught.value)


async def add(proxy: Proxy, vault_id: str, secret: pb.CredentialSecret, origin: str = ORIGIN) -> pb.Credential:
    request = pb.AddCredentialRequest(vault_id=vault_id, name="key", origin=origin, secret=secret)
    return (await proxy.client.AddCredential(request)).credential


async def update(proxy: Proxy, credential: pb.Credential, secret: pb.CredentialSecret) -> pb.Credential:
    request = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=secret)
    return (await proxy.client.UpdateCredential(request)).credential


async def test_every_kind_is_told_without_its_secrets(proxy: Proxy, vault_id: str) -> None:
    """What was fixed is told, in a list as when it was added; no secret is in anything that is told."""
    added = [
        await add(proxy, vault_id, oauth()),
        await add(proxy, vault_id, variable(), origin=""),
        await add(proxy, vault_id, git(), "https://git.example"),
        await add(proxy, vault_id, app(), "https://github.example"),
    ]
    assert added[0].mcp_oauth == pb.McpOauthFacts(
        renewal_endpoint="https://as.example/token",
        client_id="client",
        client_auth="client_secret_basic",
        scope="read write",
        resource="https://mcp.example/mcp",
    )
    assert added[1].environment_variable == pb.EnvironmentVariableFacts(
        variable="API_KEY", allowed_hosts=["api.example", "*.cdn.example"], in_headers=True
    )
    assert (added[2].git, added[2].origin) == (pb.GitFacts(user="x-access-token"), "https://git.example")
    assert added[3].git == pb.GitFacts(user="x-access-token", app_id="12", installation_id="34")
    listed = (await proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=vault_id))).credentials
    assert list(listed) == sorted(added, key=lambda each: each.credential_id)  # of one millisecond: in any order
    assert [each for each in (CANARY, "PRIVATE KEY", PEM.splitlines()[1]) if each in str(added)] == []


@pytest.mark.parametrize(
    ("secret", "origin", "field"),
    [
        (oauth(access=""), ORIGIN, "secret.access"),
        (oauth(access="two words"), ORIGIN, "secret.access"),
        (oauth(refresh="tab\there"), ORIGIN, "secret.refresh"),
        (oauth(renewal_endpoint="ftp://as.example"), ORIGIN, "secret.renewal_endpoint"),
        (oauth(renewal_endpoint=""), ORIGIN, "secret.client_id"),
        (oauth(client_id=""), ORIGIN, "secret.client_id"),
        (oauth(client_auth="private_key_jwt"), ORIGIN, "secret.client_auth"),
        (oauth(client_auth="none"), ORIGIN, "secret.client_secret"),
        (oauth(client_secret=""), ORIGIN, "secret.client_secret"),
        (oauth(scope='a "b"'), ORIGIN, "secret.scope"),
        (oauth(resource="mcp"), ORIGIN, "secret.resource"),
        (oauth(), "", "origin"),
        (variable(), ORIGIN, "origin"),
        (variable(variable="1A"), "", "secret.variable"),
        (variable(value=""), "", "secret.value"),
        (variable(value="line\nfeed"), "", "secret.value"),
        (variable(allowed_hosts=[]), "", "secret.allowed_hosts"),
        (variable(allowed_hosts=["a.example"] * 17), "", "secret.allowed_hosts"),
        (variable(allowed_hosts=["https://a.example"]), "", "secret.allowed_hosts"),
        (variable(allowed_hosts=["a.example:8443"]), "", "secret.allowed_hosts"),
        (variable(allowed_hosts=["*"]), "", "secret.allowed_hosts"),
        (variable(allowed_hosts=["a.example b.example c/d"]), "", "secret.allowed_hosts"),
        (variable(in_headers=False), "", "secret.in_headers"),
        (git(value=""), ORIGIN, "secret.value"),
        (git(user="a:b"), ORIGIN, "secret.user"),
        (git(private_key=PEM), ORIGIN, "secret.app_id"),
        (app(app_id=""), ORIGIN, "secret.app_id"),
        (app(installation_id="x"), ORIGIN, "secret.installation_id"),
        (app(private_key="no key"), ORIGIN, "secret.private_key"),
    ],
)
async def test_what_is_no_credential_is_refused(
    proxy: Proxy, vault_id: str, secret: pb.CredentialSecret, origin: str, field: str
) -> None:
    """Each field by name; nothing is kept."""
    problem = await failure(add(proxy, vault_id, secret, origin))
    assert (type(problem), problem.reason, problem.metadata) == (Invalid, "ARGUMENT_INVALID", {"field": field})
    listing = pb.ListCredentialsRequest(vault_id=vault_id, include_archived=True)
    assert not (await proxy.client.ListCredentials(listing)).credentials


async def test_what_a_credential_is_bound_to_never_changes(proxy: Proxy, vault_id: str) -> None:
    """Another kind, endpoint, client, variable, host or user is refused by name; saying the same again is not."""
    grant = await add(proxy, vault_id, oauth())
    placeholder = await add(proxy, vault_id, variable(), origin="")
    access = await add(proxy, vault_id, git(), "https://git.example")
    for credential, secret, field in (
        (grant, variable(), "secret"),
        (grant, pb.CredentialSecret(static_bearer=pb.StaticBearer(value="x")), "secret"),
        (grant, oauth(renewal_endpoint="https://thief.example/token"), "renewal_endpoint"),
        (grant, oauth(client_id="other"), "client_id"),
        (grant, oauth(client_auth="client_secret_post"), "client_auth"),
        (grant, oauth(resource="https://thief.example"), "resource"),
        (placeholder, variable(variable="OTHER"), "variable"),
        (placeholder, variable(allowed_hosts=["thief.example"]), "allowed_hosts"),
        (placeholder, variable(in_bodies=True), "in_bodies"),
        (access, git(user="other"), "user"),
        (access, app(), "app_id"),
    ):
        problem = await failure(update(proxy, credential, secret))
        assert (type(problem), problem.reason, problem.metadata["field"]) == (Invalid, "CREDENTIAL_IMMUTABLE", field)
    again = await update(proxy, grant, oauth(access="newer"))
    assert (again.version, again.origin, again.mcp_oauth) == (2, ORIGIN, grant.mcp_oauth)


@pytest.mark.vault
async def test_an_update_keeps_what_it_does_not_say(start: Start, openbao: OpenBaoServer, tmp_path: Path) -> None:
    """Only the access is replaced: the refresh token, client secret and expiry stay. The old one is destroyed."""
    async with start(**vault_settings(openbao)) as proxy:
        vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
        secret = oauth()
        secret.mcp_oauth.expire_time.FromJsonString("2031-01-01T00:00:00Z")
        added = await add(proxy, vault.vault_id, secret)
        assert added.expire_time.ToJsonString() == "2031-01-01T00:00:00Z"
        only = pb.CredentialSecret(mcp_oauth=pb.McpOauth(access="newer"))
        updated = await update(proxy, added, only)
        assert (updated.expire_time, updated.version) == (added.expire_time, 2)
    path = f"tenants/default/secrets/{vault.vault_id}/{added.credential_id}"
    kept = operator.call(openbao, "GET", f"handmesh/data/{path}")["data"]["data"]
    assert kept == {
        "kind": "mcp_oauth",
        "origin": ORIGIN,
        "access": "newer",
        "refresh": f"refresh {CANARY}",
        "renewal_endpoint": "https://as.example/token",
        "client_id": "client",
        "client_auth": "client_secret_basic",
        "client_secret": f"client {CANARY}",
        "scope": "read write",
        "resource": "https://mcp.example/mcp",
        "expire_time": "2031-01-01T00:00:00Z",
    }
    old = operator.call(openbao, "GET", f"handmesh/data/{path}?version=1")
    assert old["data"]["metadata"]["destroyed"]


async def test_of_many_at_once_one_is_added(proxy: Proxy, vault_id: str) -> None:
    """An origin and a variable have one credential each in a vault, however many ask at once; other keys are free."""

    async def one(secret: pb.CredentialSecret, origin: str) -> str:
        try:
            return (await add(proxy, vault_id, secret, origin)).credential_id
        except grpc.aio.AioRpcError as error:
            assert raised(error).reason == "CREDENTIAL_EXISTS"
            return ""

    added = await asyncio.gather(*(one(oauth(), ORIGIN) for _ in range(8)))
    assert len([each for each in added if each]) == 1
    problem = await failure(add(proxy, vault_id, pb.CredentialSecret(static_bearer=pb.StaticBearer(value="x"))))
    assert (type(problem), problem.metadata) == (Exists, {"key": ORIGIN})
    await add(proxy, vault_id, git(), ORIGIN)
    await add(proxy, vault_id, variable(), "")
    problem = await failure(add(proxy, vault_id, variable(value="other"), ""))
    assert (type(problem), problem.metadata) == (Exists, {"key": "API_KEY"})


@pytest.mark.vault
async def test_what_broke_off_can_be_mended_and_archived(start: Start, openbao: OpenBaoServer, tmp_path: Path) -> None:
    """Facts without a secret (whoever added it died between the two) are listed with version 0 and take a secret."""
    async with start(**vault_settings(openbao)) as proxy:
        vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
        added = await add(proxy, vault.vault_id, oauth())
        path = f"handmesh/metadata/tenants/default/secrets/{vault.vault_id}/{added.credential_id}"
        operator.call(openbao, "DELETE", path)
        [listed] = (await proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=vault.vault_id))).credentials
        assert listed.version == 0
        only = pb.CredentialSecret(mcp_oauth=pb.McpOauth(access="newer"))
        problem = await failure(update(proxy, added, only))  # the client's secret is gone with the rest
        assert (type(problem), problem.metadata) == (Invalid, {"field": "secret.client_secret"})
        assert (await update(proxy, added, oauth())).version == 1
        await proxy.client.ArchiveCredential(pb.ArchiveCredentialRequest(credential_id=added.credential_id))
        assert operator.call(openbao, "GET", path)["errors"] == []
        problem = await failure(update(proxy, added, oauth()))
        assert (type(problem), problem.reason) == (Gone, "CREDENTIAL_NOT_FOUND")


async def test_an_oauth_access_opens_a_server(proxy: Proxy, vault_id: str, shop: Shop) -> None:
    """Its access value is the bearer; git access and variables of the same origin are not sent there."""
    await add(proxy, vault_id, git(), shop.origin)
    grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault_id,))
    problem = await failure(proxy.execute(grant, "shop__weather", {"city": "Rome"}))
    assert problem.reason == "CREDENTIAL_REVOKED"
    await add(proxy, vault_id, oauth(access=shop.token), shop.origin)
    other = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault_id,))
    assert "Rome" in (await proxy.execute(other, "shop__weather", {"city": "Rome"})).output

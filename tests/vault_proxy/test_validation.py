"""Trying a credential: once, with a client's voucher, of whatever kind it is; nobody's session is told."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit import ids
from services.kit.errors import Gone, Invalid, Unauthenticated, Unavailable
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.conftest import Proxy, Shop, Start, vault_settings
from tests.vault_proxy.connecting import World, failure, world_of
from tests.vault_proxy.strange_server import Reply, strange_server

pytestmark = pytest.mark.vault


@pytest.fixture
async def proxy(start: Start, openbao: OpenBaoServer) -> AsyncIterator[Proxy]:
    """A vault_proxy on the run's OpenBao."""
    async with start(**vault_settings(openbao)) as started:
        yield started


@pytest.fixture
async def world(proxy: Proxy) -> AsyncIterator[World]:
    """An MCP server with OAuth."""
    async with world_of(proxy) as made:
        yield made


async def add(proxy: Proxy, origin: str, **secret: Any) -> pb.Credential:
    """Puts a credential into a new vault."""
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
    request = pb.AddCredentialRequest(vault_id=vault.vault_id, origin=origin, secret=pb.CredentialSecret(**secret))
    return (await proxy.client.AddCredential(request)).credential


async def bearer(proxy: Proxy, origin: str, value: str) -> pb.Credential:
    return await add(proxy, origin, static_bearer=pb.StaticBearer(value=value))


async def tried(proxy: Proxy, credential: pb.Credential, url: str = "") -> pb.ValidateCredentialResponse:
    """Tries a credential, as a client does."""
    voucher = proxy.peer.voucher(credential.vault_id)
    request = pb.ValidateCredentialRequest(credential_id=credential.credential_id, voucher=voucher, url=url)
    return await proxy.client.ValidateCredential(request)


async def test_a_fixed_value(proxy: Proxy, shop: Shop) -> None:
    """It opens the server at `/mcp`, or where it is said; a wrong one is refused; no server is another reason."""
    good, wrong = await bearer(proxy, shop.origin, shop.token), await bearer(proxy, shop.origin, "wrong")
    for url in ("", shop.url):
        found = await tried(proxy, good, url)
        assert (found.valid, found.reason) == (True, "")
        assert found.detail.startswith("the MCP server takes it; tools that it lists: ")
    refused = await tried(proxy, wrong)
    assert (refused.valid, refused.reason) == (False, "CREDENTIAL_REVOKED")
    elsewhere = await tried(proxy, await bearer(proxy, "http://127.0.0.1:1", "x"))
    assert (elsewhere.valid, elsewhere.reason) == (False, "SERVER_UNAVAILABLE")
    assert not any("wrong" in each.detail or shop.token in each.detail for each in (found, refused, elsewhere))
    assert proxy.peer.events == []


async def test_an_account(world: World) -> None:
    """An access that has ended is renewed, once, and works; one that the server has ended is revoked."""
    world.oauth.expires_in = 1
    connected = await world.connect()
    assert (await tried(world.proxy, connected)).valid
    assert (world.oauth.refreshed, world.oauth.complaints) == (1, [])
    connected = await world.connect()
    world.oauth.grants[-1].ended = True
    found = await tried(world.proxy, connected)
    assert (found.valid, found.reason) == (False, "CREDENTIAL_REVOKED")
    listed = await world.proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=world.vault_id))
    assert listed.credentials[0].revoked
    assert world.proxy.peer.events == []


async def test_a_git_host(proxy: Proxy) -> None:
    """A repository whose URL is said is asked for its references, as a fetch begins; else the secret is looked for."""
    right = "Basic " + base64.b64encode(b"me:canary").decode()

    def answer(request: Any) -> Reply:
        assert request.path == "/team/repo.git/info/refs?service=git-upload-pack"
        return Reply(200 if request.headers.get("authorization") == right else 401, b"0000")

    async with strange_server(answer=answer) as host:
        origin = host.url.removesuffix("/mcp")
        good = await add(proxy, origin, git=pb.GitAccess(user="me", value="canary"))
        wrong = await add(proxy, origin, git=pb.GitAccess(user="you", value="canary"))
        assert (await tried(proxy, good)).valid and host.requests == []
        assert (await tried(proxy, good, f"{origin}/team/repo.git")).valid
        found = await tried(proxy, wrong, f"{origin}/team/repo.git")
        assert (found.valid, found.reason, found.detail) == (
            False,
            "CREDENTIAL_REVOKED",
            "the git host answers with HTTP status 401",
        )


async def test_a_variable(proxy: Proxy) -> None:
    """Its value can be read; more shows only in a sandbox."""
    variable = pb.EnvironmentVariable(variable="KEY", value="v", allowed_hosts=["api.example"], in_headers=True)
    credential = await add(proxy, "", environment_variable=variable)
    found = await tried(proxy, credential)
    assert (found.valid, "can be read" in found.detail) == (True, True)
    problem = await failure(tried(proxy, credential, "https://api.example"))
    assert (type(problem), problem.metadata) == (Invalid, {"field": "url"})


async def test_without_a_voucher_nothing_is_tried(proxy: Proxy, shop: Shop) -> None:
    """None, made up, used, for another vault, of another tenant: refused, and the server is not called."""
    async with strange_server() as server:
        credential = await bearer(proxy, server.url.removesuffix("/mcp"), "canary")
        voucher = proxy.peer.voucher(credential.vault_id)
        request = pb.ValidateCredentialRequest(credential_id=credential.credential_id, voucher=voucher)
        assert (await proxy.client.ValidateCredential(request)).valid, "the control"
        posted = [each for each in server.requests if each.method == "POST"]  # a DELETE may still be on its way
        other = proxy.peer.voucher(ids.mint("vault"))
        theirs = proxy.peer.voucher(credential.vault_id, tenant="another")
        for bad in ("", "made-up", voucher, other, theirs):
            request.voucher = bad
            problem = await failure(proxy.client.ValidateCredential(request))
            assert (type(problem), problem.reason) == (Unauthenticated, "GRANT_INVALID"), bad
        assert [each for each in server.requests if each.method == "POST"] == posted


async def test_what_cannot_be_tried(proxy: Proxy, shop: Shop) -> None:
    """A URL of another origin, a credential that is not there, a session service that vouches for nobody."""
    credential = await bearer(proxy, shop.origin, shop.token)
    for url in ("https://evil.example/mcp", shop.url.replace("127.0.0.1", "localhost"), "nonsense"):
        problem = await failure(tried(proxy, credential, url))
        assert (type(problem), problem.metadata) == (Invalid, {"field": "url"})
    proxy.peer.issuer_key_file = None
    problem = await failure(tried(proxy, credential))
    assert (type(problem), problem.reason) == (Unavailable, "VAULT_UNAVAILABLE")
    await proxy.client.ArchiveCredential(pb.ArchiveCredentialRequest(credential_id=credential.credential_id))
    problem = await failure(tried(proxy, credential))
    assert (type(problem), problem.reason) == (Gone, "CREDENTIAL_NOT_FOUND")

"""Connecting an account: the whole flow, on any replica, once; and the ways in which a client is known."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import pytest

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.errors import Exists, Full, Gone, Invalid, Refused
from services.vault_proxy import credentials
from tests.support.oauth_codes import OPENID_METADATA
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Start, vault_settings
from tests.vault_proxy.connecting import REDIRECT, RESOURCE_METADATA, World, failure, world_of


@pytest.fixture
async def world(start: Start) -> AsyncIterator[World]:
    """What there is to connect, with secrets in memory."""
    async with start() as proxy, world_of(proxy) as made:
        yield made


@pytest.fixture
async def kept(start: Start, store_settings: dict[str, str]) -> AsyncIterator[World]:
    """The same on each store."""
    async with start(**store_settings) as proxy, world_of(proxy) as made:
        yield made


async def test_an_account_is_connected_and_used(kept: World) -> None:
    """A person is sent away with all that must be said; what comes back becomes a credential that opens the server."""
    started = await kept.start(name="mine", scope="read write")
    assert (started.issuer, 590 < started.expire_time.seconds - time.time() <= 601) == (kept.oauth.issuer, True)
    query = {name: values[0] for name, values in parse_qs(urlsplit(started.authorization_url).query).items()}
    challenge = query.pop("code_challenge")
    assert (len(challenge), len(started.state)) == (43, 43)
    assert query == {
        "realm": "a",
        "response_type": "code",
        "client_id": kept.oauth.client_id,
        "redirect_uri": REDIRECT,
        "state": started.state,
        "code_challenge_method": "S256",
        "resource": kept.server.url,
        "scope": "read write",
    }
    connected = await kept.finish(await kept.agree(started))
    assert (connected.name, connected.kind, connected.origin) == ("mine", pb.CREDENTIAL_KIND_MCP_OAUTH, kept.origin)
    assert connected.mcp_oauth == pb.McpOauthFacts(
        renewal_endpoint=kept.oauth.url,
        client_id=kept.oauth.client_id,
        client_auth="client_secret_basic",
        scope="read write",
        resource=kept.server.url,
    )
    assert 3500 < connected.expire_time.seconds - time.time() <= 3600
    assert await kept.says("hello") == "you said hello"
    assert kept.oauth.complaints == []
    [registered] = kept.oauth.registrations
    assert registered["redirect_uris"] == [REDIRECT]
    assert registered["application_type"] == "native"


async def test_connecting_again_replaces_the_grant(kept: World) -> None:
    """The same credential with new secrets, also of another client; one that was revoked works again."""
    first = await kept.connect()
    kept.oauth.grants[0].ended = True
    kept.oauth.client_id, kept.oauth.client_secret = "another", "its secret"
    second = await kept.connect()
    assert (second.credential_id, second.version) == (first.credential_id, first.version + 1)
    assert second.mcp_oauth.client_id == "another"
    listed = await kept.proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=kept.vault_id))
    assert list(listed.credentials) == [second]
    assert await kept.says() == "you said x"


async def test_a_fixed_value_is_not_replaced(world: World) -> None:
    """It is said before the person is sent anywhere; archived, it makes room."""
    secret = pb.CredentialSecret(static_bearer=pb.StaticBearer(value="fixed"))
    request = pb.AddCredentialRequest(vault_id=world.vault_id, origin=world.origin, secret=secret)
    added = (await world.proxy.client.AddCredential(request)).credential
    problem = await world.refused_start()
    assert (type(problem), problem.reason, problem.metadata) == (Exists, "CREDENTIAL_EXISTS", {"key": world.origin})
    archive = pb.ArchiveCredentialRequest(credential_id=added.credential_id)
    await world.proxy.client.ArchiveCredential(archive)
    assert (await world.connect()).origin == world.origin


async def test_a_state_works_once(kept: World) -> None:
    """Replayed, made up, of nothing: one answer. Of ten at once one finishes, and the server sees one code."""
    used = await kept.agree(await kept.start())
    await kept.finish(used)
    for state in (used.state, "a" * 43, "", "../about", "*"):
        problem = await failure(kept.finish(pb.FinishConnectionRequest(state=state, code="c")))
        assert (type(problem), problem.reason) == (Refused, "OAUTH_FAILED")
        assert "the state is unknown, was used, or is too old" in problem.message
    again = await kept.agree(await kept.start())
    exchanges = kept.oauth.requests
    found = await asyncio.gather(*(kept.finish(again) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(each, pb.Credential) for each in found) == 1
    assert (kept.oauth.requests, kept.oauth.complaints) == (exchanges + 1, [])


async def test_a_person_who_refuses(world: World) -> None:
    """The redirect's error is told by its name, if it is one that there is; the state is used up."""
    for error, told in (("access_denied", "access_denied"), ("<b>pay here", "an error of another name")):
        world.oauth.redirect_changes = {"code": None, "error": error}
        back = await world.agree(await world.start())
        problem = await failure(world.finish(back))
        assert (problem.reason, problem.metadata) == ("OAUTH_FAILED", {"server": "127.0.0.1"})
        assert problem.message == f"the authorization server sent the person back with {told}"
        back.code, back.error = "c", ""
        assert "was used" in (await failure(world.finish(back))).message
    assert world.oauth.requests == 0


@pytest.mark.parametrize("auth", ["none", "client_secret_basic", "client_secret_post"])
async def test_each_way_of_being_a_client(world: World, auth: str) -> None:
    """Registered, or one that the caller names; it shows itself as the server wants, and is the one that renews."""
    world.oauth.client_auth, world.oauth.expires_in = auth, 1
    own = {"client_id": world.oauth.client_id}
    if auth != "none":
        own["client_secret"] = world.oauth.client_secret
    fields: dict[str, str]
    for fields in ({}, own):
        connected = await world.connect(**fields)
        assert (connected.mcp_oauth.client_auth, len(world.oauth.registrations)) == (auth, 1)
        assert await world.says() == "you said x"
    assert (world.oauth.refreshed, world.oauth.complaints) == (2, [])


async def test_a_client_metadata_document(start: Start) -> None:
    """A server that takes documents gets the mesh's own as the client's id, and registers nothing."""
    document = "https://mesh.example/client.json"
    async with start(HANDMESH_OAUTH_CLIENT_URL=document) as proxy, world_of(proxy, client_auth="none") as world:
        assert (await world.connect()).mcp_oauth.client_id == world.oauth.client_id, "the control: it registers"
        world.oauth.metadata_changes["client_id_metadata_document_supported"] = True
        world.oauth.client_id = document
        assert (await world.connect()).mcp_oauth.client_id == document
        assert (len(world.oauth.registrations), world.oauth.complaints) == (1, [])


async def test_what_is_asked_for(world: World) -> None:
    """The challenge's scope, else all that the resource has; and a way to renew, if the server has a scope for it."""
    world.resource_changes["scopes_supported"] = ["a", "b", "no scope"]
    world.oauth.metadata_changes["scopes_supported"] = ["openid", "offline_access"]
    await world.connect()
    world.challenge = 'Bearer realm="x", scope="just this"'
    await world.connect()
    await world.connect(scope="mine")
    pages = [(page["scope"], page.get("prompt")) for page in world.oauth.pages]
    assert pages == [("a b offline_access", "consent"), ("just this offline_access", "consent"), ("mine", None)]


async def test_where_metadata_may_lie(world: World) -> None:
    """Where the challenge says, below the server's path, at the root; an authorization server's for OpenID too."""
    for places in ((f"{RESOURCE_METADATA}/mcp",), (RESOURCE_METADATA,), ("/elsewhere",)):
        world.places = places
        world.challenge = f'Bearer resource_metadata="{world.origin}/elsewhere"'
        await world.start()
    world.oauth.places = (OPENID_METADATA,)
    await world.start()
    world.resource_changes["authorization_servers"] = [f"{world.oauth.issuer}/tenant"]
    world.oauth.metadata_changes["issuer"] = f"{world.oauth.issuer}/tenant"
    for place in (
        "/.well-known/oauth-authorization-server/tenant",
        "/.well-known/openid-configuration/tenant",
        "/tenant/.well-known/openid-configuration",
    ):
        world.oauth.places = (place,)
        await world.start()


async def test_what_cannot_be_asked_for(world: World) -> None:
    """Refused before anybody is asked."""
    for fields, named in (
        ({"redirect_uri": ""}, "redirect_uri"),
        ({"redirect_uri": "http://evil.example/callback"}, "redirect_uri"),
        ({"redirect_uri": "https://a@evil.example/"}, "redirect_uri"),
        ({"redirect_uri": "https://app.example/back#x"}, "redirect_uri"),
        ({"redirect_uri": "app:/back"}, "redirect_uri"),
        ({"url": "mcp.example"}, "url"),
        ({"client_secret": "without an id"}, "client_secret"),
        ({"client_id": "x" * 2000}, "client_id"),
        ({"client_id": "caf\u00e9"}, "client_id"),
        ({"scope": "two  spaces"}, "scope"),
        ({"name": "n" * 256}, "name"),
    ):
        problem = await world.refused_start(**fields)
        assert (type(problem), problem.reason, problem.metadata) == (Invalid, "ARGUMENT_INVALID", {"field": named})
    assert world.server.requests == []
    for good in ("https://app.example/back?to=1", "http://localhost:1/x", "http://[::1]:80/x"):  # the control
        await world.start(redirect_uri=good)


async def test_a_full_vault_is_said_first(world: World) -> None:
    """Before the person is sent anywhere; an account that is there already can be connected again."""
    await world.connect()
    for at in range(credentials.MOST_CREDENTIALS - 1):
        secret = pb.CredentialSecret(static_bearer=pb.StaticBearer(value="v"))
        request = pb.AddCredentialRequest(vault_id=world.vault_id, origin=f"https://h{at}.example", secret=secret)
        await world.proxy.client.AddCredential(request)
    await world.connect()
    [account] = [
        each.credential_id
        for each in (
            await world.proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=world.vault_id))
        ).credentials
        if each.origin == world.origin
    ]
    await world.proxy.client.ArchiveCredential(pb.ArchiveCredentialRequest(credential_id=account))
    request = pb.AddCredentialRequest(vault_id=world.vault_id, origin="https://last.example", secret=secret)
    await world.proxy.client.AddCredential(request)
    problem = await world.refused_start()
    assert (type(problem), problem.reason) == (Full, "FULL")


async def test_a_vault_that_is_not_there(world: World) -> None:
    """Unknown, or archived meanwhile: then nothing is asked for the code."""
    problem = await world.refused_start(vault_id="vault_" + "0" * 26)
    assert (type(problem), problem.reason) == (Gone, "VAULT_NOT_FOUND")
    back = await world.agree(await world.start())
    await world.proxy.client.ArchiveVault(pb.ArchiveVaultRequest(vault_id=world.vault_id))
    problem = await failure(world.finish(back))
    assert (type(problem), problem.reason) == (Gone, "VAULT_NOT_FOUND")
    assert world.oauth.requests == 0


@pytest.mark.vault
async def test_another_replica_finishes(start: Start, openbao: OpenBaoServer) -> None:
    """One starts, the other finishes; of both at once with one state, one does."""
    one, two = start(**vault_settings(openbao)), start(**vault_settings(openbao))
    async with one as first, two as second, world_of(first) as world:
        back = await world.agree(await world.start())
        connected = (await second.client.FinishConnection(back)).credential
        assert connected.vault_id == world.vault_id
        back = await world.agree(await world.start())
        calls = [each.client.FinishConnection(back) for each in (first, second) * 3]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(not isinstance(each, BaseException) for each in found) == 1
        assert world.oauth.complaints == []


@pytest.mark.vault
async def test_what_lies_in_the_vault_meanwhile(start: Start, openbao: OpenBaoServer) -> None:
    """Sealed: neither the state, the verifier nor the client's secret is there; and afterwards nothing is."""
    folder = "handmesh/metadata/tenants/default/connections"
    async with start(**vault_settings(openbao)) as proxy, world_of(proxy) as world:
        secret = "canary-of-a-client"
        world.oauth.redirect_uris.add(REDIRECT)
        world.oauth.client_secret = secret

        def names() -> set[str]:
            found = operator.call(openbao, "GET", f"{folder}?list=true")
            return set(found["data"]["keys"]) if "data" in found else set()

        before = names()
        started = await world.start(client_id=world.oauth.client_id, client_secret=secret)
        [place] = names() - before
        path = f"handmesh/data/tenants/default/connections/{place}"
        kept = operator.call(openbao, "GET", path)["data"]["data"]
        assert set(kept) == {"sealed", "expires"}
        assert not any(each in json.dumps(kept) for each in (secret, started.state, world.oauth.issuer))
        back = await world.agree(started)
        await world.finish(back)
        verifier = world.oauth.forms[-1]["code_verifier"]
        assert verifier not in json.dumps(kept) + started.authorization_url
        assert place not in names()
        assert (operator.call(openbao, "GET", path) or {}).get("data") is None

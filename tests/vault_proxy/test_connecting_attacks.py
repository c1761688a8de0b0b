"""Connecting an account when the servers lie (V19, V21): each lie is refused by name, and without it all goes well."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.kit.errors import Denied, Refused, Unavailable
from tests.support.oauth import oauth_server
from tests.support.oauth_codes import CodeServer
from tests.vault_proxy.conftest import Start
from tests.vault_proxy.connecting import REDIRECT, RESOURCE_METADATA, World, failure, world_of
from tests.vault_proxy.strange_server import Reply, strange_server

CANARY = "canary-in-what-a-stranger-said"
UNSUPPORTED, FAILED = "OAUTH_UNSUPPORTED", "OAUTH_FAILED"
NO_NAME = {"authorization_response_iss_parameter_supported": None}
EVIL = "https://evil.example"


@pytest.fixture
async def world(start: Start) -> AsyncIterator[World]:
    """What there is to connect."""
    async with start() as proxy, world_of(proxy) as made:
        yield made


def jwt(audience: Any) -> str:
    """Returns what looks like a signed access for an audience."""
    parts = ({"alg": "RS256"}, {"aud": audience, "sub": "somebody"})
    header, claims = (base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts)
    return f"{header}.{claims}.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"resource": f"{EVIL}/mcp"}, FAILED, "another resource"),
        ({"resource": "ORIGIN/other"}, FAILED, "another resource"),
        ({"resource": "ORIGIN/mcp/below"}, FAILED, "another resource"),
        ({"resource": "ORIGIN/mc"}, FAILED, "another resource"),
        ({"resource": None}, UNSUPPORTED, "no protected-resource metadata"),
        ({"authorization_servers": []}, UNSUPPORTED, "names no authorization server"),
        ({"authorization_servers": ["http://10.0.0.1"]}, FAILED, "only https is called"),
        ({"authorization_servers": [f"https://user@{CANARY}.example"]}, FAILED, "without user"),
        ({"authorization_servers": [f"https://as.example:6379/{CANARY}"]}, FAILED, "not one of web servers"),
        ({"authorization_servers": [f"https://127.0.0.2/{CANARY}"]}, UNSUPPORTED, "does not answer"),
        ({"authorization_servers": [f"https://as.example/?{CANARY}"]}, FAILED, "a query"),
        ({"bearer_methods_supported": ["query"]}, UNSUPPORTED, "no access in the Authorization header"),
    ],
)
async def test_what_a_server_says_of_itself(world: World, changes: dict[str, Any], reason: str, words: str) -> None:
    """Metadata of another resource, of none, or that leads where nothing may be called. Nobody registers."""
    for name, value in changes.items():
        world.resource_changes[name] = value.replace("ORIGIN", world.origin) if isinstance(value, str) else value
    problem = await world.refused_start()
    assert (type(problem), problem.reason, problem.metadata) == (Refused, reason, {"server": "127.0.0.1"})
    assert words in problem.message and CANARY not in problem.message
    assert world.oauth.asked_for == []
    world.resource_changes = {"resource": world.origin}  # the control: it speaks for all of its origin
    await world.start()


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"issuer": EVIL}, FAILED, "another issuer"),
        ({"issuer": "ISSUER//"}, FAILED, "another issuer"),
        ({"issuer": "ISSUER/tenant"}, FAILED, "another issuer"),
        ({"issuer": None}, UNSUPPORTED, "no metadata"),
        ({"code_challenge_methods_supported": None}, UNSUPPORTED, "PKCE with S256"),
        ({"code_challenge_methods_supported": ["plain"]}, UNSUPPORTED, "PKCE with S256"),
        ({"response_types_supported": ["token"]}, UNSUPPORTED, "has no code"),
        ({"grant_types_supported": ["implicit"]}, UNSUPPORTED, "has no authorization_code"),
        ({"token_endpoint": None}, UNSUPPORTED, "no token_endpoint"),
        ({"token_endpoint": f"{EVIL}/token", **NO_NAME}, FAILED, "another origin"),
        ({"authorization_endpoint": f"{EVIL}/page", **NO_NAME}, FAILED, "another origin"),
        ({"registration_endpoint": f"{EVIL}/register", **NO_NAME}, FAILED, "another origin"),
        ({"token_endpoint": "http://evil.example/token"}, FAILED, "only https is called"),
        ({"authorization_endpoint": "javascript:alert(1)"}, FAILED, "authorization_endpoint may not be called"),
        ({"registration_endpoint": "file:///etc/passwd"}, FAILED, "registration_endpoint may not be called"),
        ({"registration_endpoint": None}, UNSUPPORTED, "registers no clients"),
        ({"registration_endpoint": "https://127.0.0.2/register"}, FAILED, "does not answer (denied)"),
        ({"token_endpoint_auth_methods_supported": ["private_key_jwt"]}, UNSUPPORTED, "none of the ways"),
    ],
)
async def test_what_an_authorization_server_says(
    world: World, changes: dict[str, Any], reason: str, words: str
) -> None:
    """Of another issuer, without S256, with endpoints that must not be called, or at another origin with no name."""
    for name, value in changes.items():
        world.oauth.metadata_changes[name] = (
            value.replace("ISSUER", world.oauth.issuer) if name == "issuer" and value else value
        )
    problem = await world.refused_start()
    assert (type(problem), problem.reason, problem.metadata) == (Refused, reason, {"server": "127.0.0.1"})
    assert words in problem.message
    assert world.oauth.registrations == []
    world.oauth.metadata_changes = {}
    await world.start()  # the control


async def test_a_registration_that_is_refused(world: World) -> None:
    """Its error is told by name, what else it says is not; one without what it needs is not used."""
    world.oauth.registration_status = 400
    problem = await world.refused_start()
    assert problem.message == "the authorization server registers no client: invalid_client_metadata"
    world.oauth.registration_status, world.oauth.client_secret = 201, ""
    assert "needs a secret, and gives none" in (await world.refused_start()).message
    world.oauth.client_id = "n\u00f6"
    assert "cannot be used" in (await world.refused_start()).message
    world.oauth.client_id, world.oauth.client_secret = "good", "good"
    assert (await world.connect()).mcp_oauth.client_id == "good"


async def test_metadata_elsewhere_is_not_asked_for(world: World) -> None:
    """A challenge that names another origin, and a redirect there: nobody is called; the server's own place counts."""
    async with strange_server() as elsewhere:
        world.challenge = f'Bearer resource_metadata="{elsewhere.url}"'
        await world.start()
        world.places = ()
        gate = world.gate

        def moved(request: Any) -> Reply | None:
            if request.path.startswith(RESOURCE_METADATA):
                return Reply(302, b"", {"Location": elsewhere.url})
            return gate(request)

        world.server.answer = moved
        problem = await world.refused_start()
        assert (problem.reason, elsewhere.requests) == (UNSUPPORTED, [])
        world.server.answer, world.places = gate, ("/here",)
        world.challenge = f'Bearer resource_metadata="{world.origin}/here"'
        await world.start()  # the control


async def test_a_server_that_may_not_be_called(world: World) -> None:
    """Another spelling of loopback, and one that does not listen: typed, before anything is asked."""
    for url in (world.server.url.replace("127.0.0.1", "localhost"), "http://127.0.0.2/mcp", "https://127.0.0.2/mcp"):
        problem = await world.refused_start(url=url)
        assert (type(problem), problem.reason) == (Denied, "SERVER_ADDRESS_DENIED"), url
    problem = await world.refused_start(url="http://127.0.0.1:1/mcp")
    assert (type(problem), problem.reason) == (Unavailable, "SERVER_UNAVAILABLE")
    await world.start()


async def test_a_code_of_one_server_is_not_sent_to_another(world: World) -> None:
    """A hostile server names an honest one's page as its own: the redirect says who made it, and nothing is exchanged.

    Where the honest server's redirects do not say so, neither may the hostile one's be believed: it is refused as well.
    """
    with oauth_server(CodeServer) as honest:
        honest.redirect_uris.add(REDIRECT)
        page = f"{honest.issuer}/authorize?realm=a"
        world.oauth.metadata_changes["authorization_endpoint"] = page
        for changes, words in (({}, "another issuer"), ({"iss": None}, "does not say its issuer")):
            honest.redirect_changes = changes
            back = await world.agree(await world.start())
            assert back.code in honest.codes, "the control: the honest server has given a code"
            problem = await failure(world.finish(back))
            assert (problem.reason, words in problem.message) == (FAILED, True)
        world.oauth.metadata_changes |= NO_NAME
        assert "another origin" in (await world.refused_start()).message
        assert (world.oauth.requests, honest.requests) == (0, 0)
    world.oauth.metadata_changes = {}
    await world.connect()


async def test_of_two_authorization_servers_one_is_asked(world: World) -> None:
    """The first that the MCP server names, for all of it: an answer in the second's name is refused."""
    with oauth_server(CodeServer) as second:
        world.resource_changes["authorization_servers"] = [world.oauth.issuer, second.issuer]
        back = await world.agree(await world.start())
        back.issuer = second.issuer
        problem = await failure(world.finish(back))
        assert (problem.reason, "another issuer" in problem.message) == (FAILED, True)
        await world.connect()  # the control
        assert second.asked_for == []
    assert (world.oauth.requests, world.oauth.complaints) == (1, [])


async def test_who_answers_is_compared_as_text(world: World) -> None:
    """Missing although announced, another, another spelling; of errors too. Not announced, it may be missing."""
    for issuer in (None, EVIL, f"{world.oauth.issuer}/", world.oauth.issuer.upper()):
        for error in ({}, {"code": None, "error": "access_denied"}):
            world.oauth.redirect_changes = {"iss": issuer, **error}
            problem = await failure(world.finish(await world.agree(await world.start())))
            assert problem.reason == FAILED
            assert problem.message in (
                "the redirect does not say its issuer, as was announced",
                "the redirect came from another issuer than was asked",
            )
    assert world.oauth.requests == 0
    world.oauth.metadata_changes = dict(NO_NAME)
    world.oauth.redirect_changes = {"iss": EVIL}
    assert (await failure(world.finish(await world.agree(await world.start())))).reason == FAILED
    for changes in ({"iss": None}, {}):
        world.oauth.redirect_changes = changes
        await world.connect()


async def test_what_a_code_is_answered_with(world: World) -> None:
    """Refusals, nonsense, other kinds of access, a redirect with the code in it: refused, and nothing of it is told."""
    async with strange_server() as elsewhere:
        moved = {"Location": elsewhere.url}
        good = {"access_token": CANARY, "token_type": "Bearer"}
        for answer, words in (
            ((400, {}, {"error": "invalid_grant", "error_description": CANARY}), "invalid_grant"),
            ((400, {}, {"error": CANARY}), "HTTP status 400"),
            ((500, {}, CANARY), "HTTP status 500"),
            ((200, {}, [CANARY]), "HTTP status 200"),
            ((200, {}, {**good, "token_type": "mac"}), "HTTP status 200"),
            ((200, {}, {**good, "access_token": f"{CANARY}\r\nx: y"}), "HTTP status 200"),
            ((307, moved, {}), "HTTP status 307"),
            ((302, moved, good), "HTTP status 302"),
            ((200, {"Content-Encoding": "gzip"}, good), "does not answer (broken)"),
        ):
            world.oauth.token_answer = answer
            problem = await failure(world.finish(await world.agree(await world.start())))
            assert (type(problem), problem.reason, words in problem.message) == (Refused, FAILED, True), problem.message
            assert CANARY not in str(problem)
        assert elsewhere.requests == []
    world.oauth.token_answer = None
    await world.connect()
    assert not world.server.heard(CANARY)


async def test_an_endpoint_inside_is_not_called(world: World) -> None:
    """A token endpoint at an address that is never called: refused when the code comes, before anything is sent."""
    for endpoint in ("https://127.0.0.2/token", "https://169.254.169.254/token", "https://[::ffff:10.0.0.1]/token"):
        world.oauth.metadata_changes["token_endpoint"] = endpoint
        problem = await failure(world.finish(await world.agree(await world.start())))
        assert (problem.reason, problem.message) == (FAILED, "the authorization server does not answer (denied)")
    world.oauth.metadata_changes = {}
    await world.connect()


async def test_an_access_to_something_else_is_not_used(world: World) -> None:
    """A JWT for other services only: when the account is connected, and when its access is renewed."""
    for audience in (f"{EVIL}/api", [f"{EVIL}/a", "https://other.example"]):
        world.oauth.answer_changes["access_token"] = jwt(audience)
        problem = await failure(world.finish(await world.agree(await world.start())))
        assert (problem.reason, "something else than was asked for" in problem.message) == (FAILED, True)
    world.oauth.answer_changes = {"access_token": jwt([world.server.url, EVIL])}
    world.oauth.expires_in = 1
    await world.connect()
    theirs = jwt(EVIL)
    world.oauth.refresh_changes["access_token"] = theirs
    problem = await failure(world.says())
    assert (type(problem), problem.reason) == (Refused, "CREDENTIAL_REVOKED")
    assert not world.server.heard(theirs)
    world.oauth.answer_changes, world.oauth.refresh_changes = {}, {}  # the control
    await world.connect()
    assert await world.says() == "you said x"

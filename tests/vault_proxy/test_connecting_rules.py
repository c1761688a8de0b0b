"""What is believed of metadata, and what is kept between two steps: without servers, and with a clock of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from services.kit.errors import Full
from services.kit.origin import Allowed
from services.vault_proxy import trail
from services.vault_proxy.connecting import pending
from services.vault_proxy.connecting.pending import LIFETIME_SECONDS, Pending
from services.vault_proxy.connecting.sealing import seal, unseal
from services.vault_proxy.core import metadata
from services.vault_proxy.core.audience import issued_for
from services.vault_proxy.core.authorizing import Attempt, Client, attempt_of
from services.vault_proxy.core.metadata import Challenge
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.memory import MemoryStore
from tests.vault_proxy.connecting import jwt

URL = "https://mcp.example/a/mcp"


@pytest.mark.parametrize("url", [URL, "https://mcp.example", "https://mcp.example/", "https://mcp.example:8443/x/"])
def test_the_package_looks_in_the_same_places(url: str) -> None:
    """Where `mcp`'s own client looks for metadata of a server and of an issuer, and in what order."""
    from mcp.client.auth import utils

    for named in (None, "https://mcp.example/meta"):
        theirs = utils.build_protected_resource_metadata_discovery_urls(named, url)
        if named and not url.startswith("https://mcp.example:"):
            assert metadata.resource_metadata_urls(url, Challenge(named)) == theirs
        elif not named:
            assert metadata.resource_metadata_urls(url, Challenge()) == theirs
    assert metadata.server_metadata_urls(url) == utils.build_oauth_authorization_server_metadata_discovery_urls(
        url, url
    )


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", Challenge()),
        ("Bearer", Challenge()),
        (f'Bearer resource_metadata="{URL}"', Challenge(URL)),
        (f'Bearer realm="a b", scope="x y", resource_metadata="{URL}"', Challenge(URL, "x y")),
        (f"Bearer resource_metadata={URL},scope=x", Challenge(URL, "x")),
        (f'Basic realm="x", Bearer resource_metadata = "{URL}"', Challenge(URL)),
        (f'Bearer not_resource_metadata="{URL}"', Challenge()),
        ('Bearer scope="two  spaces"', Challenge()),
        (f'Bearer resource_metadata="{URL}"' + " " * 9000, Challenge()),
    ],
)
def test_what_a_challenge_says(header: str, found: Challenge) -> None:
    """One row for each spelling."""
    assert metadata.challenge_of(header) == found


def test_a_place_elsewhere_is_no_place() -> None:
    """What a challenge names counts only at the server's own origin, port and scheme included."""
    for named in (
        "https://evil.example/m",
        "http://mcp.example/m",
        "https://mcp.example:444/m",
        "//mcp.example/m",
        "x",
    ):
        assert named not in metadata.resource_metadata_urls(URL, Challenge(named))
    assert (
        metadata.resource_metadata_urls(URL, Challenge("https://MCP.example:443/m"))[0] == "https://MCP.example:443/m"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://as.example", "https://as.example"),
        ("https://as.example", "https://as.example/"),
        ("https://as.example/", "https://as.example//"),
        ("https://as.example", "https://AS.example"),
        ("https://as.example", "https://as.example:443"),
        ("https://as.example/t", "https://as.example/t/"),
        ("https://as.example/t", "https://as.example/t"),
        ("https://as.example", "https://as.example/?"),
    ],
)
def test_the_package_takes_the_same_for_one_issuer(one: str, other: str) -> None:
    """As text, but for a slash behind an origin, in either."""
    from mcp.client.auth.utils import issuers_match

    for named, asked in ((one, other), (other, one)):
        assert metadata._is_issuer(named, asked) is issuers_match(named, asked)


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"[" * 100_000, b'{"resource": 1}', b" " * 300_000, b"\xff"])
def test_what_is_no_metadata(body: bytes) -> None:
    """Nonsense, other JSON, too deep, too long."""
    assert metadata.resource_of(Secret(body), URL) is None
    assert metadata.server_of(Secret(body), URL, Allowed()) is None


@pytest.mark.parametrize(
    ("access", "may"),
    [
        ("opaque", True),
        ("a.b.c", True),
        ("v1.local.encrypted", True),
        (jwt("https://mcp.example"), True),
        (jwt("https://mcp.example:443/other"), True),
        (jwt(["https://other.example", URL]), True),
        (jwt("a name that is no URL"), True),
        (jwt(["https://other.example", "account"]), True),
        (jwt([]), True),
        (jwt(7), True),
        (jwt("https://other.example/mcp"), False),
        (jwt(["https://other.example", "http://mcp.example"]), False),
    ],
)
def test_for_whom_an_access_is(access: str, may: bool) -> None:
    """Only one that says itself that it is for other origins is refused."""
    assert issued_for(access, URL) is may


ATTEMPT = Attempt(
    vault_id="vault_" + "0" * 26,
    name="n",
    origin="https://mcp.example",
    resource=URL,
    issuer="https://as.example",
    names_itself=True,
    token_endpoint="https://as.example/token",
    redirect_uri="http://127.0.0.1/x",
    scope="a b",
    client=Client("client", "client_secret_post", Secret("client canary")),
    verifier=Secret("verifier canary"),
)
STATE, OTHER = "a" * 43, "b" * 43


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_an_attempt_comes_back_whole_and_once() -> None:
    """For its own tenant and state; then nothing is left. It does not show its secrets."""
    store, clock = MemoryStore(), Clock()
    kept = Pending(store, clock)
    assert await kept.put("a", STATE, ATTEMPT) == clock.now + LIFETIME_SECONDS
    assert "canary" not in repr(ATTEMPT) and attempt_of(ATTEMPT.fields()) == ATTEMPT
    assert await kept.take("b", STATE) is None, "another tenant's"
    assert await kept.take("a", OTHER) is None
    assert await kept.take("a", STATE) == ATTEMPT
    assert await kept.take("a", STATE) is None
    assert await store.list("tenants/a/connections") == []


async def test_a_state_has_an_end() -> None:
    """Ten minutes, and not a second more; it is used up then, too."""
    store, clock = MemoryStore(), Clock()
    kept = Pending(store, clock)
    for late, found in ((LIFETIME_SECONDS - 1, ATTEMPT), (LIFETIME_SECONDS, None)):
        await kept.put("a", STATE, ATTEMPT)
        clock.now += late
        assert await kept.take("a", STATE) == found
        assert await store.list("tenants/a/connections") == []


async def test_what_nobody_comes_back_for_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """By later starts; and there is a most that a tenant has under way."""
    monkeypatch.setattr(pending, "MOST_PENDING", 5)
    store, clock = MemoryStore(), Clock()
    kept = Pending(store, clock)
    for at in range(5):
        await kept.put("a", str(at) * 43, ATTEMPT)
    with pytest.raises(Full):
        await kept.put("a", STATE, ATTEMPT)
    await kept.put("b", STATE, ATTEMPT)
    clock.now += LIFETIME_SECONDS
    await kept.put("a", STATE, ATTEMPT)
    assert await store.list("tenants/a/connections") == [trail.connection("a", STATE).rpartition("/")[2]]


async def test_what_was_changed_in_the_store_is_not_opened() -> None:
    """Sealed for its place and by its state: moved to another place, or with other words in it, it is nothing."""
    store, clock = MemoryStore(), Clock()
    kept = Pending(store, clock)
    place = trail.connection("a", STATE)
    sealed = seal(STATE, place, ATTEMPT.fields())
    assert unseal(STATE, place, sealed) == ATTEMPT.fields()
    assert unseal(STATE, trail.connection("b", STATE), sealed) is None
    assert unseal(OTHER, place, sealed) is None
    for text in (sealed[:-8] + "AAAAAAA=", "", "no base64", "AAAA"):
        assert unseal(STATE, place, text) is None
        await store.write(place, {"sealed": text, "expires": "9999999999"}, 0)
        assert await kept.take("a", STATE) is None


async def test_of_many_at_once_one_takes_it() -> None:
    """Whoever writes first goes on."""
    kept = Pending(MemoryStore(), Clock())
    await kept.put("a", STATE, ATTEMPT)
    found = await asyncio.gather(*(kept.take("a", STATE) for _ in range(10)))
    assert [each for each in found if each is not None] == [ATTEMPT]

"""GitHub Apps: a key that stays becomes, for an hour, a value that git sends."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from services.kit.errors import Refused, Unavailable
from services.kit.origin import origin_of
from services.vault_proxy.github_app import GithubApps, NotAsked, api_of
from services.vault_proxy.secret import Secret
from services.vault_proxy.wallet import Login
from tests.support.git_host import GitHost, Request
from tests.vault_proxy.conftest import Start
from tests.vault_proxy.doors.git_world import add_login, rule, sandbox

APP, INSTALLATION = "12345", "67890"
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def pem(key: RSAPrivateKey, form: PrivateFormat = PrivateFormat.TraditionalOpenSSL) -> str:
    return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()


def claims(key: RSAPrivateKey, authorization: str) -> dict[str, Any]:
    """Returns what a token says, which must be signed by the key with RS256."""
    head, said, signature = authorization.removeprefix("Bearer ").split(".")
    assert json.loads(_read(head)) == {"alg": "RS256", "typ": "JWT"}
    key.public_key().verify(_read(signature), f"{head}.{said}".encode(), PKCS1v15(), SHA256())
    found: dict[str, Any] = json.loads(_read(said))
    return found


def _read(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class Host:
    """An API in memory: gives values, one after the other."""

    status: int = 201
    seconds: float = 3600.0
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def post(self, url: str, authorization: Secret[str]) -> tuple[int, Secret[bytes]]:
        self.asked.append((url, authorization.reveal()))
        if not self.status:
            raise NotAsked
        ends = datetime.fromtimestamp(NOW + self.seconds, UTC).isoformat()
        said = {"token": f"ghs_{len(self.asked)}", "expires_at": ends}
        return self.status, Secret(json.dumps(said).encode())


def login(key: RSAPrivateKey, version: int = 1, text: str = "") -> Login:
    return Login(
        credential_id="cred_00000000000000000000000001",
        vault_id="vault_00000000000000000000000001",
        origin=origin_of("https://github.com"),
        version=version,
        user="x-access-token",
        value=Secret(""),
        app_id=APP,
        installation_id=INSTALLATION,
        private_key=Secret(text or pem(key)),
    )


async def test_an_app_gets_a_value_and_keeps_it_until_it_ends(key: RSAPrivateKey) -> None:
    """The key's word is good for nine minutes; a few minutes before the value ends another one is asked for."""
    host, clock = Host(), [NOW]
    apps = GithubApps(host.post, lambda: clock[0])
    assert (await apps.value(login(key))).reveal() == "ghs_1"
    clock[0] += 3299
    assert (await apps.value(login(key))).reveal() == "ghs_1"
    clock[0] += 2
    assert (await apps.value(login(key))).reveal() == "ghs_2"
    (url, authorization), _ = host.asked
    assert url == f"https://api.github.com/app/installations/{INSTALLATION}/access_tokens"
    assert claims(key, authorization) == {"iat": NOW - 60, "exp": NOW + 480, "iss": APP}


async def test_a_new_key_and_a_refused_value_are_asked_for_anew(key: RSAPrivateKey) -> None:
    """A credential that was replaced has another version; what the host refused is forgotten."""
    host = Host()
    apps = GithubApps(host.post, lambda: NOW)
    values = [(await apps.value(login(key))).reveal(), (await apps.value(login(key, version=2))).reveal()]
    apps.forget(login(key))
    values += [(await apps.value(login(key))).reveal(), (await apps.value(login(key, version=2))).reveal()]
    assert values == ["ghs_1", "ghs_2", "ghs_3", "ghs_2"]


async def test_both_forms_of_a_key(key: RSAPrivateKey) -> None:
    """PKCS#1, as GitHub gives it, and PKCS#8."""
    host = Host()
    await GithubApps(host.post, lambda: NOW).value(login(key, text=pem(key, PrivateFormat.PKCS8)))
    assert claims(key, host.asked[0][1])["iss"] == APP


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refused_app_is_revoked(key: RSAPrivateKey, status: int) -> None:
    """Somebody has to mend it."""
    with pytest.raises(Refused) as refused:
        await GithubApps(Host(status).post, lambda: NOW).value(login(key))
    assert refused.value.reason == "CREDENTIAL_REVOKED"


@pytest.mark.parametrize("status", [0, 200, 302, 500])
async def test_a_host_that_does_not_answer_is_asked_again_later(key: RSAPrivateKey, status: int) -> None:
    """Nothing is kept of it."""
    with pytest.raises(Unavailable) as failed:
        await GithubApps(Host(status).post, lambda: NOW).value(login(key))
    assert failed.value.reason == "CREDENTIAL_REFRESH_FAILED"


async def test_a_key_that_is_none_is_told_without_it(key: RSAPrivateKey) -> None:
    """The error names no part of it."""
    with pytest.raises(Refused) as refused:
        await GithubApps(Host().post, lambda: NOW).value(login(key, text="-----BEGIN canary"))
    assert "canary" not in str(refused.value)


def test_where_a_hosts_api_is() -> None:
    """github.com has a host of its own for it, its data-resident tenants too, an Enterprise Server a path."""
    for origin, api in [
        ("https://github.com", "https://api.github.com"),
        ("https://acme.ghe.com", "https://api.acme.ghe.com"),
        ("https://git.example:8443", "https://git.example:8443/api/v3"),
    ]:
        assert api_of(origin_of(origin)) == api


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    made = GitHost(tmp_path / "host", "ghs_made")
    made.make("acme/app")
    yield made
    made.close()


async def test_git_with_an_app(start: Start, host: GitHost, tmp_path: Path, key: RSAPrivateKey) -> None:
    """A session clones with what its app's key became: asked for once, of the repository's own host."""
    asked: list[Request] = []
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    def strange(request: Request) -> tuple[int, list[tuple[str, str]], bytes] | None:
        if not request.path.startswith("/api/v3/"):
            return None
        asked.append(request)
        said = json.dumps({"token": "ghs_made", "expires_at": ends}).encode()
        return 201, [("Content-Type", "application/json")], said

    host.strange = strange
    async with start() as proxy:
        fields = {"app_id": APP, "installation_id": INSTALLATION, "private_key": pem(key)}
        vault_id, _ = await add_login(proxy, host.origin, "", **fields)
        grant = proxy.peer.grant(vault_ids=(vault_id,), git_rules=(rule(host.url("acme/app")),))
        async with sandbox(proxy, grant, tmp_path / "box", host) as box:
            await box.ok("clone", "--quiet", host.url("acme/app"), "app")
            await box.ok("fetch", "--quiet", cwd="app")
    assert [request.path for request in asked] == [f"/api/v3/app/installations/{INSTALLATION}/access_tokens"]
    assert claims(key, asked[0].headers["authorization"])["iss"] == APP

"""Tokens of issuers: a good one gives a tenant and a scope, and everything else is refused in one and the same way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from services.kit.access import Scope
from services.kit.callers import CREDENTIAL_CHARACTERS
from services.kit.errors import Unauthenticated, Unavailable
from services.kit.identity import Caller
from services.kit.key_file import KeyFile
from services.kit.watched import UnreadableError
from services.session.credentials import Credentials
from services.session.issuer_keys import AGAIN_SECONDS, FRESH_SECONDS, STALE_SECONDS, FetchedKeys
from services.session.issuers import read as read_issuers
from services.session.tokens import Tokens

ISSUER, AUDIENCE = "https://login.example.com/", "handmesh"
KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
ROW: dict[str, Any] = {
    "issuer": ISSUER,
    "audience": AUDIENCE,
    "jwks_file": "jwks.json",
    "tenant_claim": "org",
    "scopes": {"agents:read": "read", "agents:run": "run", "agents:admin": "admin"},
}


def public(key: Any, algorithm: str, key_id: str) -> dict[str, Any]:
    """Makes a key of a key set."""
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": key_id, "use": "sig", "alg": algorithm}


def key_set(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


ALL_KEYS = key_set(*(public(key, name, name) for name, key in KEYS.items()))


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "org": "acme", "scope": "openid agents:run", "exp": now + 60}
    return {name: value for name, value in {**said, **changes}.items() if value is not None}


def token(algorithm: str = "ES256", key: Any = None, header: Mapping[str, Any] | None = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key or KEYS[algorithm], algorithm, {"kid": algorithm, **(header or {})})


def forged(header: Mapping[str, Any], said: Any, sign: Callable[[bytes], bytes]) -> str:
    """Makes a token that no library would."""
    text = b".".join(_coded(json.dumps(part).encode()) for part in (header, said))
    return (text + b"." + _coded(sign(text))).decode()


def _coded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    (tmp_path / "jwks.json").write_bytes(ALL_KEYS)
    (tmp_path / "oidc.json").write_text(json.dumps({"issuers": [ROW]}))
    return Tokens(tmp_path / "oidc.json")


@pytest.mark.parametrize("algorithm", KEYS)
async def test_a_good_token_gives_tenant_scope_and_end(tokens: Tokens, algorithm: str) -> None:
    """Each algorithm; the highest of the scopes counts; what it may do ends with it, and 5 s for clocks."""
    ends = int(time.time()) + 60
    caller = await tokens.check(token(algorithm, exp=ends, scope=["agents:read", "agents:admin", "x"]))
    assert (caller.kind, caller.tenant, caller.name, caller.scope) == ("client", "acme", "ada", Scope.ADMIN)
    assert caller.expires == ends + 5
    again = await tokens.check(token(algorithm, exp=ends + 9))
    assert again.id == caller.id, "who renews a token has no rate of its own for each"


PUBLIC_PEM = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
NOW = int(time.time())
WRONG: dict[str, Callable[[], str]] = {
    "no signature": lambda: forged({"alg": "none", "kid": "ES256"}, claims(), lambda text: b""),
    "none, spelled otherwise": lambda: forged({"alg": "nOnE"}, claims(), lambda text: b""),
    "signature cut off": lambda: token().rpartition(".")[0] + ".",
    "the public key as a secret": lambda: forged(
        {"alg": "HS256", "kid": "RS256"}, claims(), lambda text: hmac.digest(PUBLIC_PEM, text, hashlib.sha256)
    ),
    "another algorithm's key": lambda: token("ES256", header={"kid": "RS256"}),
    "an algorithm that is not ours": lambda: jwt.encode(claims(), KEYS["RS256"], "PS256", {"kid": "RS256"}),
    "another key": lambda: token(key=OTHER_KEY),
    "its own key in the header": lambda: token(key=OTHER_KEY, header={"jwk": public(OTHER_KEY, "ES256", "ES256")}),
    "keys of its own address": lambda: token(key=OTHER_KEY, header={"jku": "https://evil.example/jwks.json"}),
    "unknown key": lambda: token(header={"kid": "nobody"}),
    "a key id that is none": lambda: token(header={"kid": "../../dev/null"}),
    "an extension that must be understood": lambda: token(header={"crit": ["exp"], "exp": 1}),
    "unencoded payload": lambda: token(header={"b64": False}),
    "wrong audience": lambda: token(aud="another"),
    "no audience": lambda: token(aud=None),
    "odd audience": lambda: forged({"alg": "ES256"}, claims(aud={"a": 1}), lambda text: b"x" * 64),
    "wrong issuer": lambda: token(iss="https://login.example.com"),
    "no issuer": lambda: token(iss=None),
    "expired": lambda: token(exp=NOW - 30),
    "without an end": lambda: token(exp=None),
    "with an end that is none": lambda: forged({"alg": "ES256"}, claims(exp=float("inf")), lambda text: b"x" * 64),
    "too long a life": lambda: token(exp=NOW + 90_000),
    "not yet": lambda: token(nbf=NOW + 600),
    "made in the future": lambda: token(iat=NOW + 600),
    "no subject": lambda: token(sub=None),
    "no tenant": lambda: token(org=None),
    "a tenant that is none": lambda: token(org="../acme"),
    "two tenants": lambda: token(org=["acme", "other"]),
    "no scope of ours": lambda: token(scope="openid"),
    "odd scopes": lambda: token(scope={"agents:admin": 1}),
    "operator, which is not mapped": lambda: token(scope="operator"),
    "no JSON": lambda: "e30.bm90IGpzb24.AAAA",
    "no object": lambda: forged({"alg": "ES256"}, [1], lambda text: b"x" * 64),
    "deep": lambda: (_coded(b"{}") + b"." + _coded(b"[" * 4_000) + b".").decode(),
    "oversized": lambda: token(x="x" * CREDENTIAL_CHARACTERS),
    "nothing": lambda: "..",
}


@pytest.mark.parametrize("why", WRONG)
async def test_everything_else_is_refused_in_the_same_way(tokens: Tokens, why: str) -> None:
    """Forged, confused, expired, somebody else's, too big: one reason, one message, no word about what is wrong."""
    credentials = Credentials(None, KeyFile(None), tokens, None)  # type: ignore[arg-type]
    with pytest.raises(Unauthenticated) as caught:
        await credentials.ask(WRONG[why]())
    expected = "the credential is not known to this mesh, or not good any more [IDENTITY_UNKNOWN]"
    assert (str(caught.value), caught.value.metadata) == (expected, {})


async def test_clocks_may_differ_by_five_seconds(tokens: Tokens) -> None:
    """And by no more."""
    assert (await tokens.check(token(exp=int(time.time()) - 2, nbf=int(time.time()) + 3))).tenant == "acme"
    with pytest.raises(Unauthenticated):
        await tokens.check(token(exp=int(time.time()) - 7))


async def test_an_issuer_speaks_for_its_own_tenants(tmp_path: Path) -> None:
    """One that may name some tenants names no other; one with a fixed tenant cannot name any."""
    (tmp_path / "jwks.json").write_bytes(ALL_KEYS)
    fixed = {name: value for name, value in ROW.items() if name != "tenant_claim"} | {
        "tenant": "fixed",
        "audience": "f",
    }
    (tmp_path / "oidc.json").write_text(json.dumps({"issuers": [{**ROW, "tenants": ["acme"]}, fixed]}))
    tokens = Tokens(tmp_path / "oidc.json")
    assert (await tokens.check(token())).tenant == "acme"
    assert (await tokens.check(token(aud=["x", "f"], org="acme"))).tenant == "fixed"
    with pytest.raises(Unauthenticated):
        await tokens.check(token(org="other"))


class Site:
    """Where an issuer shows its keys."""

    def __init__(self) -> None:
        self.content: bytes | None = ALL_KEYS
        self.fetched = 0
        self.now = 0.0
        self.keys = FetchedKeys(self.fetch, lambda: self.now)

    def fetch(self) -> bytes:
        self.fetched += 1
        if self.content is None:
            raise ConnectionRefusedError
        return self.content


async def test_an_unknown_key_is_looked_for_and_no_more_often_than_now_and_then() -> None:
    """A key that the issuer has turned to is found; made-up ones cause one fetch in ten seconds, however many."""
    site = Site()
    assert await site.keys.find("ES256", "ES256") is not None
    for number in range(50):
        assert await site.keys.find(f"made-up-{number}", "ES256") is None
    assert site.fetched == 1
    site.content = key_set(public(OTHER_KEY, "ES256", "next"))
    site.now += AGAIN_SECONDS
    assert await site.keys.find("next", "ES256") is not None
    assert await site.keys.find("ES256", "ES256") is None, "a key that the issuer shows no more is good no more"
    assert site.fetched == 2


async def test_keys_outlast_an_issuer_that_is_away() -> None:
    """For a day; then, and when there never were any, nobody can say whose a token is."""
    site = Site()
    assert await site.keys.find("ES256", "ES256") is not None
    site.content = None
    site.now += FRESH_SECONDS + 1
    assert await site.keys.find("ES256", "ES256") is not None
    site.now += STALE_SECONDS
    with pytest.raises(Unavailable):
        await site.keys.find("ES256", "ES256")
    nowhere = Site()
    nowhere.content = None
    with pytest.raises(Unavailable):
        await nowhere.keys.find("ES256", "ES256")


async def test_what_is_no_key_for_signatures_is_left_out() -> None:
    """Secrets, keys for encryption, private ones, weak ones, and ones for another algorithm than their kind's."""
    site = Site()
    weak = rsa.generate_private_key(65537, 1024)
    good = public(KEYS["ES256"], "ES256", "good")
    site.content = key_set(
        {"kty": "oct", "k": "AAAA", "kid": "secret", "alg": "HS256"},
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": "alg", "alg": "HS256"},
        {**good, "kid": "ops", "key_ops": ["sign"]},
        {**good, "kid": "private", "d": "AAAA"},
        public(weak, "RS256", "weak"),
        good,
    )
    assert await site.keys.find("good", "ES256") is not None
    for name in ("secret", "enc", "alg", "ops", "private", "weak"):
        for algorithm in ("HS256", "ES256", "RS256"):
            assert await site.keys.find(name, algorithm) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithms": ["HS256"]}, "algorithms are some of RS256, ES256, EdDSA"),
        ({"algorithms": ["none"]}, "algorithms are some of RS256, ES256, EdDSA"),
        ({"leeway_seconds": 60}, "leeway_seconds is 0 to 5"),
        ({"jwks_url": "https://a.example/"}, "either jwks_file or jwks_url is needed"),
        ({"jwks_file": None, "jwks_url": "http://a.example/"}, "jwks_url begins with https://"),
        ({"audience": []}, "audience is some text, or a list of it"),
        ({"tenant": "acme"}, "either tenant or tenant_claim is needed"),
        ({"scopes": {"x": "root"}}, "scopes is {word of the issuer: read | run | admin | operator}"),
        ({"scopes_claim": "x"}, "there is no field scopes_claim"),
        ({"issuer": None}, "issuer is missing"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, change: Mapping[str, Any], said: str) -> None:
    """Which issuer, and what was expected: nothing of it is guessed."""
    row = {name: value for name, value in {**ROW, **change}.items() if value is not None}
    (tmp_path / "oidc.json").write_text(json.dumps({"issuers": [ROW, row]}))
    with pytest.raises(UnreadableError) as caught:
        read_issuers(tmp_path / "oidc.json")
    assert str(caught.value) == f"issuer 2: {said}"


async def test_the_file_and_its_keys_are_read_again(tmp_path: Path) -> None:
    """Another key in the file of keys is good as soon as it is there, and the one before is not."""
    (tmp_path / "jwks.json").write_bytes(ALL_KEYS)
    (tmp_path / "oidc.json").write_text(json.dumps({"issuers": [ROW]}))
    tokens = Tokens(tmp_path / "oidc.json")
    assert isinstance(await tokens.check(token()), Caller)
    (tmp_path / "jwks.json").write_bytes(key_set(public(OTHER_KEY, "ES256", "next")))
    tokens._trusted._due = 0.0
    for _, keys in tokens._trusted.get():
        keys._keys._due = 0.0  # type: ignore[attr-defined]
    assert (await tokens.check(token(key=OTHER_KEY, header={"kid": "next"}))).tenant == "acme"
    with pytest.raises(Unauthenticated):
        await tokens.check(token())

"""When an access is renewed, what is asked, and what answers mean: without a clock, a store or a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.vault_proxy.core import renewal
from services.vault_proxy.core.renewal import Failed, Need, Renewed
from services.vault_proxy.secret import Secret

NOW = 1_900_000_000.0
BASE = {"access": "a", "refresh": "r", "renewal_endpoint": "https://as.example/t"}
ENDS = {"expire_time": renewal.moment(NOW + 1000)}
ENDED = {"expire_time": renewal.moment(NOW - 1)}


@pytest.mark.parametrize(
    ("fields", "refused", "needed"),
    [
        (BASE, None, Need.NOTHING),
        (BASE | ENDS, None, Need.NOTHING),
        (BASE | ENDED, None, Need.RENEW),
        (BASE | {"expire_time": renewal.moment(NOW + 59)}, None, Need.RENEW),
        (BASE | {"expire_time": renewal.moment(NOW + 61)}, None, Need.NOTHING),
        (BASE | {"expire_time": renewal.moment(NOW + 8), "renewed": str(NOW - 2)}, None, Need.NOTHING),  # 10 s in all
        (BASE | {"expire_time": renewal.moment(NOW + 4), "renewed": str(NOW - 6)}, None, Need.RENEW),
        (BASE | {"expire_time": "nonsense"}, None, Need.NOTHING),
        (BASE | ENDS, "a", Need.RENEW),
        (BASE | ENDS, "older", Need.NOTHING),  # somebody has renewed it
        (BASE | ENDS | {"renewed": str(NOW - 59)}, "a", Need.NOTHING),
        (BASE | ENDS | {"renewed": str(NOW - 61)}, "a", Need.RENEW),
        (BASE | ENDED | {"renewing_until": str(NOW + 1)}, None, Need.WAIT),
        (BASE | ENDED | {"renewing_until": str(NOW - 1)}, None, Need.RENEW),
        (BASE | ENDED | {"renew_after": str(NOW + 1)}, None, Need.GIVE_UP),
        (BASE | {"expire_time": renewal.moment(NOW + 9), "renew_after": str(NOW + 1)}, None, Need.NOTHING),
        (BASE | ENDS | {"renew_after": str(NOW + 1)}, "a", Need.GIVE_UP),
        (BASE | ENDED | {"renew_after": str(NOW - 1)}, None, Need.RENEW),
        (BASE | ENDS | {"revoked": "1"}, None, Need.REVOKED),
        ({"access": "a"} | ENDED, None, Need.NOTHING),
    ],
)
def test_what_is_needed(fields: dict[str, str], refused: str | None, needed: Need) -> None:
    """One row for each rule."""
    assert renewal.need(fields, Secret(refused) if refused else None, NOW) is needed


def test_the_client_is_in_one_place() -> None:
    """In the header or in the body, never in both; both form-encoded."""
    fields = BASE | {"client_id": "a:b", "client_secret": "c d", "client_auth": "client_secret_basic"}
    body, header = renewal.question(fields)
    assert body == Secret(b"grant_type=refresh_token&refresh_token=r")
    assert header == Secret("Basic YSUzQWI6Yytk")
    body, header = renewal.question(fields | {"client_auth": "client_secret_post"})
    assert body == Secret(b"grant_type=refresh_token&refresh_token=r&client_id=a%3Ab&client_secret=c+d")
    assert header is None
    body, header = renewal.question(fields | {"client_auth": "none", "resource": "https://a", "scope": "x y"})
    assert body == Secret(
        b"grant_type=refresh_token&refresh_token=r&scope=x+y&resource=https%3A%2F%2Fa&client_id=a%3Ab"
    )
    assert header is None


GOOD = {"access_token": "new", "token_type": "Bearer"}


@pytest.mark.parametrize(
    ("status", "said", "meant"),
    [
        (200, GOOD, Renewed(Secret("new"), None, None)),
        (200, GOOD | {"refresh_token": "r2", "expires_in": 60}, Renewed(Secret("new"), Secret("r2"), 60.0)),
        (200, GOOD | {"refresh_token": "", "expires_in": "60"}, Renewed(Secret("new"), None, 60.0)),
        (200, GOOD | {"expires_in": -5}, Renewed(Secret("new"), None, None)),
        (200, GOOD | {"expires_in": True}, Renewed(Secret("new"), None, None)),
        (200, GOOD | {"expires_in": 1e300}, Renewed(Secret("new"), None, renewal.MOST_SECONDS)),
        (200, {"access_token": "new"}, Failed.OTHERWISE),
        (200, GOOD | {"token_type": "mac"}, Failed.OTHERWISE),
        (200, GOOD | {"access_token": "line\nfeed"}, Failed.OTHERWISE),
        (200, GOOD | {"access_token": 7}, Failed.OTHERWISE),
        (200, {"error": "invalid_grant"}, Failed.OTHERWISE),
        (200, [1], Failed.OTHERWISE),
        (400, {"error": "invalid_grant"}, Failed.REVOKED),
        (401, {"error": "invalid_grant"}, Failed.REVOKED),
        (401, {"error": "invalid_client"}, Failed.OTHERWISE),
        (500, {"error": "invalid_grant"}, Failed.OTHERWISE),
        (302, {"error": "invalid_grant"}, Failed.OTHERWISE),
    ],
)
def test_what_answers_mean(status: int, said: Any, meant: Renewed | Failed) -> None:
    """Only `invalid_grant` ends a grant; what is not understood ends nothing."""
    assert renewal.answer(status, Secret(json.dumps(said).encode())) == meant


def test_answers_that_are_no_json_end_nothing() -> None:
    """Text, half a document, and a million brackets."""
    for body in (b"", b"<html>", b'{"access_token"', b"[" * 1_000_000):
        assert renewal.answer(200, Secret(body)) is Failed.OTHERWISE

"""What is asked of an authorization server to renew an access, what its answer means, and when to ask (RFC 6749, 6)."""

from __future__ import annotations

import base64
import datetime
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote_plus, urlencode

from services.vault_proxy.core import kinds
from services.vault_proxy.core.audience import issued_for
from services.vault_proxy.ports import Changes
from services.vault_proxy.secret import Secret

MARGIN_SECONDS = 60.0  # before its end an access is renewed; half its life, if that is less
REFUSED_SECONDS = 60.0  # an access that is refused sooner after it was renewed is not renewed again: it would not help
LEASE_SECONDS = 30.0  # whoever renews has so long; then somebody else may
BACKOFF_SECONDS = 15.0  # after an authorization server has failed
MOST_SECONDS = 10 * 365 * 86400.0  # of an access, whatever the server says

FORM = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}

# Fields of a secret document that are about renewing it. Times are seconds of Unix time.
RENEWING, RENEWING_UNTIL, RENEW_AFTER = "renewing", "renewing_until", "renew_after"
RENEWED, REVOKED = "renewed", "revoked"
CLEARED: Changes = dict.fromkeys((RENEWING, RENEWING_UNTIL, RENEW_AFTER, RENEWED, REVOKED))


class Need(enum.Enum):
    """What must be done before an access is used."""

    NOTHING = "nothing"
    RENEW = "renew"
    WAIT = "wait"  # somebody else renews it
    GIVE_UP = "give up"  # the server failed a moment ago, and there is nothing else to use
    REVOKED = "revoked"


@dataclass(frozen=True)
class Renewed:
    """A new access, and a new refresh token if there came one. `expires_in`: seconds, None when not said."""

    access: Secret[str]
    refresh: Secret[str] | None
    expires_in: float | None


class Failed(enum.Enum):
    """Why there is no new access."""

    REVOKED = "invalid_grant"  # for good: the account must be connected again
    OTHERWISE = "otherwise"  # the server is down, does not know the client, or answers nonsense


def need(fields: Mapping[str, str], refused: Secret[str] | None, now: float) -> Need:
    """Says what to do with an access. `refused` is one that the MCP server has just refused."""
    if fields.get(REVOKED):
        return Need.REVOKED
    if not fields.get("refresh") or not fields.get("renewal_endpoint"):
        return Need.NOTHING
    renewed, ends = _number(fields, RENEWED), _ends(fields.get("expire_time", ""))
    margin = min(MARGIN_SECONDS, (ends - renewed) / 2) if renewed else MARGIN_SECONDS
    rejected = refused is not None and refused == Secret(fields.get("access", "")) and renewed + REFUSED_SECONDS <= now
    if not rejected and now < ends - margin:
        return Need.NOTHING
    if _number(fields, RENEWING_UNTIL) > now:
        return Need.WAIT
    if _number(fields, RENEW_AFTER) > now:
        return Need.NOTHING if not rejected and now < ends else Need.GIVE_UP
    return Need.RENEW


def usable(fields: Mapping[str, str], refused: Secret[str] | None, now: float) -> bool:
    """Tells whether an access may still be tried although it could not be renewed."""
    return now < _ends(fields.get("expire_time", "")) and refused != Secret(fields.get("access", ""))


def lease(holder: str, now: float) -> Changes:
    """Returns what is written before the server is asked."""
    return {RENEWING: holder, RENEWING_UNTIL: f"{now + LEASE_SECONDS:.3f}"}


def question(fields: Mapping[str, str]) -> tuple[Secret[bytes], Secret[str] | None]:
    """Returns the body of the request, and its Authorization header if the client shows itself there."""
    form = {"grant_type": "refresh_token", "refresh_token": fields["refresh"]}
    return signed(form | {name: fields[name] for name in ("scope", "resource") if fields.get(name)}, fields)


def signed(form: Mapping[str, str], fields: Mapping[str, str]) -> tuple[Secret[bytes], Secret[str] | None]:
    """Returns a form as the client that the fields name sends it: it shows itself in the header or in the body."""
    client_id, client_secret = fields.get("client_id", ""), fields.get("client_secret", "")
    header: Secret[str] | None = None
    match fields.get("client_auth", "none"):
        case "client_secret_basic":
            pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
            header = Secret("Basic " + base64.b64encode(pair.encode()).decode())
        case "client_secret_post":
            form = {**form, "client_id": client_id, "client_secret": client_secret}
        case _:
            form = {**form, "client_id": client_id}
    return Secret(urlencode(form).encode()), header


def answer(status: int, body: Secret[bytes], resource: str = "") -> Renewed | Failed:
    """Reads what the server said. Nothing of it is in what is returned but the tokens.

    `resource` is what the access was asked for, if anything: one that says that it is for others is never used.
    """
    try:
        said = json.loads(body.reveal())
    except (ValueError, RecursionError):
        return Failed.OTHERWISE
    if not isinstance(said, dict):
        return Failed.OTHERWISE
    if status != 200:
        return Failed.REVOKED if status in (400, 401) and said.get("error") == "invalid_grant" else Failed.OTHERWISE
    access, kind, refresh = said.get("access_token"), said.get("token_type"), said.get("refresh_token")
    if not isinstance(access, str) or not kinds.is_bearer(access):
        return Failed.OTHERWISE
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return Failed.OTHERWISE
    if resource and not issued_for(access, resource):
        return Failed.REVOKED
    kept = refresh if isinstance(refresh, str) and 0 < len(refresh) <= kinds.VALUE_CHARACTERS else None
    return Renewed(Secret(access), Secret(kept) if kept else None, _seconds(said.get("expires_in")))


def stored(renewed: Renewed, now: float) -> Changes:
    """Returns what is written of a new access. Without a new refresh token the old one stays."""
    expires = None if renewed.expires_in is None else moment(now + renewed.expires_in)
    refresh = {} if renewed.refresh is None else {"refresh": renewed.refresh.reveal()}
    return {
        **CLEARED,
        **refresh,
        "access": renewed.access.reveal(),
        "expire_time": expires,
        RENEWED: f"{now:.3f}",
    }


def moment(seconds: float) -> str:
    """Spells Unix time in RFC 3339."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(said: object) -> float | None:
    if isinstance(said, str) and said.isascii() and said.isdigit():  # some servers send it as text
        said = int(said[:12])
    if isinstance(said, bool) or not isinstance(said, int | float) or not said > 0:
        return None
    return min(float(said), MOST_SECONDS)


def _ends(expire_time: str) -> float:
    """Returns when an access ends; for ever, if it does not say."""
    try:
        return datetime.datetime.fromisoformat(expire_time).timestamp() if expire_time else float("inf")
    except ValueError:
        return float("inf")


def _number(fields: Mapping[str, str], name: str) -> float:
    try:
        return float(fields.get(name, "") or 0)
    except ValueError:
        return 0.0

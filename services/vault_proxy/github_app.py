"""GitHub Apps: an app's private key becomes, for an hour, a value that git can send.

A JSON Web Token that the key signs, of nine minutes, is posted to `/app/installations/<id>/access_tokens` of the host's
API. The key goes nowhere. What comes is kept in memory until a few minutes before it ends.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from services.kit.errors import Refused, Unavailable
from services.kit.logs import Log
from services.kit.origin import Allowed, Origin, UrlRefused
from services.vault_proxy.secret import Secret
from services.vault_proxy.wallet import Login

if TYPE_CHECKING:
    from services.vault_proxy.outbound import Outbound

TOKEN_SECONDS = 540  # GitHub takes ten minutes at most, by its own clock
CLOCK_SECONDS = 60  # that clocks may differ
MARGIN_SECONDS = 300.0  # before its end a value is asked for anew
ASK_SECONDS = 10.0
MOST_KEPT = 1_000

_log = Log("services.vault_proxy.github_app")
# url, authorization -> status and body
Post = Callable[[str, Secret[str]], Awaitable[tuple[int, Secret[bytes]]]]


class NotAsked(Exception):
    """The API could not be asked."""


class Api:
    """Asks APIs, each time on a connection of its own."""

    def __init__(self, allowed: Allowed, ca_file: Path | None) -> None:
        self._reach = (allowed, ca_file)
        self._outbound: Outbound | None = None

    async def post(self, url: str, authorization: Secret[str]) -> tuple[int, Secret[bytes]]:
        """Posts nothing to a URL. Returns status and body. Raises NotAsked."""
        from services.vault_proxy.outbound import NoAnswer, Outbound

        if self._outbound is None:
            self._outbound = await asyncio.to_thread(Outbound, *self._reach)
        headers = {"Accept": "application/vnd.github+json"}
        try:
            answer = await self._outbound.send("POST", url, headers, None, authorization, ASK_SECONDS)
        except (UrlRefused, NoAnswer):
            raise NotAsked from None
        return answer.status, answer.body


@dataclass(frozen=True)
class _Kept:
    value: Secret[str]
    until: float


class GithubApps:
    """Exchanges apps' keys. `now` is Unix time in seconds; `post` asks the API, and raises NotAsked."""

    def __init__(self, post: Post, now: Callable[[], float]) -> None:
        self._post = post
        self._now = now
        self._kept: OrderedDict[tuple[str, int], _Kept] = OrderedDict()

    async def value(self, login: Login) -> Secret[str]:
        """Returns what git sends for an app's installation.

        Raises Refused (`CREDENTIAL_REVOKED`) or Unavailable (`CREDENTIAL_REFRESH_FAILED`).
        """
        key = login.credential_id, login.version
        kept = self._kept.get(key)
        if kept is not None and self._now() < kept.until:
            return kept.value
        made = await self._exchanged(login)
        self._kept[key] = made
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return made.value

    def forget(self, login: Login) -> None:
        """Forgets what the host has refused."""
        self._kept.pop((login.credential_id, login.version), None)

    async def _exchanged(self, login: Login) -> _Kept:
        token = await asyncio.to_thread(_signed, login, int(self._now()))
        url = f"{api_of(login.origin)}/app/installations/{login.installation_id}/access_tokens"
        try:
            status, body = await self._post(url, Secret(f"Bearer {token.reveal()}"))
        except NotAsked:
            raise _failed(login) from None
        if status in (401, 403, 404):
            _log.warning("a GitHub App is refused", credential_id=login.credential_id, status=status)
            raise Refused("CREDENTIAL_REVOKED", "the host refuses the GitHub App", server=login.origin.host)
        return _read(login, status, body)


def api_of(origin: Origin) -> str:
    """Returns where the API of a git host is: of github.com its own host, of a GitHub Enterprise Server a path."""
    if str(origin) == "https://github.com":
        return "https://api.github.com"
    if origin.host.endswith(".ghe.com"):
        return f"https://api.{origin.host}"
    return f"{origin}/api/v3"


def _signed(login: Login, now: int) -> Secret[str]:
    """Signs an app's word that it is itself (RS256). Raises Refused for a key that is none."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(login.private_key.reveal().encode(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise Refused("CREDENTIAL_REVOKED", "the GitHub App's private key is no RSA key", server=login.origin.host)
    claims = {"iat": now - CLOCK_SECONDS, "exp": now + TOKEN_SECONDS - CLOCK_SECONDS, "iss": login.app_id}
    said = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
    return Secret(f"{said}.{_base64(key.sign(said.encode(), PKCS1v15(), SHA256()))}")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _read(login: Login, status: int, body: Secret[bytes]) -> _Kept:
    try:
        said = json.loads(body.reveal())
        value, ends = said["token"], datetime.fromisoformat(said["expires_at"]).timestamp()
    except (ValueError, KeyError, TypeError):
        raise _failed(login) from None
    if status != 201 or not isinstance(value, str) or not value.isascii():
        raise _failed(login)
    return _Kept(Secret(value), ends - MARGIN_SECONDS)


def _failed(login: Login) -> Unavailable:
    host = login.origin.host
    return Unavailable("CREDENTIAL_REFRESH_FAILED", "the host gives the GitHub App no access now", server=host)

"""An issuer's public keys: from a file that is watched, or from an https address, fetched again when they get old or
when a token names one that is not known. Loaded only when there are issuers.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.kit.watched import UnreadableError, Watched

FRESH_SECONDS = 600.0  # after that they are fetched again, beside the calls
AGAIN_SECONDS = 10.0  # between two fetches, whatever tokens name
STALE_SECONDS = 24 * 60 * 60.0  # so old may they be while the issuer cannot be reached
FETCH_SECONDS = 5.0
MOST_BYTES = 1 << 20
RSA_BITS = 2048

_log = Log("services.session.issuer_keys")
Keys = Mapping[tuple[str, str], jwt.PyJWK]  # by key id and algorithm
Fetch = Callable[[], bytes]


class KeySource(Protocol):
    """Has an issuer's keys."""

    async def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Returns the key with which a token says that it was signed; without an id the only one of the algorithm.

        Raises Unavailable (`ISSUER_UNAVAILABLE`) when there are no keys at all.
        """


class FileKeys:
    """A `KeySource` in a file."""

    def __init__(self, file: Path) -> None:
        """Raises OSError, UnreadableError."""
        self._keys: Watched[Keys] = Watched([file], lambda: read(file.read_bytes()))

    async def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """See `KeySource.find`."""
        return _find(self._keys.get(), key_id, algorithm)


class FetchedKeys:
    """A `KeySource` at an address. `fetch` blocks, and raises OSError or http.client.HTTPException."""

    def __init__(self, fetch: Fetch, now: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._now = now
        self._keys: Keys = {}
        self._fetched = float("-inf")
        self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        """See `KeySource.find`."""
        found, age = _find(self._keys, key_id, algorithm), self._now() - self._fetched
        if found is None or age > FRESH_SECONDS:
            fetching = self._again()
            if fetching is not None and (found is None or age > STALE_SECONDS):
                await asyncio.shield(fetching)
        if self._now() - self._fetched > STALE_SECONDS:
            raise Unavailable("ISSUER_UNAVAILABLE", "the keys of the token's issuer cannot be had")
        return _find(self._keys, key_id, algorithm)

    def _again(self) -> asyncio.Task[None] | None:
        if self._fetching is None and self._now() - self._tried >= AGAIN_SECONDS:
            self._tried = self._now()
            self._fetching = asyncio.create_task(self._renew())
        return self._fetching

    async def _renew(self) -> None:
        try:
            self._keys = read(await asyncio.to_thread(self._fetch))
            self._fetched = self._now()
        except (OSError, http.client.HTTPException, UnreadableError) as problem:
            _log.warning("an issuer's keys were not fetched", problem=type(problem).__name__)
        finally:
            self._fetching = None


def fetcher(address: str, ca_file: Path | None) -> Fetch:
    """Returns what fetches an https address: no redirects, 1 MiB at most, 5 seconds for each step."""
    parts = urlsplit(address)
    where = parts.path + (f"?{parts.query}" if parts.query else "")

    def fetch() -> bytes:
        context = ssl.create_default_context(cafile=ca_file)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=FETCH_SECONDS, context=context)
        try:
            connection.request("GET", where or "/", headers={"accept": "application/json"})
            answer = connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
            if answer.status != 200 or len(content) > MOST_BYTES:
                raise UnreadableError("the address does not answer with keys")
            return content
        finally:
            connection.close()

    return fetch


def read(content: bytes) -> Keys:
    """Reads a JSON Web Key Set. What cannot be used to check a signature is left out. Raises UnreadableError."""
    try:
        rows = json.loads(content)["keys"]
        found = [key for row in rows if (key := _key(row)) is not None]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnreadableError('expected a JSON Web Key Set: {"keys": [...]}') from None
    return {(str(key.key_id or ""), key.algorithm_name): key for key in found}


def _key(row: Mapping[str, Any]) -> jwt.PyJWK | None:
    """Makes a key that says itself for which algorithm it is; a token cannot choose another one."""
    match row.get("kty"), row.get("crv"):
        case "RSA", None:
            algorithm = "RS256"
        case "EC", "P-256":
            algorithm = "ES256"
        case "OKP", "Ed25519":
            algorithm = "EdDSA"
        case _:
            return None
    if row.get("use", "sig") != "sig" or row.get("alg", algorithm) != algorithm or "d" in row:
        return None
    if "verify" not in row.get("key_ops", ("verify",)):
        return None
    try:
        key = jwt.PyJWK(dict(row), algorithm)
    except jwt.PyJWTError:
        return None
    return None if isinstance(key.key, RSAPublicKey) and key.key.key_size < RSA_BITS else key


def _find(keys: Keys, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
    if key_id is not None:
        return keys.get((key_id, algorithm))
    fit = [key for (_, its), key in keys.items() if its == algorithm]
    return fit[0] if len(fit) == 1 else None

"""Tokens (JWT) of issuers that the operator trusts, as clients' credentials. Loaded only when there are issuers.

The signature is PyJWT's to check. What is decided here: which issuer, which of its keys, and what the claims give.
Whatever is wrong with a token, the answer is the same.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt

from services.kit.access import Scope
from services.kit.identity import Caller, unknown
from services.kit.logs import Log
from services.kit.watched import Watched
from services.session import issuers
from services.session.api_keys import TENANT
from services.session.issuer_keys import FetchedKeys, FileKeys, KeySource, fetcher
from services.session.issuers import Issuer

NAME_CHARACTERS = 128
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_CLAIMS = ["exp", "iss", "aud", "sub"]  # that a token must have

_log = Log("services.session.tokens")
Trusted = tuple[tuple[Issuer, KeySource], ...]


class _BadTokenError(Exception):
    """Says, for the log alone, what is wrong with a token."""


class Tokens:
    """Knows tokens (see `services.session.credentials.Tokens`). `now` is Unix time in seconds."""

    def __init__(self, file: Path, now: Callable[[], float] = time.time) -> None:
        """Reads the operator's file, and watches it. Raises OSError, UnreadableError."""
        self._trusted: Watched[Trusted] = Watched([file], lambda: tuple((it, _keys(it)) for it in issuers.read(file)))
        self._now = now

    def is_token(self, credential: str) -> bool:
        """Says whether it has the form of a token."""
        return _TOKEN.fullmatch(credential) is not None

    async def check(self, token: str) -> Caller:
        """Says who shows it. Raises Unauthenticated (`IDENTITY_UNKNOWN`), Unavailable (`ISSUER_UNAVAILABLE`)."""
        try:
            header, claims = _looked_into(token)
            for issuer, keys in self._trusted.get():
                if issuer.name == claims.get("iss") and _is_for(issuer, claims):
                    return self._caller(issuer, await _verified(token, header, issuer, keys))
            raise _BadTokenError("no such issuer and audience")
        except (jwt.PyJWTError, _BadTokenError) as problem:
            _log.info("token refused", problem=type(problem).__name__, why=_why(problem))
        except (ValueError, TypeError, OverflowError, RecursionError) as problem:  # of what is in odd tokens
            _log.info("token refused", problem=type(problem).__name__)
        raise unknown()

    def _caller(self, issuer: Issuer, claims: Mapping[str, Any]) -> Caller:
        expires = float(claims["exp"])
        if expires > self._now() + issuer.max_seconds + issuer.leeway_seconds:
            raise _BadTokenError("it lives too long")
        tenant = issuer.tenant or claims.get(issuer.tenant_claim)
        if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
            raise _BadTokenError("no tenant")
        if issuer.tenants and tenant not in issuer.tenants:
            raise _BadTokenError("not a tenant of this issuer")
        name = claims.get(issuer.name_claim)
        if not isinstance(name, str) or not name.isprintable():
            raise _BadTokenError("no name")
        subject = hashlib.sha256("\0".join((issuer.name, claims["sub"], tenant)).encode()).hexdigest()
        return Caller(
            "client",
            tenant,
            name[:NAME_CHARACTERS],
            id=f"jwt:{subject[:32]}",
            scope=_scope(issuer, claims.get(issuer.scope_claim)),
            expires=expires + issuer.leeway_seconds,
        )


def _keys(issuer: Issuer) -> KeySource:
    if isinstance(issuer.jwks, Path):
        return FileKeys(issuer.jwks)
    return FetchedKeys(fetcher(issuer.jwks, issuer.ca_file))


def _looked_into(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns what a token says of itself, none of which counts yet."""
    whole = jwt.decode_complete(token, options={"verify_signature": False})
    header: Mapping[str, Any] = whole["header"]
    if "crit" in header or "b64" in header:
        raise _BadTokenError("it needs an extension")
    return header, whole["payload"]


def _is_for(issuer: Issuer, claims: Mapping[str, Any]) -> bool:
    said = claims.get("aud")
    return any(each in issuer.audiences for each in (said if isinstance(said, list) else [said]))


async def _verified(token: str, header: Mapping[str, Any], issuer: Issuer, keys: KeySource) -> Mapping[str, Any]:
    """Returns the claims of a token that is good. `alg` only chooses among the issuer's keys that are for it."""
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in issuer.algorithms or not isinstance(key_id, str | None):
        raise _BadTokenError("not by an algorithm of this issuer")
    key = await keys.find(key_id, algorithm)
    if key is None:
        raise _BadTokenError("by no key of this issuer")
    claims: Mapping[str, Any] = jwt.decode(
        token,
        key,
        algorithms=[algorithm],
        audience=issuer.audiences,
        issuer=issuer.name,
        leeway=issuer.leeway_seconds,
        options={"require": _CLAIMS},
    )
    return claims


def _scope(issuer: Issuer, said: Any) -> Scope:
    words = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    found = [issuer.scopes[word] for word in words if isinstance(word, str) and word in issuer.scopes]
    if not found:
        raise _BadTokenError("no scope")
    return max(found)


def _why(problem: Exception) -> str:
    """Returns what is wrong, if it says nothing of the token."""
    return str(problem) if isinstance(problem, _BadTokenError) else ""

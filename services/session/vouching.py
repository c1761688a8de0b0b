"""The session service's word to the vault: which session's secrets whoever shows it may read, and for how long.

A JSON Web Token, signed with Ed25519 (RFC 8037), good for a minute:

    iss, aud        ISSUER, AUDIENCE
    sub             <tenant>.<hash of the vaults>: the vault keeps what a policy may ask of by this name, so it must say
                    the same each time that it is used. Two sessions with the same vaults have the same name
    tenant, vault_0, vault_1, ...   what the vault's one policy is filled with
    session, epoch  for the vault's audit log
    jti             new in each: vault_proxy asks for one, uses it once, and keeps it nowhere
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from services.kit import ids
from services.session.grants import Granted

ISSUER = "handmesh-session"
AUDIENCE = "handmesh-vault"
SECONDS = 60
_HEADER: Mapping[str, object] = {"alg": "EdDSA", "typ": "JWT"}


class KeyRefused(ValueError):
    """A file that holds no Ed25519 key. The text says why, and nothing of the file."""


class Voucher:
    """Signs. `now` is in nanoseconds."""

    def __init__(self, key: Ed25519PrivateKey, now: Callable[[], int]) -> None:
        self._key = key
        self._now = now

    @classmethod
    def of_file(cls, file: Path, now: Callable[[], int]) -> Voucher:
        """Reads the key, PEM without a password. Raises KeyRefused."""
        try:
            key = load_pem_private_key(file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as problem:
            raise KeyRefused(f"cannot be read as a PEM private key ({type(problem).__name__})") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyRefused("is a private key, but not of Ed25519")
        return cls(key, now)

    def sign(self, granted: Granted) -> str:
        """Returns a token for a session: new each time."""
        now = self._now() // 1_000_000_000
        # They were checked when the session was made; what is no id would mean something else in a policy.
        vaults = [vault_id for vault_id in granted.config.vault_ids if ids.MINTED.fullmatch(vault_id)]
        name = hashlib.sha256(",".join(vaults).encode()).hexdigest()[:32]
        claims: dict[str, object] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": f"{granted.tenant}.{name}",
            "iat": now,
            "nbf": now,
            "exp": now + SECONDS,
            "jti": secrets.token_hex(16),
            "session": granted.session_id,
            "epoch": str(granted.epoch),
            "tenant": granted.tenant,
            **{f"vault_{at}": vault_id for at, vault_id in enumerate(vaults)},
        }
        signed = f"{_text(_HEADER)}.{_text(claims)}"
        return f"{signed}.{_base64(self._key.sign(signed.encode()))}"


def _text(part: Mapping[str, object]) -> str:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Seals what is pending with its state, which is not kept: nobody opens it who only reads the store, not even we.

So this service needs no standing right to read a secret here either. What is sealed is bound to its place, and who may
write the store cannot change it: it says where a code is sent to.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.vault_proxy.secret import Secret

_PURPOSE = b"handmesh: an account that is being connected"
_NONCE_BYTES = 12


def seal(state: str, place: str, fields: Secret[Mapping[str, str]]) -> str:
    """Returns the fields as text that only who has the state can read, at that place."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed = AESGCM(_key(state)).encrypt(nonce, json.dumps(fields.reveal()).encode(), place.encode())
    return base64.b64encode(nonce + sealed).decode()


def unseal(state: str, place: str, text: str) -> Secret[Mapping[str, str]] | None:
    """Returns what was sealed, or None when it is not what this state sealed for this place."""
    try:
        sealed = base64.b64decode(text, validate=True)
        plain = AESGCM(_key(state)).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
    except (ValueError, InvalidTag):
        return None
    fields: dict[str, str] = json.loads(plain)
    return Secret(fields)


def _key(state: str) -> bytes:
    """Returns a key: 256 bits that the state's SHA-256, which is the name of its place, tells nothing of."""
    return hmac.digest(state.encode(), _PURPOSE, hashlib.sha256)

"""Signs thinking, so that a client which changes it is found out.

A signature is a nonce and an HMAC over the nonce and the text that was sent. The key is no secret: it only has to be
the same in every process, so that a restarted server knows the signatures of the one before it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

KEY = b"handmesh scripted model"
NONCE_BYTES = 16


def sign(thinking: str, nonce: bytes) -> str:
    """Returns the signature of a thinking text; `nonce` is 16 bytes that differ from block to block."""
    return base64.b64encode(nonce + _mac(thinking, nonce)).decode()


def verify(thinking: str, signature: str) -> bool:
    """Returns whether this server, or one like it, signed exactly this text."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    nonce, mac = raw[:NONCE_BYTES], raw[NONCE_BYTES:]
    return hmac.compare_digest(mac, _mac(thinking, nonce))


def _mac(thinking: str, nonce: bytes) -> bytes:
    return hmac.digest(KEY, nonce + thinking.encode(), hashlib.sha256)

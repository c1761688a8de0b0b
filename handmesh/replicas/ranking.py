"""Which replica is first for what a call is about: the same at every caller that was told the same addresses.

Rendezvous hashing: each replica is weighed together with the pin, the heaviest is first. When a replica goes, only what
was pinned to it moves; when it comes back, that comes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

PIN_KEY = "x-handmesh-pin"  # metadata by which a caller says what a call is about when its request does not
GRANT_KEY = "x-handmesh-grant"
SIGN_LENGTH = 6  # characters of an id that name a node: 30 bits
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # that of ids


def ranked(pin: str, names: Sequence[str]) -> list[int]:
    """Returns the indices of `names`, first the one where `pin` belongs."""
    weights = [hashlib.blake2b(f"{pin}\0{name}".encode(), digest_size=8).digest() for name in names]
    return sorted(range(len(names)), key=weights.__getitem__, reverse=True)


def sign(node: str) -> str:
    """Returns the characters with which the ids of a node's sandboxes end. A node is called as callers address it."""
    number = int.from_bytes(hashlib.sha256(node.encode()).digest()[:5], "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(5 * (SIGN_LENGTH - 1), -1, -5))


def signed(sandbox_id: str, node: str) -> str:
    """Returns an id that was minted just now, as one that names the node that owns it."""
    return sandbox_id[:-SIGN_LENGTH] + sign(node)


def pin_of(request: Any, metadata: Any = None) -> tuple[str, str]:
    """Returns (sandbox, pin) of a call: the sandbox that its request names, whose owner is asked first if it is known;
    else what it is about: what the caller says (`PIN_KEY`), its session, or the grant that it shows.
    """
    shown = dict(metadata or ())
    sandbox_id = getattr(request, "sandbox_id", "")
    pin = shown.get(PIN_KEY) or getattr(request, "session_id", "") or sandbox_id or shown.get(GRANT_KEY) or ""
    return sandbox_id, pin if isinstance(pin, str) else ""

"""Ids: their two forms, and how the server mints its own.

A minted id is `<prefix>_<26 characters>`: 48 bits of milliseconds and 80 random bits in lower-case base 32, so that
ids sort by age and survive stores that fold case. A chosen id (of an event, a request, an execution) is the caller's.
"""

from __future__ import annotations

import os
import re
import time

from services.kit.errors import Invalid

MINTED = re.compile(r"[a-z]{2,8}_[a-z0-9]{26}")
CHOSEN = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")

MINTED_FIELDS = frozenset(
    {"session_id", "sandbox_id", "claim_id", "blob_id", "memory_store_id", "vault_id", "credential_id", "checkpoint_id"}
    | {
        "hand_token_id",
        "api_key_id",
        "to_session_id",
        "child_session_id",
        "from_session_id",
        "parent_session_id",
        "working_session_id",
    }
)
CHOSEN_FIELDS = frozenset({"event_id", "request_id", "execution_id", "tool_use_id", "anchor_event_id"})

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def spell(prefix: str, milliseconds: int, noise: bytes) -> str:
    """Spells an id from its parts: a prefix, Unix time in milliseconds and 10 random bytes."""
    number = (milliseconds << 80) | int.from_bytes(noise, "big")
    return prefix + "_" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def mint(prefix: str) -> str:
    """Mints a new id under a prefix such as `sess`."""
    return spell(prefix, time.time_ns() // 1_000_000, os.urandom(10))


def age_seconds(minted: str) -> float:
    """Says how long ago an id was minted, by this machine's clock."""
    milliseconds = 0
    for digit in minted.rpartition("_")[2][:10]:
        milliseconds = milliseconds << 5 | _ALPHABET.index(digit)
    return time.time() - milliseconds / 1_000


def check(field: str, value: str) -> None:
    """Raises Invalid (`ID_INVALID`) unless the value has the form that the field's ids have."""
    form = MINTED if field in MINTED_FIELDS else CHOSEN
    if not form.fullmatch(value):
        shown = value if len(value) <= 40 else value[:40] + "..."
        raise Invalid("ID_INVALID", f"{field} must match ^{form.pattern}$, not {shown!r}", field=field)

"""Placeholders: what stands for a credential in a sandbox, and where on the way out it is replaced.

Replaced is the placeholder as a whole, in the value of a header that may carry a credential, in the user or password of
Basic, and in a body of text, JSON or a form, there written as the format wants it. Never in a path or query, which
servers log; never in a header that says what is asked for, where it comes from or how long it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

from services.vault_proxy.secret import Secret

PREFIX = "hm_placeholder_"
CHARACTERS = 26

_PLACEHOLDER = re.compile(PREFIX.encode() + rb"[a-z2-7]{%d}" % CHARACTERS)
_BASIC = re.compile(rb"([Bb]asic) +([A-Za-z0-9+/]+={0,2})")
_NO_CREDENTIALS = frozenset(
    {b"host", b"connection", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect", b"date", b"via", b"range"}
    | {b"destination", b"x-original-url", b"x-rewrite-url", b"x-http-method-override"}
    | {b"user-agent", b"referer", b"origin", b"forwarded", b"from", b"cache-control", b"pragma", b"max-forwards"}
)
_BINARY = frozenset(
    b"application/" + name
    for name in (b"octet-stream", b"zip", b"gzip", b"x-gzip", b"x-tar", b"zstd", b"x-xz", b"pdf", b"wasm")
)
_NO_CREDENTIALS_PREFIXES = (b"accept", b"content-", b"if-", b"x-forwarded-", b"access-control-", b"sec-", b"proxy-")


def placeholder_of(session_id: str, credential_id: str) -> str:
    """Returns what stands for a credential in a session: always the same, on every replica; says nothing of it."""
    digest = hashlib.sha256(f"{session_id}\n{credential_id}".encode()).digest()
    return PREFIX + base64.b32encode(digest).decode().lower()[:CHARACTERS]


@dataclass(frozen=True)
class Swap:
    """A credential that is put in the place of its placeholder, in headers, in bodies, or in both."""

    credential_id: str
    vault_id: str
    placeholder: str
    value: Secret[str]
    in_headers: bool
    in_bodies: bool


@dataclass
class Swapping:
    """Replaces placeholders in one request. `used` collects what was put in."""

    swaps: Iterable[Swap]
    used: dict[str, Swap] = field(default_factory=dict)

    def header(self, name: bytes, value: bytes) -> bytes:
        """Returns the value of a header for the server."""
        name = name.lower()
        if name in _NO_CREDENTIALS or name.startswith(_NO_CREDENTIALS_PREFIXES):
            return value
        here = {swap.placeholder.encode(): swap for swap in self.swaps if swap.in_headers}
        basic = _BASIC.fullmatch(value) if name == b"authorization" else None
        if basic is None:
            return self._replaced(value, here, str)
        try:
            plain = base64.b64decode(basic.group(2), validate=True)
        except (binascii.Error, ValueError):
            return value
        put = self._replaced(plain, here, str)
        return value if put is plain else basic.group(1) + b" " + base64.b64encode(put)

    def wants_body(self, content_type: bytes, packed: bool) -> bool:
        """Says whether a body may hold something to replace, and must be read whole for it."""
        return not packed and writer_of(content_type) is not None and any(swap.in_bodies for swap in self.swaps)

    def body(self, content_type: bytes, body: bytes) -> bytes:
        """Returns a whole body for the server."""
        writer = writer_of(content_type)
        here = {swap.placeholder.encode(): swap for swap in self.swaps if swap.in_bodies}
        return body if writer is None else self._replaced(body, here, writer)

    def _replaced(self, data: bytes, here: dict[bytes, Swap], write: Callable[[str], str]) -> bytes:
        def put(match: re.Match[bytes]) -> bytes:
            swap = here.get(match.group())
            if swap is None:
                return match.group()
            self.used[swap.credential_id] = swap
            return write(swap.value.reveal()).encode()

        return _PLACEHOLDER.sub(put, data) if PREFIX.encode() in data else data


def is_binary(content_type: bytes) -> bool:
    """Says whether an answer of a type is not searched for credentials: what is there by chance must stay."""
    kind = content_type.partition(b";")[0].strip().lower()
    return kind.startswith((b"image/", b"audio/", b"video/", b"font/")) or kind in _BINARY


def writer_of(content_type: bytes) -> Callable[[str], str] | None:
    """Returns how a value is written inside a body of a type; None for a type in which nothing is replaced."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == b"application/x-www-form-urlencoded":
        return quote_plus
    if kind in (b"application/json", b"application/x-ndjson") or kind.endswith(b"+json"):
        return lambda value: json.dumps(value)[1:-1]
    if kind in (b"application/xml", b"text/xml", b"text/html") or kind.endswith(b"+xml"):
        return lambda value: escape(value, {'"': "&quot;", "'": "&apos;"})
    return str if kind.startswith(b"text/") else None

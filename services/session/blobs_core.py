"""What a session's blobs are: values in, values out.

All of a session's blobs are one small text, its catalog. So a blob is there from one compare-and-set on, whole or not
at all, and the quota is counted in the same step.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from services.kit.errors import Full, Invalid

MAX_CHUNK_BYTES = 1024 * 1024  # of one message of an upload
MAX_BLOBS = 4_096  # in one session: its catalog is read as a whole
QUOTA_BYTES = 1024 * 1024 * 1024
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_MEDIA_TYPE = 100  # characters
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]*/[a-z0-9][a-z0-9.+-]*(; ?[a-z0-9.+-]+=[A-Za-z0-9.+_-]+)*")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True)
class Limits:
    """What one session may keep."""

    quota_bytes: int = QUOTA_BYTES
    max_blob_bytes: int = MAX_BLOB_BYTES


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Blob:
    """A blob and the object that holds its bytes."""

    blob_id: str
    sha256: str
    size: int
    media_type: str
    object_id: str


Catalog = Mapping[str, Blob]


def id_of(sha256: str, media_type: str) -> str:
    """Names a blob after its content: the same in every session, so that a copy of a log finds it under its name."""
    number = int.from_bytes(hashlib.sha256(f"{media_type}\0{sha256}".encode()).digest()[:17], "big") >> 6
    return "blob_" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def parse(text: bytes) -> dict[str, Blob]:
    """Reads a catalog."""
    return {blob_id: Blob(blob_id, *fields) for blob_id, fields in json.loads(text).items()}


def spell(catalog: Catalog) -> bytes:
    """Writes a catalog."""
    rows = {each.blob_id: [each.sha256, each.size, each.media_type, each.object_id] for each in catalog.values()}
    return json.dumps(rows, separators=(",", ":")).encode()


def used(catalog: Catalog) -> int:
    """Counts the bytes of all blobs."""
    return sum(blob.size for blob in catalog.values())


def check_room(catalog: Catalog, size: int, limits: Limits) -> None:
    """Raises Full (`BLOB_QUOTA`) unless one more blob of so many bytes fits."""
    if size > limits.max_blob_bytes:
        most = limits.max_blob_bytes
        raise Full("BLOB_QUOTA", f"a blob has at most {most} bytes", limit_bytes=most)
    if used(catalog) + size > limits.quota_bytes:
        most = limits.quota_bytes
        raise Full("BLOB_QUOTA", f"the blobs of a session have at most {most} bytes", limit_bytes=most)
    if len(catalog) >= MAX_BLOBS:
        raise Full("BLOB_QUOTA", f"a session has at most {MAX_BLOBS} blobs", limit_bytes=limits.quota_bytes)


def check_growth(catalog: Catalog, media_type: str, size: int, limits: Limits) -> None:
    """Raises Full unless an upload that has so many bytes by now may become a blob: a new one, or one that is there.

    Without the second an upload that is made again, for its answer was lost, would be refused by its own first try.
    """
    if any(size <= blob.size for blob in catalog.values() if blob.media_type == media_type):
        return
    check_room(catalog, size, limits)


def check_media_type(media_type: str) -> None:
    """Raises Invalid for what is no media type, such as `image/png`."""
    if len(media_type) > MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
        raise Invalid("ARGUMENT_INVALID", "media_type must be one, such as image/png", field="media_type")


def check_range(offset: int, length: int) -> None:
    """Raises Invalid for a range that cannot be."""
    if offset < 0:
        raise Invalid("ARGUMENT_INVALID", f"offset is negative: {offset}", field="offset")
    if length < 0:
        raise Invalid("ARGUMENT_INVALID", f"length is negative: {length}", field="length")

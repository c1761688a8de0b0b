"""What a memory store is: paths, versions and what a writer may expect. Values in, values out."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from dataclasses import asdict, dataclass

from services.kit.errors import Conflict, Full, Gone, Invalid

MAX_CONTENT_BYTES = 1024 * 1024
MAX_NAME = 256  # characters
MAX_PATH_BYTES = 512
MAX_FILES = 10_000  # in one store, those that were deleted included: a list of them is one answer
MAX_VERSIONS = 10_000  # of one file, for the same reason
MAX_STORES = 10_000  # of one tenant, with content
QUOTA_BYTES = 10 * 1024 * 1024 * 1024  # of all versions in all stores of one tenant
VERSION_BYTES = 1_024  # that a version counts beside its content
DEFAULT_PAGE = 100  # also the most
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class MemoryStore:
    """A store. Times are in nanoseconds since 1970."""

    memory_store_id: str
    tenant: str
    name: str
    create_time: int
    deleted: bool = False


@dataclass(frozen=True)
class Version:
    """One version of a file. No `sha256` means that this version is its deletion."""

    path: str
    version: int
    sha256: str
    size: int
    write_time: int
    session_id: str
    object_id: str
    request_id: str = ""


def spell(value: MemoryStore | Version) -> bytes:
    """Writes a value as it is stored."""
    return json.dumps(asdict(value), separators=(",", ":")).encode()


def parse_store(text: bytes) -> MemoryStore:
    """Reads a store."""
    return MemoryStore(**json.loads(text))


def parse_version(text: bytes) -> Version:
    """Reads a version."""
    return Version(**json.loads(text))


def check_path(path: str) -> None:
    """Raises Invalid unless a path names a file in a store, in the one way that it can be written."""
    why = ""
    if not path or len(path.encode()) > MAX_PATH_BYTES:
        why = f"has 1 to {MAX_PATH_BYTES} bytes"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        why = "is relative, without empty parts, `.` or `..`"
    elif "\\" in path or any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in path):
        why = "has no backslash and no control characters"
    elif unicodedata.normalize("NFC", path) != path:
        why = "is in Unicode's normal form C"
    if why:
        raise Invalid("ARGUMENT_INVALID", f"a path {why}", field="path")


def check_folder(path: str) -> str:
    """Returns a path that files may lie under, without a slash at its end; empty means everything."""
    if not path:
        return ""
    check_path(path.removesuffix("/"))
    return path.removesuffix("/")


def lies_under(path: str, folder: str) -> bool:
    """Says whether a file is the path itself or lies under it."""
    return not folder or path == folder or path.startswith(folder + "/")


def check_content(content: bytes) -> None:
    """Raises Invalid for a file over the limit."""
    if len(content) > MAX_CONTENT_BYTES:
        raise Invalid(
            "MEMORY_TOO_LARGE", f"a file has at most {MAX_CONTENT_BYTES} bytes", limit_bytes=MAX_CONTENT_BYTES
        )


def check_expectation(expected: str | None, *, empty: bool) -> None:
    """Raises Invalid for what can be no file's SHA-256; an empty one is for writers only."""
    if expected is None or _SHA256.fullmatch(expected) or (empty and not expected):
        return
    raise Invalid("ARGUMENT_INVALID", "expected_sha256 has 64 lower-case hex digits", field="expected_sha256")


def check_expected(there: Version | None, expected: str | None) -> None:
    """Raises Conflict (`MEMORY_CONFLICT`) when a file's content is not what somebody expects."""
    sha256 = there.sha256 if there else ""
    if expected is not None and expected != sha256:
        now = sha256 or "nothing"
        raise Conflict("MEMORY_CONFLICT", f"the file's content is {now}", sha256=sha256)


def weight(size: int) -> int:
    """Says how many bytes a version with so much content counts against its tenant's quota."""
    return size + VERSION_BYTES


def check_versions(there: Version | None) -> None:
    """Raises Full for a file that has as many versions as it may have."""
    if there is not None and there.version >= MAX_VERSIONS:
        raise Full("FULL", f"a file has at most {MAX_VERSIONS} versions")


def missing(what: str) -> Gone:
    """Makes the error for what is not there, or not the caller's: a stranger cannot tell which."""
    return Gone("MEMORY_NOT_FOUND", f"no such {what}")


def tenant_key(tenant: str) -> str:
    """Makes a key of a tenant."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def path_key(path: str) -> str:
    """Makes a key of a path."""
    return hashlib.sha256(path.encode()).hexdigest()

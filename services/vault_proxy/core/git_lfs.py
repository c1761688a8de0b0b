"""Git LFS: what a batch asks for and what comes back, as values. Only the `basic` transfer is spoken.

A host answers where each object is, and what to send with it: often a credential for that one object. So what it says
is kept outside, and the sandbox is told of a place at its door instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MEDIA_TYPE = "application/vnd.git-lfs+json"
MOST_OBJECTS = 1_000  # of one batch; git-lfs asks for 100
MOST_HEADERS = 16
DOWNLOAD, UPLOAD, VERIFY = "download", "upload", "verify"
METHODS: Mapping[str, str] = {DOWNLOAD: "GET", UPLOAD: "PUT", VERIFY: "POST"}

_OBJECT = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"refs/[A-Za-z0-9._/@+=#,-]{1,250}")
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_VALUE = re.compile(r"[ -~]{0,8192}")


class BatchRefused(ValueError):
    """What is no batch. Its text says what is expected, and nothing of what came."""


@dataclass(frozen=True)
class Batch:
    """What a client asks for: to download or to upload objects, by their SHA-256, with their sizes in bytes."""

    operation: str
    objects: Mapping[str, int]
    reference: str = ""

    def encoded(self) -> bytes:
        """Returns the request for the host."""
        said: dict[str, Any] = {
            "operation": self.operation,
            "transfers": ["basic"],
            "objects": [{"oid": oid, "size": size} for oid, size in self.objects.items()],
            "hash_algo": "sha256",
        }
        return json.dumps(said | ({"ref": {"name": self.reference}} if self.reference else {})).encode()


@dataclass(frozen=True)
class Action:
    """Where one object is got from or put to, as the host says. `headers` may hold a credential for it."""

    name: str
    oid: str
    size: int
    href: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Entry:
    """What a host says of one object: what can be done, or a code why not."""

    oid: str
    size: int
    actions: tuple[Action, ...] = ()
    code: int = 0


def batch_of(data: bytes) -> Batch:
    """Reads a client's request. Raises BatchRefused."""
    said = _mapping(data)
    operation, objects, reference = said.get("operation"), said.get("objects"), said.get("ref")
    if operation not in (DOWNLOAD, UPLOAD) or not isinstance(objects, list) or not 0 < len(objects) <= MOST_OBJECTS:
        raise BatchRefused(f"expected a download or an upload of 1 to {MOST_OBJECTS} objects")
    if said.get("hash_algo", "sha256") != "sha256":
        raise BatchRefused("objects are named by SHA-256")
    found = {oid: size for oid, size, _ in map(_object, objects)}
    name = reference.get("name", "") if isinstance(reference, dict) else ""
    return Batch(operation, found, name if isinstance(name, str) and _REFERENCE.fullmatch(name) else "")


def entries_of(data: bytes, batch: Batch) -> Iterator[Entry]:
    """Reads a host's answer to a batch: of what was asked for, and nothing else. Raises BatchRefused."""
    said = _mapping(data)
    objects = said.get("objects")
    if said.get("transfer", "basic") != "basic" or not isinstance(objects, list):
        raise BatchRefused("expected the objects, for the basic transfer")
    for each in objects[:MOST_OBJECTS]:
        oid, size, rest = _object(each)
        if oid not in batch.objects:
            continue
        error, actions = rest.get("error"), rest.get("actions")
        if isinstance(error, dict):
            code = error.get("code")
            yield Entry(oid, size, code=code if isinstance(code, int) and 400 <= code < 600 else 500)
            continue
        wanted = (DOWNLOAD,) if batch.operation == DOWNLOAD else (UPLOAD, VERIFY)
        found = actions if isinstance(actions, dict) else {}
        yield Entry(oid, size, tuple(_action(name, oid, size, found[name]) for name in wanted if name in found))


def answer(entries: Iterator[tuple[Entry, Mapping[str, str]]], seconds: int) -> bytes:
    """Makes the client's answer, with the places at its door for each entry's actions."""
    said = [_told(entry, places, seconds) for entry, places in entries]
    return json.dumps({"transfer": "basic", "objects": said, "hash_algo": "sha256"}).encode()


def _told(entry: Entry, places: Mapping[str, str], seconds: int) -> dict[str, Any]:
    told: dict[str, Any] = {"oid": entry.oid, "size": entry.size}
    if entry.code:
        return told | {"error": {"code": entry.code, "message": "the host does not give or take this object"}}
    actions = {name: {"href": place, "expires_in": seconds} for name, place in places.items()}
    return told | {"authenticated": True} | ({"actions": actions} if actions else {})


def _mapping(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise BatchRefused("expected JSON") from None
    if not isinstance(said, dict):
        raise BatchRefused("expected a JSON object")
    return said


def _object(said: Any) -> tuple[str, int, dict[str, Any]]:
    oid, size = (said.get("oid"), said.get("size")) if isinstance(said, dict) else (None, None)
    if not isinstance(oid, str) or not _OBJECT.fullmatch(oid) or type(size) is not int or not 0 <= size < 1 << 50:
        raise BatchRefused("expected objects, each with its SHA-256 and its size")
    return oid, size, said


def _action(name: str, oid: str, size: int, said: Any) -> Action:
    href, header = (said.get("href"), said.get("header", {})) if isinstance(said, dict) else (None, {})
    if not isinstance(href, str) or not isinstance(header, dict) or len(header) > MOST_HEADERS:
        raise BatchRefused("expected where an object is")
    pairs = [(key, value) for key, value in header.items() if isinstance(value, str)]
    if len(pairs) != len(header) or not all(_NAME.fullmatch(key) and _VALUE.fullmatch(value) for key, value in pairs):
        raise BatchRefused("expected headers")
    return Action(name, oid, size, href, tuple(pairs))

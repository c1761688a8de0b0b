"""Who calls: a service of the mesh by its certificate, a client by its API key, a hand that dials out by its token."""

from __future__ import annotations

import contextvars
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.kit.access import ACCESS, MESH
from services.kit.errors import Denied, Unauthenticated

URI_PREFIX = b"spiffe://handmesh/"
TENANT_KEY = "x-handmesh-tenant"  # metadata by which a service says whose affairs it minds: it then reaches no others
SESSION_KEY = "x-handmesh-session"  # likewise: the session that it acts for
FORWARDED_KEY = "x-handmesh-forwarded"  # metadata by which a replica says what kind of caller's call it hands on
HAND_PREFIX = "hand_"  # of the tokens of hands that dial out


@dataclass(frozen=True)
class Caller:
    """Who calls: `kind` is a service's name, `client`, `hand` or `anyone`.

    `tenant` is set for clients, and for a service that says whom it acts for, and for which session. A hand is whoever
    shows what looks like a hand's token, and its name a hash of that: who serves hands asks whether it is one.
    """

    kind: str
    tenant: str | None = None
    name: str = ""
    session_id: str = ""


_current: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller")


def current() -> Caller:
    """Returns who made the call that is being served."""
    return _current.get()


def enter(caller: Caller) -> None:
    """Remembers the caller for the rest of this task."""
    _current.set(caller)


def known_keys(file: Path | None) -> dict[str, Caller]:
    """Reads the file of API keys: SHA-256 in hex -> the client that shows the key."""
    if file is None:
        return {}
    return {row["sha256"]: Caller("client", row["tenant"], row["name"]) for row in json.loads(file.read_text())}


def speaking(names: Iterable[bytes], forwarded: str | None, service: str) -> Iterable[bytes]:
    """Returns the names to go by. A replica of `service` itself may hand on a harness's call, which shows its grant, or
    a client's or a hand's: they are whoever the key or token says that came with it. Nobody else is listened to.
    """
    names = tuple(names)
    if forwarded is None or not service or URI_PREFIX + service.encode() not in names:
        return names
    return (URI_PREFIX + b"harness",) if forwarded == "harness" else ()


def identify(names: Iterable[bytes], authorization: str | None, keys: Mapping[str, Caller]) -> Caller:
    """Tells the caller from its certificate's alternative names, else from its `authorization` metadata.

    Raises Unauthenticated (`IDENTITY_UNKNOWN`) for a key that is not known.
    """
    for name in names:
        if name.startswith(URI_PREFIX):
            return Caller(name[len(URI_PREFIX) :].decode("ascii", "replace"))
    if authorization is None:
        return Caller("anyone")
    scheme, _, key = authorization.partition(" ")
    digest = hashlib.sha256(key.strip().encode()).hexdigest()
    if scheme.lower() == "bearer" and key.strip().startswith(HAND_PREFIX):
        return Caller("hand", name=digest)
    caller = keys.get(digest) if scheme.lower() == "bearer" else None
    if caller is None:
        raise Unauthenticated("IDENTITY_UNKNOWN", "the API key is not known to this mesh")
    return caller


def acting(caller: Caller, tenant: str | None, session_id: str | None) -> Caller:
    """Narrows a service to those that it says it acts for. What others say of themselves is not listened to."""
    if caller.kind not in MESH or tenant is None:
        return caller
    return Caller(caller.kind, tenant, caller.name, session_id or "")


def authorize(caller: Caller, method: str) -> None:
    """Raises Unauthenticated or Denied unless the table lets the caller call the method."""
    allowed = ACCESS.get(method, frozenset())
    if caller.kind in allowed or "anyone" in allowed:
        return
    if caller.kind == "anyone":
        raise Unauthenticated("IDENTITY_UNKNOWN", "send `authorization: Bearer <API key>` (see `handmesh key`)")
    raise Denied("METHOD_DENIED", f"a {caller.kind} may not call {method}", identity=caller.kind)

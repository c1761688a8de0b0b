"""Who calls: a service of the mesh by its certificate, a client by its credential, a hand that dials out by its token.

A credential is what a client shows after `Bearer`: an API key, or a token of an issuer that the mesh trusts. Whose it
is, `callers` tells.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from services.kit.access import ACCESS, ANYONE, CLIENT, MESH, Scope
from services.kit.errors import Denied, Unauthenticated
from services.kit.watched import UnreadableError, Watched

TENANT_KEY = "x-handmesh-tenant"  # metadata by which a service says whose affairs it minds: it then reaches no others
SESSION_KEY = "x-handmesh-session"  # likewise: the session that it acts for
FORWARDED_KEY = "x-handmesh-forwarded"  # metadata by which a replica says what kind of caller's call it hands on
HAND_PREFIX = "hand_"  # of the tokens of hands that dial out
BUILT_IN = {f"spiffe://handmesh/{service}": service for service in sorted(MESH)}


@dataclass(frozen=True)
class CallerLimits:
    """What one client may have of a service process, see `session.v1.CallerLimits`. 0 is what its settings say."""

    calls_per_second: int = 0
    burst: int = 0
    calls: int = 0
    streams: int = 0


@dataclass(frozen=True)
class Caller:
    """Who calls: `kind` is a service's name, `client`, `hand` or `anyone`.

    `tenant` is set for clients, and for a service that says whom it acts for, and for which session. A hand is whoever
    shows what looks like a hand's token, and its id a hash of that: who serves hands asks whether it is one.
    The rest is a client's: its credential's id and name, what it may do and have, until when (Unix time in seconds, 0
    is for ever), and when that was asked (monotonic). `handed_on` says that the call came through another replica,
    which has counted it.
    """

    kind: str
    tenant: str | None = None
    name: str = ""
    session_id: str = ""
    id: str = ""
    scope: Scope = Scope.READ
    limits: CallerLimits = field(default=CallerLimits())
    expires: float = 0.0
    asked: float = field(default=0.0, compare=False)
    handed_on: bool = field(default=False, compare=False)


_current: contextvars.ContextVar[Caller] = contextvars.ContextVar("caller")


def current() -> Caller:
    """Returns who made the call that is being served."""
    return _current.get()


def enter(caller: Caller) -> None:
    """Remembers the caller for the rest of this task."""
    _current.set(caller)


class Peers:
    """Which names in certificates stand for which service: SPIFFE ids and other URIs, and DNS names, as they are."""

    def __init__(self, names: Watched[Mapping[str, str]] | Mapping[str, str] = BUILT_IN) -> None:
        self._names = names

    @classmethod
    def of_file(cls, file: Path | None) -> Peers:
        """Reads a file of `{name: service}`, instead of the names that `handmesh up` gives, and watches it."""
        return cls() if file is None else cls(Watched([file], lambda: _names(file)))

    def service_of(self, names: Iterable[str]) -> str:
        """Returns the one service that these names of a certificate stand for.

        Raises Unauthenticated (`IDENTITY_UNKNOWN`) when they stand for none, or for several.
        """
        known = self._names.get() if isinstance(self._names, Watched) else self._names
        found = {known[name] for name in names if name in known}
        if len(found) != 1:
            raise Unauthenticated("IDENTITY_UNKNOWN", "no name in the certificate stands for a service of this mesh")
        return found.pop()

    def is_service(self, service: str, certificate: Mapping[str, object] | None) -> bool:
        """Says whether a certificate is that service's, as `ssl` shows one that it has verified."""
        names = (certificate or {}).get("subjectAltName", ())
        try:
            shown = [name for kind, name in names if kind in ("URI", "DNS")] if isinstance(names, tuple) else []
            return self.service_of(shown) == service
        except Unauthenticated:
            return False


def _names(file: Path) -> Mapping[str, str]:
    try:
        said = json.loads(file.read_bytes())
    except ValueError:
        said = None
    if not isinstance(said, dict) or not said or not all(service in MESH for service in said.values()):
        raise UnreadableError("expected a JSON object {name in certificates: " + " | ".join(sorted(MESH)) + "}")
    return said


def certified(peers: Peers, shown: Mapping[str, Iterable[bytes]]) -> Caller | None:
    """Tells the service that shows a certificate, from what gRPC knows of the connection. None when none was shown.

    Raises Unauthenticated (`IDENTITY_UNKNOWN`) for one that is nobody's: then no credential counts either.
    """
    if "x509_pem_cert" not in shown:
        return None
    names = [name.decode("utf-8", "replace") for key in ("peer_uri", "peer_dns") for name in shown.get(key, ())]
    return _service(peers.service_of(names))


def speaking(service: Caller | None, forwarded: str | None) -> Caller | None:
    """Returns who speaks. A replica hands on a harness's call, which shows its grant where one is needed, or a client's
    or a hand's: they are whoever the credential says that came with it. Only a replica's word may be given here.
    """
    if service is None or forwarded is None:
        return service
    return Caller("harness") if forwarded == "harness" else None


@lru_cache(4_096)
def _service(kind: str, tenant: str | None = None, session_id: str = "") -> Caller:
    """Makes a service's caller: each call has one, and most are the same."""
    return Caller(kind, tenant, session_id=session_id)


def credential_of(authorization: str) -> str:
    """Returns the credential in `authorization` metadata. Raises Unauthenticated (`IDENTITY_UNKNOWN`)."""
    scheme, _, credential = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise unknown()
    return credential.strip()


def hand(token: str) -> Caller:
    """Returns the hand that shows what looks like its token."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return Caller("hand", name=digest, id=digest)


def unknown() -> Unauthenticated:
    """Returns the one error for every credential that is nobody's, for whatever reason."""
    return Unauthenticated("IDENTITY_UNKNOWN", "the credential is not known to this mesh, or not good any more")


def acting(caller: Caller, tenant: str | None, session_id: str | None) -> Caller:
    """Narrows a service to those that it says it acts for. What others say of themselves is not listened to."""
    if tenant is None or caller.kind not in MESH:
        return caller
    return _service(caller.kind, tenant, session_id or "")


def authorize(caller: Caller, method: str) -> None:
    """Raises Unauthenticated or Denied (`METHOD_DENIED`, `SCOPE_DENIED`) unless the table lets the caller call it."""
    row = ACCESS.get(method)
    if row is not None and caller.kind in row:
        if caller.kind in CLIENT and row.scope is not None and caller.scope < row.scope:
            raise scope_denied(caller, row.scope)
        return
    if row is not None and row >= ANYONE:
        return
    if caller.kind in ANYONE:
        raise Unauthenticated("IDENTITY_UNKNOWN", "send `authorization: Bearer <API key>` (see `handmesh key`)")
    raise Denied("METHOD_DENIED", f"a {caller.kind} may not call {method}", identity=caller.kind)


def scope_denied(caller: Caller, needed: Scope) -> Denied:
    """Returns the error that names the scope which is needed."""
    message = f"this needs scope {needed.word}, and the credential has {caller.scope.word}"
    return Denied("SCOPE_DENIED", message, scope=needed.word, has=caller.scope.word)

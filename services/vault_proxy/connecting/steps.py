"""What goes into the two steps of connecting an account, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.vault_proxy.secret import Secret


@dataclass(frozen=True)
class Wish:
    """What a client wants: an account of the MCP server at `url` in a vault. Empty texts are left to us."""

    vault_id: str
    url: str
    redirect_uri: str
    name: str = ""
    client_id: str = ""
    client_secret: Secret[str] = field(default_factory=lambda: Secret(""))
    scope: str = ""


@dataclass(frozen=True)
class Started:
    """Where the person goes, who asks there, and what the redirect must bring back by when (Unix time, seconds)."""

    authorization_url: str
    issuer: str
    state: str
    ends: float


@dataclass(frozen=True)
class Returned:
    """What a redirect brought. Empty texts are what it did not bring."""

    state: str
    code: Secret[str]
    issuer: str = ""
    error: str = ""

"""What an MCP server and its authorization server publish of themselves, and what of it is believed.

RFC 9728 (a resource's metadata), RFC 8414 and OpenID Connect Discovery (an authorization server's). All of it is what
strangers say: a document that speaks of somebody else than whoever was asked is refused, not repaired.

The package `mcp` has such rules too. They compare URLs after parsing them anew, which hides differences, and put what
strangers said into errors; a test holds that both look in the same places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from services.kit.origin import Allowed, Origin, UrlRefused, check_origin, origin_of
from services.vault_proxy.core.kinds import is_scope
from services.vault_proxy.secret import Secret

DOCUMENT_BYTES = 256 * 1024
HEADER_CHARACTERS = 8192

UNSUPPORTED, FAILED = "OAUTH_UNSUPPORTED", "OAUTH_FAILED"

_RESOURCE, _SERVER, _OPENID = (
    f"/.well-known/{name}"
    for name in ("oauth-protected-resource", "oauth-authorization-server", "openid-configuration")
)


class Unconnectable(Exception):
    """Why an account cannot be connected. `reason` is an ErrorReason by name; the text holds nothing that was said."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Challenge:
    """What a 401 says. Empty texts are what it does not say."""

    metadata_url: str = ""
    scope: str = ""


@dataclass(frozen=True)
class Resource:
    """An MCP server as it describes itself: its name for itself, its authorization server, the scopes that it has."""

    resource: str
    issuer: str
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuthorizationServer:
    """An authorization server as it describes itself. `names_itself`: its redirects say who it is (RFC 9207)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str = ""
    client_auths: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    names_itself: bool = False
    takes_documents: bool = False


def challenge_of(header: str) -> Challenge:
    """Reads a `WWW-Authenticate` header."""
    if len(header) > HEADER_CHARACTERS:
        return Challenge()
    scope = _parameter(header, "scope")
    return Challenge(_parameter(header, "resource_metadata"), scope if is_scope(scope) else "")


def _parameter(header: str, name: str) -> str:
    found = re.search(rf'(?:^|[\s,]){name}\s*=\s*(?:"([^"\\]*)"|([^\s,"]+))', header, re.IGNORECASE)
    return (found.group(1) or found.group(2) or "") if found else ""


def resource_metadata_urls(url: str, challenge: Challenge) -> list[str]:
    """Returns where an MCP server's metadata may lie: where it says, if that is at its own origin, and where all do."""
    parts = urlsplit(url)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") and parts.path
    own = [challenge.metadata_url] if _origin(challenge.metadata_url) == origin_of(url) else []
    return list(dict.fromkeys([*own, *([f"{root}{_RESOURCE}{path}"] if path else []), f"{root}{_RESOURCE}"]))


def resource_of(body: Secret[bytes], url: str) -> Resource | None:
    """Reads a resource's metadata; None for what is none. Raises Unconnectable when it is another resource's."""
    said = _document(body)
    resource, servers = said.get("resource"), _texts(said.get("authorization_servers"))
    if not isinstance(resource, str):
        return None
    if not _covers(resource, url):
        raise Unconnectable(FAILED, "the MCP server publishes the metadata of another resource")
    if "bearer_methods_supported" in said and "header" not in _texts(said["bearer_methods_supported"]):
        raise Unconnectable(UNSUPPORTED, "the MCP server takes no access in the Authorization header")
    if not servers:
        raise Unconnectable(UNSUPPORTED, "the MCP server's metadata names no authorization server")
    return Resource(resource, servers[0], _scopes(said.get("scopes_supported")))


def _covers(resource: str, url: str) -> bool:
    """Says whether a resource is a server, or what the server is a part of: the same origin, and a path above."""
    if _origin(resource) != origin_of(url):
        return False
    its, mine = urlsplit(resource), urlsplit(url)
    above = its.path.rstrip("/") + "/"
    return its.query in ("", mine.query) and (mine.path.rstrip("/") + "/").startswith(above)


def server_metadata_urls(issuer: str) -> list[str]:
    """Returns where an authorization server's metadata may lie, in the order of RFC 8414 and the MCP specification."""
    parts = urlsplit(issuer)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    if not path:
        return [f"{root}{_SERVER}", f"{root}{_OPENID}"]
    return [f"{root}{_SERVER}{path}", f"{root}{_OPENID}{path}", f"{root}{path}{_OPENID}"]


def check_issuer(issuer: str, allowed: Allowed) -> None:
    """Raises Unconnectable for what cannot be an authorization server's name."""
    _check_url("the authorization server that the MCP server names", issuer, allowed)
    if urlsplit(issuer).query:
        raise Unconnectable(FAILED, "the authorization server that the MCP server names has a query in its URL")


def server_of(body: Secret[bytes], issuer: str, allowed: Allowed) -> AuthorizationServer | None:
    """Reads an authorization server's metadata; None for what is none.

    Raises Unconnectable when it is another server's, contradicts itself, or offers no way that is safe.
    """
    said = _document(body)
    named = said.get("issuer")
    if not isinstance(named, str):
        return None
    if not _is_issuer(named, issuer):
        raise Unconnectable(FAILED, "the authorization server's metadata is of another issuer than was asked for")
    if "S256" not in _texts(said.get("code_challenge_methods_supported")):
        raise Unconnectable(UNSUPPORTED, "the authorization server does not say that it supports PKCE with S256")
    for name, needed in (("response_types_supported", "code"), ("grant_types_supported", "authorization_code")):
        if name in said and needed not in _texts(said[name]):
            raise Unconnectable(UNSUPPORTED, f"the authorization server's {name} has no {needed}")
    auths = said.get("token_endpoint_auth_methods_supported")
    server = AuthorizationServer(
        issuer=named,
        authorization_endpoint=_endpoint(said, "authorization_endpoint", allowed),
        token_endpoint=_endpoint(said, "token_endpoint", allowed),
        registration_endpoint=_endpoint(said, "registration_endpoint", allowed, needed=False),
        client_auths=("client_secret_basic",) if auths is None else tuple(_texts(auths)),  # RFC 8414's default
        scopes=_scopes(said.get("scopes_supported")),
        names_itself=said.get("authorization_response_iss_parameter_supported") is True,
        takes_documents=said.get("client_id_metadata_document_supported") is True,
    )
    _check_origins(server)
    return server


def _is_issuer(named: str, asked: str) -> bool:
    """Says whether two names are of one issuer: as text, because what only looks the same is another.

    But a slash behind an origin means nothing, and libraries of many MCP servers add one.
    """
    shorter, longer = sorted((named, asked), key=len)
    parts = urlsplit(shorter)
    return named == asked or (longer == f"{shorter}/" and shorter == f"{parts.scheme}://{parts.netloc}")


def _check_origins(server: AuthorizationServer) -> None:
    """Holds that a person's answer to one server is not sent to another.

    A server could name the page of another as its own and its own endpoint for the code: then what a person grants the
    other comes to it. A redirect that says who made it shows that. Where none does, all must be of one origin.
    """
    endpoints = (server.authorization_endpoint, server.token_endpoint, server.registration_endpoint or server.issuer)
    if not server.names_itself and {_origin(each) for each in endpoints} != {_origin(server.issuer)}:
        raise Unconnectable(
            FAILED, "the authorization server has endpoints at another origin, and its redirects do not say who it is"
        )


def _endpoint(said: Mapping[str, Any], name: str, allowed: Allowed, needed: bool = True) -> str:
    found = said.get(name)
    if found is None and not needed:
        return ""
    if not isinstance(found, str):
        raise Unconnectable(UNSUPPORTED, f"the authorization server's metadata has no {name}")
    _check_url(f"the authorization server's {name}", found, allowed)
    return found


def _check_url(what: str, url: str, allowed: Allowed) -> None:
    try:
        check_origin(origin_of(url), allowed)
    except UrlRefused as refused:
        raise Unconnectable(FAILED, f"{what} may not be called: {refused}") from None


def _document(body: Secret[bytes]) -> Mapping[str, Any]:
    """Returns a JSON object, empty for what is none."""
    content = body.reveal()
    try:
        said = json.loads(content) if len(content) <= DOCUMENT_BYTES else None
    except (ValueError, RecursionError):
        said = None
    return said if isinstance(said, dict) else {}


def _texts(said: object) -> list[str]:
    return [each for each in said if isinstance(each, str)] if isinstance(said, list) else []


def _scopes(said: object) -> tuple[str, ...]:
    return tuple(each for each in _texts(said) if is_scope(each) and " " not in each)


def _origin(url: str) -> Origin | None:
    try:
        return origin_of(url)
    except UrlRefused:
        return None

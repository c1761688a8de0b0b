"""Connecting an account by OAuth: the client that asks, where a person is sent, what comes back, what a code is worth.

RFC 6749 and 7636 (codes with PKCE), 7591 (registering), 8707 (for which resource), 9207 (who answers). Pure: what is
random or secret is given.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlencode

from services.kit.errors import Invalid
from services.kit.origin import UrlRefused, origin_of
from services.vault_proxy.core import kinds, renewal
from services.vault_proxy.core.audience import issued_for
from services.vault_proxy.core.metadata import FAILED, UNSUPPORTED, AuthorizationServer, Resource, Unconnectable
from services.vault_proxy.secret import Secret

CLIENT_NAME = "handmesh"
CODE_CHARACTERS = 4096
STATE = re.compile(r"[A-Za-z0-9_-]{43}")  # 256 bits
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

_TEXT = re.compile(r"[ -~]+")  # RFC 6749, VSCHAR
_CLIENT_ID = re.compile(r"[ -~]{1,1024}")
_AUTHS = ("client_secret_basic", "client_secret_post", "none")  # a secret that a thief has not, if there can be one
# What a redirect or an answer may say (RFC 6749, 4.1.2.1 and 5.2; 8707; OpenID): nothing else of it is repeated.
_ERRORS = frozenset(
    {"access_denied", "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "invalid_target"}
    | {"server_error", "temporarily_unavailable", "unauthorized_client", "unsupported_grant_type"}
    | {"unsupported_response_type", "login_required", "consent_required", "interaction_required"}
    | {"invalid_redirect_uri", "invalid_client_metadata"}
)


@dataclass(frozen=True)
class Client:
    """Whom an authorization server knows us as."""

    client_id: str
    auth: str = "none"
    secret: Secret[str] = field(default_factory=lambda: Secret(""))


@dataclass(frozen=True)
class Attempt:
    """What must be remembered between sending a person away and the redirect."""

    vault_id: str
    name: str
    origin: str
    resource: str
    issuer: str
    names_itself: bool
    token_endpoint: str
    redirect_uri: str
    scope: str
    client: Client
    verifier: Secret[str]

    def fields(self) -> Secret[Mapping[str, str]]:
        """Returns it as texts, secrets and all."""
        said = {name: getattr(self, name) for name in _KEPT}
        said["names_itself"] = "1" if self.names_itself else ""
        its = {"client_id": self.client.client_id, "client_auth": self.client.auth}
        secrets = {"client_secret": self.client.secret.reveal(), "verifier": self.verifier.reveal()}
        return Secret({**said, **its, **secrets})


_KEPT = ("vault_id", "name", "origin", "resource", "issuer", "token_endpoint", "redirect_uri", "scope")


def attempt_of(fields: Secret[Mapping[str, str]]) -> Attempt:
    """Reads what `Attempt.fields` returned."""
    said = fields.reveal()
    client = Client(said["client_id"], said["client_auth"], Secret(said["client_secret"]))
    kept = {name: said[name] for name in _KEPT}
    return Attempt(**kept, names_itself=bool(said["names_itself"]), client=client, verifier=Secret(said["verifier"]))


def check_redirect(uri: str) -> None:
    """Raises Invalid (`ARGUMENT_INVALID`) unless a code is safe on its way there: https, or loopback."""
    try:
        origin = origin_of(uri)
    except UrlRefused as refused:
        _refuse("redirect_uri", str(refused))
    if origin.scheme != "https" and origin.host not in LOOPBACK:
        _refuse("redirect_uri", "expected https, or http on loopback")


def check_client(client_id: str, client_secret: Secret[str], scope: str) -> None:
    """Raises Invalid (`ARGUMENT_INVALID`) for what no client is called, and for scopes that are none."""
    secret = client_secret.reveal()
    if client_id and not _CLIENT_ID.fullmatch(client_id):
        _refuse("client_id", "expected at most 1024 characters of ASCII")
    if secret and (not client_id or not _TEXT.fullmatch(secret) or len(secret) > kinds.VALUE_CHARACTERS):
        _refuse("client_secret", "goes with a client_id, in ASCII")
    if scope and not kinds.is_scope(scope):
        _refuse("scope", "expected scopes, each separated by one space from the next")


def known_client(
    server: AuthorizationServer, client_id: str, client_secret: Secret[str], document_url: str
) -> Client | None:
    """Returns the client that asks: the caller's, else our own document where that is taken. None: register one."""
    if client_id and client_secret.reveal():
        return Client(client_id, _auth(server, secret=True), client_secret)
    if client_id:
        return Client(client_id)
    if document_url and server.takes_documents:
        return Client(document_url)
    if not server.registration_endpoint:
        raise Unconnectable(UNSUPPORTED, "the authorization server registers no clients: name one that it knows")
    return None


def _auth(server: AuthorizationServer, secret: bool) -> str:
    """Returns how a client is to show itself, the best first."""
    for each in _AUTHS[:2] if secret else _AUTHS:
        if each in server.client_auths:
            return each
    raise Unconnectable(UNSUPPORTED, "the authorization server takes clients by none of the ways that are known here")


def registration(server: AuthorizationServer, redirect_uri: str, scope: str) -> Mapping[str, object]:
    """Returns what is said of a client to be registered."""
    return {
        "client_name": CLIENT_NAME,
        "application_type": "native" if origin_of(redirect_uri).host in LOOPBACK else "web",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": _auth(server, secret=False),
        **({"scope": scope} if scope else {}),
    }


def registered(status: int, body: Secret[bytes], asked: Mapping[str, object]) -> Client:
    """Reads the answer to a registration. Raises Unconnectable for one that cannot be used as it is."""
    said = _object(body)
    if status not in (200, 201):
        raise Unconnectable(FAILED, f"the authorization server registers no client: {_said(status, said)}")
    client_id, secret = said.get("client_id"), said.get("client_secret") or ""
    auth = said.get("token_endpoint_auth_method") or asked["token_endpoint_auth_method"]
    if not isinstance(client_id, str) or not _CLIENT_ID.fullmatch(client_id) or auth not in _AUTHS:
        raise Unconnectable(FAILED, "the authorization server registers a client that cannot be used")
    if auth == "none":
        return Client(client_id)
    if not isinstance(secret, str) or not _TEXT.fullmatch(secret) or len(secret) > kinds.VALUE_CHARACTERS:
        raise Unconnectable(FAILED, "the authorization server registers a client that needs a secret, and gives none")
    return Client(client_id, auth, Secret(secret))


def scope_for(asked: str, challenged: str, resource: Resource, server: AuthorizationServer) -> str:
    """Returns the scopes to ask for: the caller's, else the MCP server's; and to be renewed, where that is a scope."""
    if asked:
        return asked
    scope = challenged or " ".join(resource.scopes)
    # Alone it would ask for less than no scope at all does.
    if scope and "offline_access" in server.scopes and "offline_access" not in scope.split():
        scope += " offline_access"
    return scope if len(scope) <= kinds.SCOPE_CHARACTERS else challenged


def authorization_url(endpoint: str, attempt: Attempt, state: str) -> str:
    """Returns where the person is sent."""
    challenge = hashlib.sha256(attempt.verifier.reveal().encode()).digest()
    query = {
        "response_type": "code",
        "client_id": attempt.client.client_id,
        "redirect_uri": attempt.redirect_uri,
        "state": state,
        "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
        "resource": attempt.resource,
        **({"scope": attempt.scope} if attempt.scope else {}),
        # OpenID Connect Core, 11: without it the scope is passed over.
        **({"prompt": "consent"} if "offline_access" in attempt.scope.split() else {}),
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


def check_return(attempt: Attempt, issuer: str, error: str, code: Secret[str]) -> None:
    """Raises Unconnectable unless the redirect came from the server that was asked, and with a code."""
    if (issuer or attempt.names_itself) and issuer != attempt.issuer:  # as text; of errors too
        what = "came from another issuer than was asked" if issuer else "does not say its issuer, as was announced"
        raise Unconnectable(FAILED, f"the redirect {what}")
    if error:
        why = error if error in _ERRORS else "an error of another name"
        raise Unconnectable(FAILED, f"the authorization server sent the person back with {why}")
    if not 0 < len(code.reveal()) <= CODE_CHARACTERS or not _TEXT.fullmatch(code.reveal()):
        raise Unconnectable(FAILED, "the redirect brought no code")


def exchange(attempt: Attempt, code: Secret[str]) -> tuple[Secret[bytes], Secret[str] | None]:
    """Returns the request that turns a code into an access: its body, and its Authorization header if there is one."""
    form = {
        "grant_type": "authorization_code",
        "code": code.reveal(),
        "redirect_uri": attempt.redirect_uri,
        "code_verifier": attempt.verifier.reveal(),
        "resource": attempt.resource,
    }
    return renewal.signed(form, attempt.fields().reveal())


def given(attempt: Attempt, status: int, body: Secret[bytes], now: float) -> kinds.Draft:
    """Reads the answer to an exchange. Raises Unconnectable when it gives nothing that may be used."""
    found, said = renewal.answer(status, body), _object(body)
    if not isinstance(found, renewal.Renewed):
        raise Unconnectable(FAILED, f"the authorization server gives nothing for the code: {_said(status, said)}")
    access = found.access.reveal()
    if not issued_for(access, attempt.resource):
        raise Unconnectable(FAILED, "the authorization server gives an access to something else than was asked for")
    scope = said.get("scope")
    ends = "" if found.expires_in is None else renewal.moment(now + found.expires_in)
    facts = {
        "renewal_endpoint": attempt.token_endpoint,
        "client_id": attempt.client.client_id,
        "client_auth": attempt.client.auth,
        "resource": attempt.resource,
        "scope": scope if isinstance(scope, str) and kinds.is_scope(scope) else attempt.scope,
        "expire_time": ends,
    }
    refresh = found.refresh.reveal() if found.refresh else ""
    secrets = {"access": access, "refresh": refresh, "client_secret": attempt.client.secret.reveal()}
    return kinds.Draft(kinds.MCP_OAUTH, Secret(secrets), facts)


def _said(status: int, said: Mapping[str, object]) -> str:
    """Returns a server's complaint, if it is one of those that there are."""
    error = said.get("error")
    return error if isinstance(error, str) and error in _ERRORS else f"it answers with HTTP status {status}"


def _object(body: Secret[bytes]) -> Mapping[str, object]:
    try:
        said = json.loads(body.reveal())
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _refuse(name: str, rule: str) -> NoReturn:
    raise Invalid("ARGUMENT_INVALID", f"{name}: {rule}", field=name)

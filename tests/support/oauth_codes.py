"""The rest of a small OAuth authorization server: metadata, registration, a page that agrees at once, codes with PKCE.

It is strict: whatever a client does that RFC 6749, 7636, 8707 and 7591 do not allow is an error and a complaint. What a
hostile server would say is `metadata_changes`, `redirect_changes`, `answer_changes` and `refresh_changes`: a value
replaces what is said, None takes it out.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.support.oauth import OAuthServer

SERVER_METADATA = "/.well-known/oauth-authorization-server"
OPENID_METADATA = "/.well-known/openid-configuration"


def changed(said: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is said with some of it replaced, or with None taken out."""
    return {name: value for name, value in {**said, **changes}.items() if value is not None}


@dataclass
class CodeServer(OAuthServer):
    """An authorization server with codes. `places` are the paths at which its metadata lies."""

    expires_in: int | None = 3600
    places: tuple[str, ...] = (SERVER_METADATA,)
    registration_status: int = 201
    metadata_changes: dict[str, Any] = field(default_factory=dict)
    redirect_changes: dict[str, Any] = field(default_factory=dict)
    answer_changes: dict[str, Any] = field(default_factory=dict)
    refresh_changes: dict[str, Any] = field(default_factory=dict)
    token_answer: tuple[int, dict[str, str], object] | None = None  # whatever comes
    asked_for: list[str] = field(default_factory=list)  # the targets of all requests
    registrations: list[dict[str, Any]] = field(default_factory=list)
    redirect_uris: set[str] = field(default_factory=set)
    pages: list[dict[str, str]] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def issuer(self) -> str:
        """Its name for itself."""
        return self.url.removesuffix("/token")

    def metadata(self) -> dict[str, Any]:
        """Returns what it publishes."""
        said = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?realm=a",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [self.client_auth],
            "authorization_response_iss_parameter_supported": True,
        }
        return changed(said, self.metadata_changes)

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], object]:
        self.asked_for.append(target)
        path = urlsplit(target).path
        if method == "GET" and path in self.places:
            return 200, {}, self.metadata()
        if method == "GET" and path == "/authorize":
            return self._page(dict(parse_qsl(urlsplit(target).query, strict_parsing=True)))
        if method == "POST" and path == "/register":
            return self._register(body)
        if method == "POST" and path == "/token" and self.token_answer is not None:
            return self.token_answer
        if method == "POST" and path == "/token":
            return super().answer(method, target, headers, body)
        return 404, {}, {}

    def _register(self, body: bytes) -> tuple[int, dict[str, str], object]:
        asked = json.loads(body)
        self.registrations.append(asked)
        if self.registration_status != 201:
            return self.registration_status, {}, {"error": "invalid_client_metadata", "error_description": "why"}
        self.redirect_uris |= set(asked["redirect_uris"])
        secret = {} if self.client_auth == "none" else {"client_secret": self.client_secret}
        said = {**asked, "client_id": self.client_id, "token_endpoint_auth_method": self.client_auth, **secret}
        return 201, {}, said

    def _page(self, query: dict[str, str]) -> tuple[int, dict[str, str], object]:
        """Agrees at once, and sends the person back."""
        self.pages.append(query)
        wanted = {"response_type": "code", "client_id": self.client_id, "code_challenge_method": "S256", "realm": "a"}
        wrong = [name for name, value in wanted.items() if query.get(name) != value]
        wrong += [name for name in ("state", "code_challenge", "resource") if not query.get(name)]
        if wrong or query.get("redirect_uri") not in self.redirect_uris:
            self.complaints.append(f"the page: {wrong or 'the redirect URI'}")
            return 400, {}, {"error": "invalid_request"}
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        back = changed({"code": code, "state": query["state"], "iss": self.issuer}, self.redirect_changes)
        return 303, {"Location": f"{query['redirect_uri']}?{urlencode(back)}"}, {}

    def exchange(self, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """Answers for a code: once, to who has the verifier, for the same redirect URI and resource."""
        page = self.codes.pop(form.get("code", ""), None)
        if page is None:
            return self._complain("invalid_grant", "an unknown code")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != page["code_challenge"]:
            return self._complain("invalid_grant", "the verifier")
        for name in ("redirect_uri", "resource"):
            if form.get(name) != page[name]:
                return self._complain("invalid_grant", name)
        grant = self._grant()
        said = {
            "access_token": grant.access,
            "refresh_token": grant.refresh,
            "token_type": "Bearer",
            "expires_in": self.expires_in,
        }
        return 200, changed(said, self.answer_changes)

    def _refresh(self, refresh: str) -> tuple[int, dict[str, object]]:
        status, said = super()._refresh(refresh)
        return status, changed(said, self.refresh_changes)


def browse(url: str) -> dict[str, str]:
    """Opens a page as a browser does that has agreed already; returns what the redirect would bring back."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 303, answer.status
    return dict(parse_qsl(urlsplit(answer.headers["Location"]).query))

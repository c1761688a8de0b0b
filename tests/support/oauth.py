"""A small OAuth authorization server: the token endpoint, strict about RFC 6749, with rotation and reuse detection.

It knows grants. A refresh token works once; a second use ends the whole grant, as RFC 9700 asks of a server. Everything
that a client does wrong is an error that counts in `complaints`, so that a test sees it even where the client mends it.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus

MOST_BODY = 64 * 1024


@dataclass
class Grant:
    """What one account has given a client."""

    access: str
    refresh: str
    used: set[str] = field(default_factory=set)
    ended: bool = False


@dataclass
class OAuthServer:
    """`rotates`: each refresh brings a new refresh token. `fails`: the status of all answers, if not 0."""

    client_id: str = "client:id +1"
    client_secret: str = "s3cret/ %+~"
    client_auth: str = "client_secret_basic"
    rotates: bool = True
    expires_in: int | None = 3600
    fails: int = 0
    url: str = ""
    requests: int = 0
    refreshed: int = 0
    complaints: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)  # cleared: it works, but its answers wait
    asked: threading.Event = field(default_factory=threading.Event)
    grants: list[Grant] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)  # requests come in threads
    mint: Callable[[], str] = lambda: secrets.token_urlsafe(24)

    def grant(self) -> Grant:
        """Gives a client access to an account, as the code flow would."""
        with self.lock:
            return self._grant()

    def _grant(self) -> Grant:
        made = Grant(self.mint(), self.mint())
        self.grants.append(made)
        return made

    def accepts(self, authorization: str | None) -> bool:
        """Tells a resource server whether an access is good."""
        with self.lock:
            return any(f"Bearer {each.access}" == authorization and not each.ended for each in self.grants)

    def token(self, headers: Any, body: bytes) -> tuple[int, dict[str, object]]:
        """Answers a request to the token endpoint."""
        with self.lock:
            self.requests += 1
            if self.fails:
                return self.fails, {"error": "temporarily_unavailable"}
            if headers.get_content_type() != "application/x-www-form-urlencoded":
                return self._complain("invalid_request", "the content type")
            pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True)
            form = dict(pairs)
            self.forms.append(form)
            if len(form) != len(pairs):
                return self._complain("invalid_request", "a parameter comes twice")
            if wrong := self._client_wrong(headers.get("Authorization"), form):
                return self._complain("invalid_client", wrong, 401)
            match form.get("grant_type"):
                case "refresh_token":
                    return self._refresh(form.get("refresh_token", ""))
                case "authorization_code":
                    return self.exchange(form)
                case _:
                    return self._complain("unsupported_grant_type", "the grant type")

    def exchange(self, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """Answers for a code. This server gives none."""
        return self._complain("unsupported_grant_type", "no codes here")

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], object]:
        """Answers any request: status, headers, and what becomes JSON. Every POST is for the token endpoint here."""
        if method != "POST":
            return 405, {}, {}
        status, said = self.token(headers, body)
        return status, {}, said

    def _client_wrong(self, authorization: str | None, form: dict[str, str]) -> str:
        if self.client_auth == "client_secret_basic":
            if "client_secret" in form:
                return "two ways at once"
            name, _, secret = base64.b64decode((authorization or "").removeprefix("Basic ")).decode().partition(":")
            given = unquote_plus(name), unquote_plus(secret)
            return "" if given == (self.client_id, self.client_secret) else "the client's secret"
        if authorization is not None:
            return "two ways at once"
        if form.get("client_id") != self.client_id:
            return "the client"
        wanted = self.client_secret if self.client_auth == "client_secret_post" else None
        return "" if form.get("client_secret") == wanted else "the client's secret"

    def _refresh(self, refresh: str) -> tuple[int, dict[str, object]]:
        for grant in self.grants:
            if refresh in grant.used:
                grant.ended = True
                return self._complain("invalid_grant", "a refresh token was used twice")
            if refresh == grant.refresh:
                if grant.ended:
                    return 400, {"error": "invalid_grant"}
                self.refreshed += 1
                grant.access = self.mint()
                answer: dict[str, object] = {"access_token": grant.access, "token_type": "bearer"}
                if self.expires_in is not None:
                    answer["expires_in"] = self.expires_in
                if self.rotates:
                    grant.used.add(refresh)
                    grant.refresh = answer["refresh_token"] = self.mint()
                return 200, answer
        return self._complain("invalid_grant", "an unknown refresh token")

    def _complain(self, error: str, why: str, status: int = 400) -> tuple[int, dict[str, object]]:
        self.complaints.append(why)
        return status, {"error": error, "error_description": why}


Kind = TypeVar("Kind", bound=OAuthServer)


@contextmanager
def oauth_server(kind: type[Kind] = OAuthServer, **options: Any) -> Iterator[Kind]:  # type: ignore[assignment]
    """Runs a server on loopback."""
    server = kind(**options)
    server.answers.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            body = self.rfile.read(min(length, MOST_BODY))
            status, headers, answer = server.answer(self.command, self.path, self.headers, body)
            server.asked.set()
            server.answers.wait()
            content = json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json;charset=UTF-8")
                self.send_header("Cache-Control", "no-store")
                self.send_header("Content-Length", str(len(content)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except OSError:
                self.close_connection = True  # whoever asked has gone

        do_GET = do_POST

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server.url = f"http://127.0.0.1:{listener.server_address[1]}/token"
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.answers.set()
        listener.shutdown()
        listener.server_close()
        thread.join()

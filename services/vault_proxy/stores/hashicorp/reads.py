"""What sessions do at the vault, logging in and reading, over bare HTTP. Blocking: runs in the store's threads.

hvac takes twice as long for the same: it makes and checks much more than these two requests need.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.vault_proxy.secret import Secret

REQUEST_SECONDS = 1.6  # for one request to connect, and for its answer: less than a call may take
MOST_IDLE = 16  # connections that are kept for the next request
NOTHING = 404  # the status where nothing lies

_log = Log("services.vault_proxy.stores.hashicorp")


class Wire:
    """Sends requests on connections that stay open. Follows no redirect, and takes nothing from the environment."""

    def __init__(self, url: str, ca_file: Path | None) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "", where.port
        self._prefix = where.path.rstrip("/") + "/v1/"
        self._tls = ssl.create_default_context(cafile=ca_file) if where.scheme == "https" else None
        self._idle: deque[http.client.HTTPConnection] = deque()

    def ask(self, method: str, path: str, token: str = "", body: object = None) -> tuple[int, Any]:
        """Returns the answer's status and JSON. Raises Unavailable (`VAULT_UNAVAILABLE`) without one, or sealed."""
        headers = {"X-Vault-Token": token} if token else {}
        try:
            status, said = self._sent(method, self._prefix + path, json.dumps(body) if body else None, headers)
            answer = json.loads(said) if status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError) as problem:
            # The kind only: the texts hold addresses and what was sent.
            _log.warning("the vault does not answer", kind=type(problem).__name__)
            raise _away() from None
        if status >= http.client.INTERNAL_SERVER_ERROR or status == http.client.TOO_MANY_REQUESTS:
            _log.warning("the vault does not answer", status=status)
            raise _away()
        return status, answer

    def _sent(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        try:
            kept: http.client.HTTPConnection | None = self._idle.pop()
        except IndexError:
            kept = None
        if kept is not None:
            try:
                return self._exchanged(kept, method, path, body, headers)
            except ConnectionError:
                pass  # it was closed while nobody used it: the vault has not seen the request
        return self._exchanged(self._made(), method, path, body, headers)

    def _exchanged(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        whole = False
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
            whole = not answer.will_close and len(self._idle) < MOST_IDLE
            return answer.status, said
        finally:
            if whole:
                self._idle.append(connection)
            else:
                connection.close()

    def _made(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_SECONDS)
        return http.client.HTTPSConnection(self._host, self._port, timeout=REQUEST_SECONDS, context=self._tls)

    def close(self) -> None:
        """Ends the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()


class SessionReads:
    """Logs sessions in by their vouchers, and reads with their tokens."""

    def __init__(self, wire: Wire, mount: str, auth_mount: str) -> None:
        self._wire = wire
        self._mount = mount
        self._auth_mount = auth_mount

    def log_in(self, voucher: Secret[str]) -> tuple[Secret[str], float]:
        """Returns a token and its life in seconds. Raises Unavailable (`VAULT_UNAVAILABLE`)."""
        body = {"role": "session", "jwt": voucher.reveal()}
        status, answer = self._wire.ask("POST", f"auth/{self._auth_mount}/login", body=body)
        if answer is None:
            _log.error("the vault does not take the session service's word", status=status)
            raise Unavailable("VAULT_UNAVAILABLE", "the vault does not let the session in")
        return Secret(str(answer["auth"]["client_token"])), float(answer["auth"]["lease_duration"])

    def read(self, path: str, token: Secret[str]) -> tuple[bool, Any]:
        """Says whether the token is let in, and what lies at a path: None where nothing does.

        Raises Unavailable (`VAULT_UNAVAILABLE`).
        """
        status, answer = self._wire.ask("GET", f"{self._mount}/data/{path}", token.reveal())
        return answer is not None or status == NOTHING, answer

    def close(self) -> None:
        """Ends the connections."""
        self._wire.close()


def _away() -> Unavailable:
    return Unavailable("VAULT_UNAVAILABLE", "the vault is sealed or cannot be reached", retry_after=1)

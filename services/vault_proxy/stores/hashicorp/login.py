"""A client of the vault that is logged in. Blocking: runs in the store's threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hvac
import requests

from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.vault_proxy.quiet import silence

REQUEST_SECONDS = 1.0  # for one request to connect, and for its answer
NO_END = 3600.0  # what the life of a login is taken for that has no end
RENEW_AT = 0.8  # of a login's life: from then on it is made anew before it is used

_log = Log("services.vault_proxy.stores.hashicorp")


class Login:
    """Logs in by AppRole when there is no login, when it is about to end, and when the vault does not know it."""

    def __init__(self, url: str, approle_file: Path, ca_file: Path | None) -> None:
        silence("hvac", "urllib3", "requests")
        session = requests.Session()
        session.trust_env = False  # no proxy and no .netrc from the environment
        session.verify = str(ca_file) if ca_file else True
        # An empty token, because hvac would look for one in the environment and in the home directory.
        self._client = hvac.Client(url=url, token="", timeout=REQUEST_SECONDS, allow_redirects=False, session=session)
        self._approle_file = approle_file
        self._ends = 0.0
        self._lock = threading.Lock()  # one login at a time

    def use(self, action: Callable[[Any], Any]) -> Any:
        """Does something with the client. Raises Unavailable unless the vault lets us in and answers.

        Lets InvalidPath and InvalidRequest through: what they mean is the action's to say.
        """
        try:
            used = self._logged_in(unless=None)
            try:
                return action(self._client)
            except hvac.exceptions.Forbidden:
                self._logged_in(unless=used)
                return action(self._client)
        except (hvac.exceptions.InvalidPath, hvac.exceptions.InvalidRequest):
            raise
        except hvac.exceptions.Forbidden:
            _log.error("the vault forbids what this service must do: see its policy in docs/vault.md")
            raise Unavailable("VAULT_UNAVAILABLE", "the vault forbids it to this service") from None
        except (hvac.exceptions.VaultError, requests.RequestException) as problem:
            # The kind only: the texts hold addresses and what was sent.
            _log.warning("the vault does not answer", kind=type(problem).__name__)
            raise Unavailable("VAULT_UNAVAILABLE", "the vault is sealed or cannot be reached", retry_after=1) from None

    def _logged_in(self, unless: str | None) -> str:
        """Returns a login's token that is not the one given."""
        with self._lock:
            token: str = self._client.token
            if token and token != unless and time.monotonic() < self._ends:
                return token
            role = self._role()
            try:
                answer = self._client.auth.approle.login(**role, use_token=False)
            except (hvac.exceptions.InvalidRequest, hvac.exceptions.InvalidPath, hvac.exceptions.Forbidden):
                _log.error("the vault does not let the AppRole in", file=str(self._approle_file))
                raise Unavailable("VAULT_UNAVAILABLE", "the vault does not let this service in") from None
            self._ends = time.monotonic() + (answer["auth"]["lease_duration"] or NO_END) * RENEW_AT
            self._client.token = answer["auth"]["client_token"]
            return str(self._client.token)

    def _role(self) -> dict[str, str]:
        try:
            role = json.loads(self._approle_file.read_text())
            return {"role_id": str(role["role_id"]), "secret_id": str(role["secret_id"])}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            _log.warning("no AppRole yet", file=str(self._approle_file), kind=type(problem).__name__)
            raise Unavailable(
                "VAULT_UNAVAILABLE", "this service has no login of the vault yet", retry_after=1
            ) from None

    def close(self) -> None:
        """Ends the connections."""
        self._client.adapter.close()

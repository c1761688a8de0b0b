"""This service's own login of the vault, and calls with it. Blocking: runs in the store's threads.

The file that the login is read from holds a wrapped secret id: it opens once, and only for the first who comes. So a
file that was read by somebody else on its way is noticed: our login fails. The token that the login gives is renewed
for as long as the service runs; with it one can write secrets, and read none.
"""

from __future__ import annotations

import json
import re
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
from services.vault_proxy.stores.hashicorp.reads import REQUEST_SECONDS

NO_END = 3600.0  # what the life of a login is taken for that has no end
RENEW_AT = 0.5  # of a login's life: from then on it is renewed when it is used
WRAPPED_AT = r"auth/[a-z0-9_/-]+/role/[A-Za-z0-9_-]+/secret-id"  # where a genuine wrapped secret id was made

_log = Log("services.vault_proxy.stores.hashicorp")


def client_of(url: str, ca_file: Path | None) -> Any:
    """Returns a client without a token, that takes nothing from the environment."""
    silence("hvac", "urllib3", "requests")
    session = requests.Session()
    session.trust_env = False  # no proxy and no .netrc from the environment
    session.verify = str(ca_file) if ca_file else True
    # An empty token, because hvac would look for one in the environment and in the home directory.
    return hvac.Client(url=url, token="", timeout=REQUEST_SECONDS, allow_redirects=False, session=session)


class Login:
    """Logs in by AppRole when there is no login, and when the vault does not know it; renews it in time."""

    def __init__(self, url: str, approle_file: Path, ca_file: Path | None) -> None:
        self._client = client_of(url, ca_file)
        self._place = url, ca_file
        self._approle_file = approle_file
        self._renews = self._ends = 0.0
        self._lock = threading.Lock()  # one login at a time

    def use(self, action: Callable[[Any], Any]) -> Any:
        """Does something with the client. Raises Unavailable unless the vault lets us in and answers.

        Lets InvalidPath and InvalidRequest through: what they mean is the action's to say.
        """

        def logged_in() -> Any:
            used = self._logged_in(unless=None)
            try:
                return action(self._client)
            except hvac.exceptions.Forbidden:
                if self._is_known():
                    raise  # it is the policy
                self._logged_in(unless=used)
                return action(self._client)

        return answering(logged_in)

    def keep(self) -> float:
        """Logs in, or renews the login when it is time. Returns in how many seconds it should be called again."""
        answering(lambda: self._logged_in(unless=None))
        return max(1.0, self._renews - time.monotonic())

    def _logged_in(self, unless: str | None) -> str:
        """Returns a login's token that is not the one given."""
        with self._lock:
            token: str = self._client.token
            now = time.monotonic()
            if token and token != unless and now < self._ends:
                if now >= self._renews:
                    self._renew()
                return token
            role = self._role()
            try:
                role_id, secret_id = role["role_id"], self._secret_id(role)
                answer = self._client.auth.approle.login(role_id, secret_id, use_token=False)
            except (hvac.exceptions.InvalidRequest, hvac.exceptions.InvalidPath, hvac.exceptions.Forbidden):
                _log.error(
                    "the vault does not let the AppRole in: put a new wrapped secret id into its file",
                    file=str(self._approle_file),
                )
                raise Unavailable("VAULT_UNAVAILABLE", "the vault does not let this service in") from None
            self._take(answer)
            return str(self._client.token)

    def _take(self, answer: Any) -> None:
        seconds = answer["auth"]["lease_duration"] or NO_END
        now = time.monotonic()
        self._renews, self._ends = now + seconds * RENEW_AT, now + seconds
        self._client.token = answer["auth"]["client_token"]

    def _renew(self) -> None:
        try:
            self._take(self._client.auth.token.renew_self())
        except (hvac.exceptions.Forbidden, hvac.exceptions.InvalidRequest) as problem:
            _log.warning("the vault does not renew the login", kind=type(problem).__name__)
            self._renews = self._ends  # it may be used to its end

    def _is_known(self) -> bool:
        """Tells whether the vault still knows our token: then it was not the token that was refused."""
        try:
            self._client.auth.token.renew_self()
        except hvac.exceptions.Forbidden:
            return False
        return True

    def _secret_id(self, role: dict[str, str]) -> str:
        """Returns the secret id, unwrapped if it came so."""
        if "wrapped_secret_id" not in role:
            return role["secret_id"]
        client = client_of(*self._place)
        client.token = role["wrapped_secret_id"]
        try:
            made_at = client.adapter.post("/v1/sys/wrapping/lookup")["data"]["creation_path"]
            if not re.fullmatch(WRAPPED_AT, made_at):
                _log.error("the wrapped secret id was made elsewhere than it should be", file=str(self._approle_file))
                raise Unavailable("VAULT_UNAVAILABLE", "this service's login of the vault is not genuine")
            secret_id: str = client.sys.unwrap()["data"]["secret_id"]
            return secret_id
        finally:
            client.adapter.close()

    def _role(self) -> dict[str, str]:
        try:
            role = json.loads(self._approle_file.read_text())
            names = ("role_id", "wrapped_secret_id" if "wrapped_secret_id" in role else "secret_id")
            return {name: str(role[name]) for name in names}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            _log.warning("no AppRole yet", file=str(self._approle_file), kind=type(problem).__name__)
            raise Unavailable(
                "VAULT_UNAVAILABLE", "this service has no login of the vault yet", retry_after=1
            ) from None

    def close(self) -> None:
        """Ends the connections."""
        self._client.adapter.close()


def answering(action: Callable[[], Any]) -> Any:
    """Does something. Raises Unavailable when the vault does not answer, or forbids it.

    Lets InvalidPath and InvalidRequest through.
    """
    try:
        return action()
    except (hvac.exceptions.InvalidPath, hvac.exceptions.InvalidRequest):
        raise
    except hvac.exceptions.Forbidden:
        _log.error("the vault forbids what this service must do: see its policy in docs/vault.md")
        raise Unavailable("VAULT_UNAVAILABLE", "the vault forbids it to this service") from None
    except (hvac.exceptions.VaultError, requests.RequestException) as problem:
        # The kind only: the texts hold addresses and what was sent.
        _log.warning("the vault does not answer", kind=type(problem).__name__)
        raise Unavailable("VAULT_UNAVAILABLE", "the vault is sealed or cannot be reached", retry_after=1) from None

"""What an operator does to OpenBao over its HTTP API: initialise, unseal, lay out the secrets engine, put a secret.

Plain standard library, blocking: callers on an event loop use a thread. Everything here but `put_secret` is for a
one-machine mesh: with a real Vault, its operator does these things by hand, once.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from handmesh.launcher.errors import VaultRefused

MOUNT = "handmesh"
"""The KV version 2 secrets engine. Secrets of a tenant are below `tenants/<tenant>/`."""

ROLE = "vault-proxy"
"""The AppRole of the vault_proxy service, and the name of its policy."""

REQUEST_TIMEOUT = 20.0
"""Seconds for one request. Initialising takes two: the raft store elects itself leader first."""

# No default policy and no right on its own token: when a token runs out, vault_proxy logs in again.
POLICY = f"""\
path "{MOUNT}/data/tenants/+/vaults/*" {{ capabilities = ["create", "update", "read"] }}
path "{MOUNT}/data/tenants/+/requests/*" {{ capabilities = ["create", "update", "read"] }}
path "{MOUNT}/data/tenants/+/secrets/*" {{ capabilities = ["create", "update", "patch", "read"] }}
path "{MOUNT}/destroy/tenants/*" {{ capabilities = ["update"] }}
path "{MOUNT}/metadata/tenants/*" {{ capabilities = ["read", "list", "delete"] }}
"""

TOKEN_TTL = "1h"

LOOPBACK_ONLY = ["127.0.0.1/32"]

ACTIVE, NOT_INITIALISED, SEALED = 200, 501, 503
"""Statuses of the health check. Others mean: not yet."""


@dataclass(frozen=True)
class Keys:
    """What initialising gave: with it one can do anything to this OpenBao."""

    unseal_key: str = field(repr=False)
    root_token: str = field(repr=False)


@dataclass(frozen=True)
class AppRole:
    """What vault_proxy logs in with."""

    role_id: str
    secret_id: str = field(repr=False)


@dataclass(frozen=True)
class VaultOperator:
    """A client with an operator's token. It opens a connection per request and keeps none.

    Every method raises VaultRefused when OpenBao answers with an error, and OSError when it does not answer.
    """

    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    def health(self) -> int | None:
        """Returns the status of the health check (ACTIVE, NOT_INITIALISED, SEALED, ...), None when nobody answers."""
        try:
            return self._exchange("GET", "sys/health", None)[0]
        except (OSError, http.client.HTTPException):
            return None

    def initialise(self) -> Keys:
        """Initialises an empty OpenBao with one key share. The answer exists only once: the caller keeps it."""
        answer = self._request("PUT", "sys/init", {"secret_shares": 1, "secret_threshold": 1})
        return Keys(unseal_key=answer["keys_base64"][0], root_token=answer["root_token"])

    def unseal(self, key: str) -> None:
        """Unseals with the one key share. It is active a moment later."""
        self._request("PUT", "sys/unseal", {"key": key})

    def lay_out(self) -> AppRole:
        """Makes the secrets engine, the policy and the AppRole, as far as they are missing, and a new secret id."""
        if f"{MOUNT}/" not in self._request("GET", "sys/mounts")["data"]:
            self._request("POST", f"sys/mounts/{MOUNT}", {"type": "kv", "options": {"version": "2"}})
        if "approle/" not in self._request("GET", "sys/auth")["data"]:
            self._request("POST", "sys/auth/approle", {"type": "approle"})
        self._request("PUT", f"sys/policies/acl/{ROLE}", {"policy": POLICY})
        role = f"auth/approle/role/{ROLE}"
        self._request(
            "POST",
            role,
            {
                "token_policies": [ROLE],
                "token_no_default_policy": True,
                "token_ttl": TOKEN_TTL,
                "token_bound_cidrs": LOOPBACK_ONLY,
                "secret_id_bound_cidrs": LOOPBACK_ONLY,
            },
        )
        role_id = self._request("GET", f"{role}/role-id")["data"]["role_id"]
        secret_id = self._request("POST", f"{role}/secret-id", {})["data"]["secret_id"]
        return AppRole(role_id=role_id, secret_id=secret_id)

    def put_bearer(self, vault_id: str, credential_id: str, origin: str, value: str, name: str, tenant: str) -> None:
        """Puts a fixed bearer value for an origin into a vault, as docs/vault.md says how to by hand."""
        bound = {"kind": "static_bearer", "origin": origin}
        self.put_secret(f"tenants/{tenant}/secrets/{vault_id}/{credential_id}", {**bound, "value": value})
        self.put_secret(f"tenants/{tenant}/vaults/{vault_id}/credentials/{credential_id}", {**bound, "name": name})

    def put_secret(self, path: str, secret: Mapping[str, str]) -> int:
        """Writes a secret at `path` below MOUNT, such as `tenants/default/github`, and returns its new version."""
        answer = self._request("POST", f"{MOUNT}/data/{quote(path)}", {"data": dict(secret)})
        version: int = answer["data"]["version"]
        return version

    def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Sends one request and returns the answer's JSON object (a JSON edge), empty when there is no body."""
        status, content = self._exchange(method, path, body)
        if status >= http.client.BAD_REQUEST:
            raise VaultRefused(f"OpenBao answered {method} {path} with {status}: {_reasons(content)}", status)
        return json.loads(content) if content else {}

    def _exchange(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_TIMEOUT)
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["X-Vault-Token"] = self.token
        try:
            connection.request(method, f"/v1/{path}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def _reasons(content: bytes) -> str:
    """Returns the errors that an answer lists. They name paths and rules, never a secret."""
    try:
        return "; ".join(json.loads(content)["errors"]) or "no reason given"
    except (ValueError, KeyError, TypeError):
        return "no reason given"

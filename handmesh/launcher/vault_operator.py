"""What an operator does to OpenBao over its HTTP API: initialise, unseal, lay out the secrets engine, put a secret.

Plain standard library, blocking: callers on an event loop use a thread. Everything here but `put_secret` is for a
one-machine mesh: with a real Vault, its operator does these things by hand, once.
"""

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from handmesh.launcher.errors import VaultRefused

MOUNT = "handmesh"
"""The KV version 2 secrets engine. Secrets of a tenant are below `tenants/<tenant>/`."""

ROLE = "vault-proxy"
"""The AppRole of the vault_proxy service, and the name of its policy."""

REQUEST_TIMEOUT = 20.0
"""Seconds for one request. Initialising takes two: the raft store elects itself leader first."""

# No default policy. It writes secrets and cannot read one; what may be told of credentials it reads.
POLICY = f"""\
path "{MOUNT}/data/tenants/+/vaults/*" {{ capabilities = ["create", "update", "patch", "read"] }}
path "{MOUNT}/data/tenants/+/requests/*" {{ capabilities = ["create", "update", "read"] }}
path "{MOUNT}/data/tenants/+/secrets/*" {{ capabilities = ["create", "update", "patch"] }}
path "{MOUNT}/data/tenants/+/connections/*" {{ capabilities = ["create", "update", "read"] }}
path "{MOUNT}/destroy/tenants/*" {{ capabilities = ["update"] }}
path "{MOUNT}/metadata/tenants/*" {{ capabilities = ["read", "list", "delete"] }}
path "auth/token/renew-self" {{ capabilities = ["update"] }}
"""

AUTH = "handmesh"
"""The JWT auth method, which takes the session service's word."""

SESSION_ROLE = "session"
SESSION_POLICY = "handmesh-session"
ISSUER, AUDIENCE = "handmesh-session", "handmesh-vault"
MOST_VAULTS = 16
"""Of one session: the policy has a line for each."""


def session_policy(accessor: str) -> str:
    """Returns the policy of every session's token: the secrets of its tenant in its own vaults, and nothing else."""
    claim = f"{{{{identity.entity.aliases.{accessor}.metadata."
    lines = (
        f'path "{MOUNT}/data/tenants/{claim}tenant}}}}/secrets/{claim}vault_{at}}}}}/*" {{ capabilities = ["read"] }}\n'
        for at in range(MOST_VAULTS)
    )
    return "".join(lines)


def session_role() -> dict[str, object]:
    """Returns the role by which sessions log in: a batch token of a minute for a minute's word."""
    claims = ("tenant", *(f"vault_{at}" for at in range(MOST_VAULTS)))
    return {
        "role_type": "jwt",
        "bound_audiences": [AUDIENCE],
        "user_claim": "sub",
        "claim_mappings": dict(zip(claims, claims, strict=True)),
        "token_type": "batch",
        "token_ttl": "60s",
        "token_policies": [SESSION_POLICY],
        "token_no_default_policy": True,
        "clock_skew_leeway": 10,
        "expiration_leeway": 10,
        "not_before_leeway": 10,
    }


TOKEN_PERIOD = "1h"
"""How long vault_proxy's token lives without being renewed."""

SECRET_ID_TTL = "10m"

LOOPBACK_ONLY = ("127.0.0.1/32",)


@dataclass(frozen=True)
class Logins:
    """How often and how long a secret id of vault_proxy works: 0 means always."""

    uses: int
    lifetime: str


ONCE, ALWAYS = Logins(1, SECRET_ID_TTL), Logins(0, "0")

ACTIVE, NOT_INITIALISED, SEALED = 200, 501, 503
"""Statuses of the health check. Others mean: not yet."""


@dataclass(frozen=True)
class Keys:
    """What initialising gave: with it one can do anything to this OpenBao."""

    unseal_key: str = field(repr=False)
    root_token: str = field(repr=False)


@dataclass(frozen=True)
class AppRole:
    """What vault_proxy logs in with, once."""

    role_id: str
    wrapped_secret_id: str = field(repr=False)


@dataclass(frozen=True)
class VaultOperator:
    """A client with an operator's token. It opens a connection per request and keeps none.

    Every method raises VaultRefused when OpenBao answers with an error, and OSError when it does not answer.
    """

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None  # of who signed its certificate; without it: plain text

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

    def seal(self) -> None:
        """Seals it: until it is unsealed it answers nobody."""
        self._request("PUT", "sys/seal")

    def lay_out(self, issuer_key: str, callers: Sequence[str] = LOOPBACK_ONLY, logins: Logins = ONCE) -> None:
        """Makes the secrets engine, the policies and the two ways in, as far as they are missing or other than now.

        `issuer_key` is the public key of the session service, PEM; `callers` are the networks where vault_proxy is.
        """
        if f"{MOUNT}/" not in self._request("GET", "sys/mounts")["data"]:
            self._request("POST", f"sys/mounts/{MOUNT}", {"type": "kv", "options": {"version": "2"}})
        methods = self._request("GET", "sys/auth")["data"]
        if "approle/" not in methods:
            self._request("POST", "sys/auth/approle", {"type": "approle"})
        if f"{AUTH}/" not in methods:
            self._request("POST", f"sys/auth/{AUTH}", {"type": "jwt"})
            methods = self._request("GET", "sys/auth")["data"]
        self._request("PUT", f"sys/policies/acl/{ROLE}", {"policy": POLICY})
        policy = session_policy(methods[f"{AUTH}/"]["accessor"])
        self._request("PUT", f"sys/policies/acl/{SESSION_POLICY}", {"policy": policy})
        trust = {"jwt_validation_pubkeys": [issuer_key], "jwt_supported_algs": ["EdDSA"], "bound_issuer": ISSUER}
        self._request("POST", f"auth/{AUTH}/config", trust)
        role = {**session_role(), "token_bound_cidrs": list(callers)}
        self._request("POST", f"auth/{AUTH}/role/{SESSION_ROLE}", role)
        self._request(
            "POST",
            f"auth/approle/role/{ROLE}",
            {
                "token_policies": [ROLE],
                "token_no_default_policy": True,
                "token_period": TOKEN_PERIOD,
                "token_bound_cidrs": list(callers),
                "secret_id_num_uses": logins.uses,
                "secret_id_ttl": logins.lifetime,
                "secret_id_bound_cidrs": list(callers),
            },
        )

    def issue_approle(self) -> AppRole:
        """Makes a secret id that works once, wrapped so that it opens once: each start of vault_proxy needs one."""
        role = f"auth/approle/role/{ROLE}"
        role_id = self._request("GET", f"{role}/role-id")["data"]["role_id"]
        wrapped = self._request("POST", f"{role}/secret-id", {}, wrap=SECRET_ID_TTL)["wrap_info"]["token"]
        return AppRole(role_id=role_id, wrapped_secret_id=wrapped)

    def issue_lasting_approle(self) -> tuple[str, str]:
        """Makes a secret id that works at each start, for where nobody is there to issue one: role id, secret id.

        Those that were made before work no more.
        """
        role = f"auth/approle/role/{ROLE}"
        role_id: str = self._request("GET", f"{role}/role-id")["data"]["role_id"]
        for accessor in self._accessors(role):
            self._request("POST", f"{role}/secret-id-accessor/destroy", {"secret_id_accessor": accessor})
        secret_id: str = self._request("POST", f"{role}/secret-id", {})["data"]["secret_id"]
        return role_id, secret_id

    def _accessors(self, role: str) -> list[str]:
        try:
            found: list[str] = self._request("LIST", f"{role}/secret-id")["data"]["keys"]
        except VaultRefused as refusal:
            if refusal.status != http.client.NOT_FOUND:
                raise
            return []
        return found

    def log_requests(self, logs: Mapping[str, str]) -> None:
        """Makes HashiCorp Vault log each request, by device: OpenBao takes that from its configuration only."""
        there = self._request("GET", "sys/audit")["data"]
        for device, file in logs.items():
            if f"{device}/" not in there:
                options = {"file_path": file, "mode": "0600"}
                self._request("POST", f"sys/audit/{device}", {"type": "file", "options": options})

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

    def _request(
        self, method: str, path: str, body: Mapping[str, object] | None = None, wrap: str | None = None
    ) -> dict[str, Any]:
        """Sends one request and returns the answer's JSON object (a JSON edge), empty when there is no body."""
        status, content = self._exchange(method, path, body, wrap)
        if status >= http.client.BAD_REQUEST:
            raise VaultRefused(f"OpenBao answered {method} {path} with {status}: {_reasons(content)}", status)
        return json.loads(content) if content else {}

    def _exchange(
        self, method: str, path: str, body: Mapping[str, object] | None, wrap: str | None = None
    ) -> tuple[int, bytes]:
        connection = self._connection()
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["X-Vault-Token"] = self.token
        if wrap is not None:
            headers["X-Vault-Wrap-TTL"] = wrap
        try:
            connection.request(method, f"/v1/{path}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.ca_file is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_TIMEOUT)
        trusting = ssl.create_default_context(cafile=str(self.ca_file))
        return http.client.HTTPSConnection(self.host, self.port, timeout=REQUEST_TIMEOUT, context=trusting)


def _reasons(content: bytes) -> str:
    """Returns the errors that an answer lists. They name paths and rules, never a secret."""
    try:
        return "; ".join(json.loads(content)["errors"]) or "no reason given"
    except (ValueError, KeyError, TypeError):
        return "no reason given"

"""What a vault's operator does in these tests: a role that may write, sealing, unsealing, and looking underneath."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from handmesh.launcher.files import read_strings, write_private_json
from tests.support.openbao import OpenBaoServer

# What docs/vault.md asks an operator for when vaults are to be changed through the API.
WRITER_POLICY = """
path "handmesh/data/tenants/+/vaults/*"   { capabilities = ["create", "update", "read"] }
path "handmesh/data/tenants/+/requests/*" { capabilities = ["create", "update", "read"] }
path "handmesh/data/tenants/+/secrets/*"  { capabilities = ["create", "update", "patch", "read"] }
path "handmesh/destroy/tenants/*"         { capabilities = ["update"] }
path "handmesh/metadata/tenants/*"        { capabilities = ["read", "list", "delete"] }
"""

# And where they are only read.
READER_POLICY = """
path "handmesh/data/tenants/*" { capabilities = ["read"] }
path "handmesh/metadata/tenants/*" { capabilities = ["read", "list"] }
"""


def call(bao: OpenBaoServer, method: str, path: str, body: object = None) -> Any:
    """Sends a request with the root token and returns the answer's JSON, None where there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", bao.port, timeout=20)
    connection.request(method, f"/v1/{path}", json.dumps(body), {"X-Vault-Token": bao.root_token})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status < 400 or answer.status == 404, (method, path, answer.status)
    return json.loads(content) if content else None


def writer_file(bao: OpenBaoServer, directory: Path) -> Path:
    """Makes an AppRole that may change vaults, and returns the file to log in with."""
    return _login_file(bao, directory, "writer", WRITER_POLICY)


def reader_file(bao: OpenBaoServer, directory: Path) -> Path:
    """Makes an AppRole that may only read vaults, and returns the file to log in with."""
    return _login_file(bao, directory, "reader", READER_POLICY)


def _login_file(bao: OpenBaoServer, directory: Path, name: str, policy: str) -> Path:
    call(bao, "PUT", f"sys/policies/acl/{name}", {"policy": policy})
    role = {"token_policies": [name], "token_no_default_policy": True, "token_ttl": "1h"}
    call(bao, "POST", f"auth/approle/role/{name}", role)
    role_id = call(bao, "GET", f"auth/approle/role/{name}/role-id")["data"]["role_id"]
    secret_id = call(bao, "POST", f"auth/approle/role/{name}/secret-id", {})["data"]["secret_id"]
    file = directory / f"{name}.json"
    write_private_json(file, {"role_id": role_id, "secret_id": secret_id})
    return file


def seal(bao: OpenBaoServer) -> None:
    """Seals the vault: from now on it answers 503."""
    call(bao, "PUT", "sys/seal")


def unseal(bao: OpenBaoServer) -> None:
    """Unseals it with the key that the launcher kept, and waits until it is active."""
    key = read_strings(bao.directory / "openbao" / "keys.json")["unseal_key"]
    call(bao, "PUT", "sys/unseal", {"key": key})
    while bao.operator.health() != 200:
        pass

"""What vault_proxy is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from services.kit.origin import Allowed, parse_allowed
from services.kit.settings import (
    REQUIRED,
    Mesh,
    SettingsError,
    address,
    existing,
    one_of,
    path,
    setting,
    text,
    url,
    whole,
)


def client_document(value: str) -> str:
    """Takes the https URL of a client metadata document."""
    if urlsplit(value).scheme != "https" or urlsplit(value).path in ("", "/"):
        raise ValueError("an https URL with a path")
    return value


@dataclass(frozen=True)
class Settings(Mesh):
    """The service's settings."""

    session_address: str = setting(
        "HANDMESH_SESSION_ADDRESS", address, REQUIRED, "Where the session service's mesh port is."
    )
    store: str = setting(
        "HANDMESH_STORE", one_of("hashicorp", "memory"), "hashicorp", "Where credentials are: a folder of stores/."
    )
    vault_url: str = setting("HANDMESH_VAULT_URL", url, "http://127.0.0.1:8200", "Where HashiCorp Vault or OpenBao is.")
    vault_mount: str = setting("HANDMESH_VAULT_MOUNT", text, "handmesh", "Its KV secrets engine, version 2.")
    vault_auth_mount: str = setting(
        "HANDMESH_VAULT_AUTH_MOUNT", text, "handmesh", "Its JWT auth method, which takes the session service's word."
    )
    vault_approle_file: Path | None = setting(
        "HANDMESH_VAULT_APPROLE_FILE",
        path,
        None,
        'JSON {"role_id", "wrapped_secret_id"}: what this service logs in with, once. It may come later.',
    )
    vault_ca_file: Path | None = setting(
        "HANDMESH_VAULT_CA_FILE", existing, None, "PEM of the authorities that sign the vault's certificate."
    )
    outbound_allow: Allowed = setting(
        "HANDMESH_OUTBOUND_ALLOW",
        parse_allowed,
        Allowed(),
        "host[:port], ...: MCP servers that may be plain http, loopback or in a private network.",
    )
    outbound_ca_file: Path | None = setting(
        "HANDMESH_OUTBOUND_CA_FILE", existing, None, "PEM of more authorities that sign MCP servers' certificates."
    )
    oauth_client_url: str = setting(
        "HANDMESH_OAUTH_CLIENT_URL",
        client_document,
        "",
        "Where this mesh's OAuth client metadata document is. Without it clients are registered.",
    )
    call_seconds: int = setting("HANDMESH_MCP_CALL_SECONDS", whole, 120, "How long one tool call may take.")
    connect_seconds: int = setting(
        "HANDMESH_MCP_CONNECT_SECONDS",
        whole,
        15,
        "How long connecting to an MCP server, or asking its tools, may take.",
    )
    idle_seconds: int = setting(
        "HANDMESH_MCP_IDLE_SECONDS", whole, 300, "After how long an unused connection to an MCP server is closed."
    )

    def __post_init__(self) -> None:
        if self.store == "hashicorp" and self.vault_approle_file is None:
            raise SettingsError("HANDMESH_VAULT_APPROLE_FILE is not set, and HANDMESH_STORE is hashicorp")

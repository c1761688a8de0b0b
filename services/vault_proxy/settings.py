"""What vault_proxy is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from services.kit.origin import Allowed, parse_allowed
from services.kit.settings import (
    REQUIRED,
    Mesh,
    SettingsError,
    address,
    addresses,
    existing,
    one_of,
    path,
    setting,
    text,
    tuning,
    url,
    whole,
)
from services.vault_proxy.core.egress import parse_hosts

EVERYWHERE = frozenset({"0.0.0.0", "[::]"})


def client_document(value: str) -> str:
    """Takes the https URL of a client metadata document."""
    if urlsplit(value).scheme != "https" or urlsplit(value).path in ("", "/"):
        raise ValueError("an https URL with a path")
    return value


@dataclass(frozen=True)
class Settings(Mesh):
    """The service's settings."""

    session_address: str = setting(
        "HANDMESH_SESSION_ADDRESS",
        addresses,
        REQUIRED,
        "Where the session service's mesh port is, or those of its replicas, with commas.",
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
    oauth_client_url: str | None = setting(
        "HANDMESH_OAUTH_CLIENT_URL",
        client_document,
        None,
        "Where this mesh's OAuth client metadata document is. Without it clients are registered.",
    )
    tool_seconds: int = setting("HANDMESH_MCP_CALL_SECONDS", whole, 120, "How long one tool call may take.")
    connect_seconds: int = setting(
        "HANDMESH_MCP_CONNECT_SECONDS",
        whole,
        15,
        "How long connecting to an MCP server, or asking its tools, may take.",
    )
    idle_seconds: int = setting(
        "HANDMESH_MCP_IDLE_SECONDS", whole, 300, "After how long an unused connection to an MCP server is closed."
    )
    replicas: tuple[str, ...] = setting(
        "HANDMESH_VAULT_PROXY_REPLICAS",
        lambda value: tuple(addresses(value).split(",")),
        (),
        "host:port,...: the other replicas' mesh ports. A call that one of them runs is found there.",
    )
    door_listen: str = setting(
        "HANDMESH_DOOR_LISTEN",
        address,
        "127.0.0.1:0",
        "Where the sandbox service brings the connections of hands' doors: mutual TLS. Port 0 is any free one.",
    )
    door_address: str | None = setting(
        "HANDMESH_DOOR_ADDRESS",
        address,
        None,
        "Where it finds that listener, of this very replica. None: as it listens.",
    )

    git_push_mib: int = tuning(
        "HANDMESH_GIT_PUSH_MIB", whole, 2_048, "Most MiB of one push, and of one large object, through a git door."
    )
    package_hosts: tuple[str, ...] = setting(
        "HANDMESH_VAULT_PROXY_PACKAGE_HOSTS",
        parse_hosts,
        (),
        "host[:port] or *.host[:port], ...: what an environment's allow_package_managers stands for.",
    )
    door_ca_cert_file: Path | None = setting(
        "HANDMESH_VAULT_PROXY_DOOR_CA_CERT_FILE",
        existing,
        None,
        "PEM of the authority that answers sandboxes for hosts at which placeholders are replaced. "
        "The same for all replicas; without it none is replaced.",
    )
    door_ca_key_file: Path | None = setting(
        "HANDMESH_VAULT_PROXY_DOOR_CA_KEY_FILE", existing, None, "PEM of that authority's elliptic-curve private key."
    )
    egress_connections: int = tuning(
        "HANDMESH_VAULT_PROXY_EGRESS_CONNECTIONS", whole, 64, "Most connections of one session through its egress door."
    )
    egress_idle_seconds: int = tuning(
        "HANDMESH_VAULT_PROXY_EGRESS_IDLE_SECONDS", whole, 300, "How long such a connection may stand still."
    )
    egress_seconds: int = tuning(
        "HANDMESH_VAULT_PROXY_EGRESS_SECONDS", whole, 3_600, "How long such a connection may last."
    )
    egress_mib: int = tuning(
        "HANDMESH_VAULT_PROXY_EGRESS_MIB", whole, 8_192, "Most MiB that go through such a connection, both ways."
    )

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        """Says which settings do not go together; of those that are missing here nothing is known."""
        problems = []
        names = ("door_ca_cert_file", "door_ca_key_file")
        if all(name in values for name in names) and len({values[name] is None for name in names}) == 2:
            problems.append(
                "HANDMESH_VAULT_PROXY_DOOR_CA_CERT_FILE and HANDMESH_VAULT_PROXY_DOOR_CA_KEY_FILE go together"
            )
        if values.get("store") == "hashicorp" and values.get("vault_approle_file", "") is None:
            problems.append("HANDMESH_VAULT_APPROLE_FILE is not set, and HANDMESH_STORE is hashicorp")
        listen = values.get("door_listen", "")
        if values.get("door_address", "") is None and listen.rpartition(":")[0] in EVERYWHERE:
            problems.append(f"HANDMESH_DOOR_ADDRESS is not set, and nobody can dial HANDMESH_DOOR_LISTEN, {listen}")
        return problems

    def __post_init__(self) -> None:
        if problems := self.contradictions(vars(self)):
            raise SettingsError.of(problems)

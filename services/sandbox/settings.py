"""What the sandbox service is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.kit.settings import (
    REQUIRED,
    Mesh,
    SettingsError,
    address,
    addresses,
    existing,
    flag,
    path,
    setting,
    url,
    whole,
)
from services.sandbox.doorman import MOST_CONNECTIONS
from services.sandbox.hand import Bounds
from services.sandbox.seeds import SeedSettings
from services.sandbox.seeds_rules import Sources, parse_sources


@dataclass(frozen=True)
class Settings(Mesh):
    """Settings of the sandbox service."""

    state_dir: Path = setting(
        "HANDMESH_STATE_DIR",
        path,
        REQUIRED,
        "Folder for what the hands keep; one service owns it. A Docker Engine must see it under the same path.",
    )
    environments_file: Path | None = setting(
        "HANDMESH_ENVIRONMENTS_FILE", existing, None, "TOML file of environments, beside the built-in ones."
    )
    session_address: str | None = setting(
        "HANDMESH_SESSION_ADDRESS",
        addresses,
        None,
        "Where the session service's mesh port is, or its replicas' are, with commas. "
        "Without it the sandboxes of ended sessions are kept.",
    )
    vault_proxy_address: str | None = setting(
        "HANDMESH_VAULT_PROXY_ADDRESS",
        addresses,
        None,
        "Where the vault proxy's mesh port is, or its replicas' are. "
        "Without it sandboxes have no doors: no network policy, no private git.",
    )
    node: str = setting(
        "HANDMESH_NODE",
        address,
        "",
        "Which of HANDMESH_SANDBOX_PEERS this replica is. Its sandboxes' ids name it, so it stays the same.",
    )
    peers: str = setting(
        "HANDMESH_SANDBOX_PEERS",
        addresses,
        "",
        "The mesh ports of all replicas of this service, this one among them, as the harness's list has them. Each has "
        "sandboxes of its own; a call that comes to another one is handed on.",
    )
    door_connections: int = setting(
        "HANDMESH_DOOR_CONNECTIONS",
        whole,
        MOST_CONNECTIONS,
        "Connections of all sandboxes' doors at once. Each takes two descriptors of this service.",
    )
    idle_seconds: int = setting(
        "HANDMESH_IDLE_SECONDS",
        whole,
        24 * 60 * 60,
        "A sandbox without a session is released when for so long nothing was begun in it.",
    )
    default_pool: int | None = setting(
        "HANDMESH_DEFAULT_POOL",
        whole,
        None,
        "Free sandboxes to keep ready of the default environment, when its table has no `pool`.",
    )
    hand_offline_seconds: int = setting(
        "HANDMESH_HAND_OFFLINE_SECONDS", whole, 30, "How long a call waits for a worker of a hand that dials out."
    )
    hand_queue_seconds: int = setting(
        "HANDMESH_HAND_QUEUE_SECONDS", whole, 600, "How long a call waits when all workers of such a hand are busy."
    )
    hand_reattach_seconds: int = setting(
        "HANDMESH_HAND_REATTACH_SECONDS",
        whole,
        600,
        "How long a worker whose link is cut is waited for, before what it had ends as unknown.",
    )
    allow_unisolated: bool = setting(
        "HANDMESH_ALLOW_UNISOLATED", flag, False, "1 lets the process backend run tools without any isolation."
    )
    git_allow: Sources = setting(
        "HANDMESH_GIT_ALLOW",
        parse_sources,
        Sources(),
        "host[:port], file:///folder, ...: git hosts that may be plain http, loopback or in a private network, and "
        "folders of this machine whose repositories every session may have. Without it: https, public addresses.",
    )
    git_ca_file: Path | None = setting(
        "HANDMESH_GIT_CA_FILE", existing, None, "PEM of the authorities that sign git hosts' certificates."
    )
    git_repository_mib: int = setting(
        "HANDMESH_GIT_REPOSITORY_MIB", whole, 1024, "Most of one git repository: of its history, and of its checkout."
    )
    git_cache_mib: int = setting(
        "HANDMESH_GIT_CACHE_MIB", whole, 10240, "Most of all git repositories kept; those unused longest go first."
    )
    git_fresh_seconds: int = setting(
        "HANDMESH_GIT_FRESH_SECONDS", whole, 30, "How long to believe what a git host said that a branch stands for."
    )
    git_fetch_seconds: int = setting(
        "HANDMESH_GIT_FETCH_SECONDS", whole, 300, "How long fetching a git repository, or checking it out, may take."
    )
    docker_host: str | None = setting(
        "DOCKER_HOST", url, None, "Where the Docker Engine is; its usual socket if not set."
    )

    def __post_init__(self) -> None:
        if bool(self.node) != bool(self.peers) or (self.peers and self.node not in self.peers.split(",")):
            raise SettingsError.of(
                [f"HANDMESH_NODE is {self.node!r}, expected one of HANDMESH_SANDBOX_PEERS, {self.peers!r}"]
            )

    def bounds(self) -> Bounds:
        """Returns those of hands that dial out."""
        return Bounds(
            offline=float(self.hand_offline_seconds),
            queue=float(self.hand_queue_seconds),
            reattach=float(self.hand_reattach_seconds),
        )

    def seeds(self) -> SeedSettings:
        """Returns those of git repositories."""
        return SeedSettings(
            sources=self.git_allow,
            repository_bytes=self.git_repository_mib << 20,
            cache_bytes=self.git_cache_mib << 20,
            fresh_seconds=float(self.git_fresh_seconds),
            fetch_seconds=float(self.git_fetch_seconds),
        )

"""What the sandbox service is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.kit.settings import REQUIRED, Mesh, address, existing, flag, path, setting, url, whole


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
        address,
        None,
        "Where the session service's mesh port is. Without it the sandboxes of ended sessions are kept.",
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
    allow_unisolated: bool = setting(
        "HANDMESH_ALLOW_UNISOLATED", flag, False, "1 lets the process backend run tools without any isolation."
    )
    docker_host: str | None = setting(
        "DOCKER_HOST", url, None, "Where the Docker Engine is; its usual socket if not set."
    )

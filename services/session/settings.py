"""The session service's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.kit.settings import Mesh, existing, flag, one_of, setting, url, whole


@dataclass(frozen=True)
class Settings(Mesh):
    """What the session service is told."""

    log: str = setting("HANDMESH_LOG", one_of("jetstream", "memory"), "jetstream", "Where logs are kept.")
    nats_url: str = setting("HANDMESH_NATS_URL", url, "nats://127.0.0.1:4222", "Where NATS is.")
    nats_credentials_file: Path | None = setting(
        "HANDMESH_NATS_CREDENTIALS_FILE", existing, None, "JSON {user, password}: how to log in to NATS."
    )
    nats_monitor_url: str | None = setting(
        "HANDMESH_NATS_MONITOR_URL", url, None, "NATS's monitoring endpoint, to see that it syncs every write."
    )
    throwaway: bool = setting(
        "HANDMESH_THROWAWAY", flag, False, "1 runs on a NATS that does not sync: a power cut loses logs."
    )
    blob_quota_bytes: int = setting(
        "HANDMESH_BLOB_QUOTA_BYTES", whole, 1024 * 1024 * 1024, "Most bytes of blobs that one session keeps."
    )
    max_blob_bytes: int = setting("HANDMESH_MAX_BLOB_BYTES", whole, 256 * 1024 * 1024, "Most bytes of one blob.")

"""The session service's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.kit.settings import Mesh, existing, flag, one_of, setting, tuning, url, whole
from services.session.admission import MAX_SESSION_BYTES
from services.session.blobs_core import MAX_BLOB_BYTES, QUOTA_BYTES
from services.session.memories_core import QUOTA_BYTES as MEMORY_BYTES


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
    vault_issuer_key_file: Path | None = tuning(
        "HANDMESH_VAULT_ISSUER_KEY_FILE",
        existing,
        None,
        "PEM, Ed25519: signs for which session's secrets the vault proxy may read. Without it no credential is used.",
    )
    oidc_file: Path | None = tuning(
        "HANDMESH_OIDC_FILE",
        existing,
        None,
        "JSON: the issuers whose tokens (JWT) clients may show (docs/identity.md). None means no tokens.",
    )
    session_bytes: int = tuning(
        "HANDMESH_SESSION_BYTES", whole, MAX_SESSION_BYTES, "Most bytes of events that one session has."
    )
    retention_file: Path | None = tuning(
        "HANDMESH_RETENTION_FILE", existing, None, "JSON: how long sessions are kept, by label. None means for ever."
    )
    blob_quota_bytes: int = tuning(
        "HANDMESH_BLOB_QUOTA_BYTES", whole, QUOTA_BYTES, "Most bytes of blobs that one session keeps."
    )
    memory_quota_bytes: int = tuning(
        "HANDMESH_MEMORY_QUOTA_BYTES", whole, MEMORY_BYTES, "Most bytes of all memory stores of one tenant."
    )
    max_blob_bytes: int = tuning("HANDMESH_MAX_BLOB_BYTES", whole, MAX_BLOB_BYTES, "Most bytes of one blob.")

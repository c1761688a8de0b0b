"""Secrets in HashiCorp Vault or OpenBao: a KV engine of version 2; sessions read by JWT."""

from __future__ import annotations

from services.vault_proxy.settings import Settings
from services.vault_proxy.stores.hashicorp.store import HashicorpStore


def make(settings: Settings) -> HashicorpStore:
    """Makes a store. Nothing is opened before its first use."""
    assert settings.vault_approle_file is not None, "the settings see to it"
    return HashicorpStore(
        settings.vault_url,
        settings.vault_mount,
        settings.vault_approle_file,
        settings.vault_ca_file,
        settings.vault_auth_mount,
    )

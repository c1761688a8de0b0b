"""Places that keep secrets: a folder each, which has `make(settings) -> CredentialStore`."""

from __future__ import annotations

import importlib

from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.settings import Settings


def make(settings: Settings) -> CredentialStore:
    """Makes the store that the settings name."""
    module = importlib.import_module(f"{__name__}.{settings.store}")
    store: CredentialStore = module.make(settings)
    return store

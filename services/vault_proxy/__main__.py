"""Starts the service: `python -m services.vault_proxy`."""

from __future__ import annotations

import importlib
import sys

from services.kit import serving
from services.vault_proxy.assembly import running
from services.vault_proxy.settings import Settings
from services.vault_proxy.undumped import hide_memory

ON_FIRST_USE = (
    "services.vault_proxy.connecting.accounts",
    "services.vault_proxy.mcp.connection",
    "services.vault_proxy.stores.hashicorp.login",
    "services.vault_proxy.stores.hashicorp.reads",
    "services.vault_proxy.stores.memory",
)


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT."""
    hide_memory()
    async with running(settings):
        await serving.until_signal()


def _authority(settings: Settings) -> None:
    if settings.door_ca_cert_file and settings.door_ca_key_file:
        from services.vault_proxy.doors.authority import Authority  # it loads a library that others do not need

        Authority(settings.door_ca_cert_file, settings.door_ca_key_file)


if __name__ == "__main__":
    if "--check" in sys.argv:
        for module in ON_FIRST_USE:
            importlib.import_module(module)
    serving.main("vault_proxy", Settings, run, (_authority,))

"""Every folder of `services/session/logs/` keeps what `services/session/log.py` promises."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

from services.session import conformance, logs
from services.session.settings import Settings
from tests.support.nats import NatsServer

FOLDERS = [module.name for module in pkgutil.iter_modules(logs.__path__)]


@pytest.fixture
def settings(nats_server: NatsServer) -> Settings:
    """Settings for any store: those of a real NATS, which some do not need."""
    return Settings(
        listen="",
        client_listen=None,
        tls_dir=Path(),
        api_keys_file=None,
        log_level="info",
        log="",
        nats_url=nats_server.url,
        nats_credentials_file=nats_server.session_credentials,
        nats_monitor_url=nats_server.monitor_url,
        throwaway=False,
    )


def test_every_folder_is_checked() -> None:
    """There is a store in memory and one on JetStream, and every check has a number."""
    assert {"jetstream", "memory"} <= set(FOLDERS)
    assert len(conformance.CHECKS) >= 27


@pytest.mark.nats
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
async def test_store(folder: str, check: conformance.Check, settings: Settings) -> None:
    """A store does what the check's own docstring says."""
    make = importlib.import_module(f"{logs.__name__}.{folder}").make
    async with conformance.opened(lambda: make(settings)) as store:
        await check(store)

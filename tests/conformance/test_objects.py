"""Every folder of `services/session/logs/` keeps what `services/session/objects.py` promises."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from services.kit import ids
from services.kit.errors import Refused
from services.session import objects_conformance
from services.session.settings import Settings
from tests.conformance.test_logs import FOLDERS
from tests.session.running import make_settings
from tests.support.nats import NatsServer


@pytest.fixture
def settings(nats_server: NatsServer) -> Settings:
    """Settings of a real NATS, with the identity of whoever may purge."""
    made = make_settings(Path(), nats_server)
    return dataclasses.replace(made, nats_credentials_file=nats_server.migrate_credentials)


def test_every_check_is_there() -> None:
    """Every check has a number."""
    assert len(objects_conformance.CHECKS) == 6


@pytest.mark.nats
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("check", objects_conformance.CHECKS, ids=lambda check: check.__name__)
async def test_objects(folder: str, check: objects_conformance.Check, settings: Settings) -> None:
    """A store does what the check's own docstring says."""
    make = importlib.import_module(f"services.session.logs.{folder}").make
    async with make(settings) as store:
        await check(store.objects)


@pytest.mark.nats
async def test_the_serving_process_may_free_and_not_purge(nats_server: NatsServer) -> None:
    """With the session service's own identity a space cannot be removed, and what is in it stays."""
    make = importlib.import_module("services.session.logs.jetstream").make
    async with make(make_settings(Path(), nats_server)) as store:
        space, one, other = ids.mint("sess"), ids.mint("obj"), ids.mint("obj")
        await store.objects.put(space, one, 0, b"a")
        await store.objects.put(space, other, 0, b"b")
        await store.objects.free(space, one, 1)
        with pytest.raises(Refused):
            await store.objects.remove(space)
        assert await store.objects.get(space, one, 0) is None
        assert await store.objects.get(space, other, 0) == b"b"

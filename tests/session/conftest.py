"""A session service in this process, on each store."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES as PARTS
from services.kit import ids
from services.session.settings import Settings
from tests.session.running import OTHER_KEY, Run, Service, make_settings, running
from tests.support.nats import NatsServer


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for every service and two API keys, of the tenants `default` and `other`."""
    data = tmp_path_factory.mktemp("identities")
    ensure_certificates(data / "tls", PARTS, datetime.datetime.now(datetime.UTC))
    ensure_api_key(data)
    rows = json.loads((data / "api_keys.json").read_text())
    rows.append({"sha256": hashlib.sha256(OTHER_KEY.encode()).hexdigest(), "tenant": "other", "name": "other"})
    (data / "keys.json").write_text(json.dumps(rows))
    return data


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.nats)])
def settings(request: pytest.FixtureRequest, identities: Path) -> Settings:
    """Settings for each store."""
    nats = request.getfixturevalue("nats_server") if request.param == "jetstream" else None
    return make_settings(identities, nats, request.param)


@pytest.fixture
async def service(settings: Settings, identities: Path) -> AsyncIterator[Service]:
    """A session service on each store."""
    async with running(settings, identities) as service:
        yield service


@pytest.fixture
def run(own_nats_server: NatsServer, identities: Path) -> Run:
    """Runs session services on a NATS of this test's own."""
    return lambda: running(make_settings(identities, own_nats_server), identities)


@pytest.fixture
def kind() -> str:
    """A harness type of this test's own."""
    return "t" + ids.mint("x")[-20:]

"""Wires the harness service and runs it."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from os import getpid

from handmesh.harness.v1.harness_pb2_grpc import add_HarnessServiceServicer_to_server
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.harness import counting
from services.harness.adapters.anthropic import AnthropicModel
from services.harness.adapters.giving import RemoteGiving
from services.harness.adapters.memories import RemoteMemories
from services.harness.adapters.others import RemoteOthers
from services.harness.adapters.pictures import ProcessPictures
from services.harness.adapters.sandbox import RemoteHands
from services.harness.adapters.session import RemoteLog, offer, tenant_of
from services.harness.adapters.vault_proxy import ONCE, RemoteServers
from services.harness.claims import Claims
from services.harness.mesh.hands import HandOvers
from services.harness.mesh.memory import MemoryTools
from services.harness.mesh.session_events import SessionEvents
from services.harness.mesh.sessions import SessionTools
from services.harness.owners import Owners
from services.harness.ports import Ports
from services.harness.prices import BUILT_IN, Prices, PricesError, with_prices
from services.harness.runs import Runs
from services.harness.server import HarnessServicer
from services.harness.settings import Settings
from services.harness.types import Listed, TypesError, found
from services.kit import asked
from services.kit.channels import connect
from services.kit.serving import Server, main, until_signal
from services.kit.settings import SettingsError

DRAIN_SECONDS = 4.0  # that an answer of the model has to end after SIGTERM


def _types(settings: Settings) -> tuple[Listed, ...]:
    try:
        return found(settings)
    except TypesError as problem:
        raise SettingsError(str(problem)) from None


def _prices(settings: Settings) -> Prices:
    if settings.model_prices_file is None:
        return BUILT_IN
    try:
        return with_prices(settings.model_prices_file.read_text())
    except (OSError, UnicodeDecodeError, PricesError) as problem:
        raise SettingsError(f"HANDMESH_MODEL_PRICES_FILE: {settings.model_prices_file}: {problem}") from None


async def run(settings: Settings) -> None:
    """Serves until SIGTERM, then drains."""
    prices, listed = _prices(settings), _types(settings)
    types = {each.name: each.kind for each in listed if each.kind is not None}
    to_session = connect(settings.session_address, settings.tls_dir, pinned=settings.pinned)
    to_sandbox = connect(settings.sandbox_address, settings.tls_dir, pinned=settings.pinned)
    to_servers = connect(settings.vault_proxy_address, settings.tls_dir, once=ONCE, pinned=settings.pinned)
    session = SessionServiceStub(to_session)
    model = AnthropicModel(settings.model_key_file, settings.model_base_url, time.time, settings.model_silence)
    ports = Ports(
        model=model,
        hands=RemoteHands(to_sandbox),
        servers=RemoteServers(to_servers),
        now=time.time,
        jitter=random.random,
        prices=prices,
        pictures=ProcessPictures(),
        mesh=(
            MemoryTools(RemoteMemories(to_session)),
            SessionEvents(),
            SessionTools(RemoteOthers(session), time.time),
            HandOvers(RemoteGiving(to_sandbox, session)),
        ),
    )
    instance = f"{socket.gethostname()}:{getpid()}"
    runs = Runs(
        types,
        lambda session_id, newest: RemoteLog(session, session_id, newest),
        ports,
        instance,
        settings.capacity,
        settings.linger,
    )
    counting.allow_models(prices)
    counting.watch(runs.list, settings.capacity, lambda: runs.draining)
    server = Server(settings, asked.callers(session))
    claims = Claims(session, runs, sorted(types), instance)
    servicer = HarnessServicer(
        runs,
        listed,
        lambda session_id, tenant: offer(session, session_id, tenant),
        lambda: claims.drain(DRAIN_SECONDS),
        claims.condition,
        Owners(lambda session_id: tenant_of(session, session_id)),
    )
    add_HarnessServiceServicer_to_server(servicer, server.grpc)
    await server.start("handmesh.harness.v1.HarnessService")
    claims.start()
    loading = asyncio.create_task(model.newest()) if settings.preload else None
    try:
        await until_signal()
    finally:
        if loading is not None:
            loading.cancel()
            await asyncio.wait({loading})
        await claims.drain(DRAIN_SECONDS)
        await claims.close()
        await server.stop()
        await model.close()


if __name__ == "__main__":
    main("harness", Settings, run, (_types, _prices))

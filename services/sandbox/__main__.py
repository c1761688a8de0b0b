"""Wires the sandbox service and runs it."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from handmesh.sandbox.v1.sandbox_pb2_grpc import add_SandboxServiceServicer_to_server
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit import asked, channels
from services.kit.grants import Grants
from services.kit.identity import Peers
from services.kit.logs import Log
from services.kit.serving import Server, main, until_signal
from services.kit.settings import SettingsError
from services.sandbox import backends, counting, environments
from services.sandbox.dialled_server import Workers
from services.sandbox.doorman import Doorman
from services.sandbox.forwarding import Forwarding
from services.sandbox.hand import HandSettings
from services.sandbox.hand_tokens import HandTokens, NoTokens
from services.sandbox.leave import Leave
from services.sandbox.mounts import Mounts
from services.sandbox.owners import Owners
from services.sandbox.owners_log import SessionLogs
from services.sandbox.owners_records import OwnerRecords
from services.sandbox.passes import Passes
from services.sandbox.pool import Pools
from services.sandbox.reaper import Reaper
from services.sandbox.replicas import Replicas
from services.sandbox.resources import Resources
from services.sandbox.sandboxes import Sandboxes
from services.sandbox.seeds import Seeds
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_planting import Planting
from services.sandbox.server import SandboxServicer
from services.sandbox.session_client import SessionClient
from services.sandbox.session_service import SessionService
from services.sandbox.settings import Settings
from services.sandbox.vault_proxy import VaultProxyClient

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

TIDY_SECONDS = 30.0
DESCRIPTORS = 1 << 16

_log = Log("services.sandbox")


def _environments(settings: Settings) -> environments.Environments:
    try:
        return environments.load(settings.environments_file, backends.keys())
    except environments.EnvironmentsError as problems:
        raise SettingsError(f"HANDMESH_ENVIRONMENTS_FILE: {problems}") from None


async def run(settings: Settings) -> None:
    """Serves until SIGTERM. The sandboxes that are somebody's stay, for the service that comes after."""
    _raise_descriptors()
    known = _environments(settings)
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    hands = backends.Backends(
        HandSettings(settings.state_dir.absolute(), settings.allow_unisolated, settings.docker_host, settings.bounds()),
        settings.node,
    )
    seeds = Seeds(settings.state_dir.absolute() / "seeds", Git(settings.git_ca_file), settings.seeds())
    if settings.default_pool is not None:
        known = environments.with_default_pool(known, settings.default_pool)
    pools = Pools(hands, known)
    channel = None
    if settings.session_address:
        channel = channels.connect(settings.session_address, settings.tls_dir, pinned=settings.pinned)
    counting.allow_environments({name: recipe.pool for name, recipe in known.recipes.items()}, pools.free)
    sessions = SessionClient(SessionServiceStub(channel)) if channel is not None else None
    resources = Resources(SessionService(channel) if channel is not None else None, Mounts(hands.state_dir / "mounts"))
    passes = Passes()
    vault_channel, vault = _vault(settings)
    doorman = Doorman(known, vault, passes, settings.door_connections)
    sandboxes = Sandboxes(hands, known, pools, resources, planting=Planting(seeds), doorman=doorman)
    tokens: HandTokens | NoTokens = NoTokens()
    grants = None
    if channel is not None:
        tokens, grants = _tokens(SessionServiceStub(channel), hands, passes)
    leave = Leave(hands, SessionService(channel) if channel is not None else None, grants, passes)
    owners = Owners(OwnerRecords(hands, SessionLogs(channel) if channel is not None else None), resources, doorman)
    reaper = Reaper(sandboxes, hands, sessions, settings.idle_seconds, owners)
    peers = Replicas(settings.node, settings.peers.split(",") if settings.peers else (), settings.tls_dir)
    server = Server(
        settings,
        asked.callers(SessionServiceStub(channel)) if channel is not None else None,
        forwards="sandbox" if peers.others else "",
        within=[Forwarding(peers, known.recipes)] if peers.others else [],
    )
    workers = Workers(hands, known, tokens)
    add_SandboxServiceServicer_to_server(SandboxServicer(sandboxes, leave, workers, owners), server.grpc)
    await server.start("handmesh.sandbox.v1.SandboxService")
    works = [sandboxes.prepare(), _tidy(sandboxes), pools.run(), reaper.run(), owners.run()]
    works += [grants.watch()] if grants else []
    background = [asyncio.create_task(work) for work in works]
    try:
        await until_signal()
    finally:
        await _cancelled(background)
        if (dialled := hands.dialled()) is not None:
            dialled.drain()
        await asyncio.gather(server.stop(), pools.drain())
        await peers.close()
        await owners.close()
        await sandboxes.close()
        await hands.close()
        for each in filter(None, (channel, vault_channel)):
            await each.close()


def _tokens(stub: SessionServiceAsyncStub, hands: backends.Backends, passes: Passes) -> tuple[HandTokens, Grants]:
    """Makes those who ask the session service for grants and tokens; one stream tells of both that are void."""
    tokens = HandTokens(stub, lambda: grants.watching, lambda token_id: hands.takes_workers().revoke(token_id))
    grants = Grants(stub, passes.void, resumed=tokens.resumed, hand_revoked=tokens.revoked)
    return tokens, grants


async def _cancelled(background: Sequence[asyncio.Task[None]]) -> None:
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)


def _raise_descriptors() -> None:
    """Lets this process have more descriptors than the usual 1024: each sandbox may take some for its doors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _vault(settings: Settings) -> tuple[grpc.aio.Channel | None, VaultProxyClient | None]:
    if settings.vault_proxy_address is None:
        return None, None
    channel = channels.connect(settings.vault_proxy_address, settings.tls_dir, pinned=settings.pinned)
    return channel, VaultProxyClient(channel, settings.tls_dir, Peers.of_file(settings.identities_file))


async def _tidy(sandboxes: Sandboxes) -> None:
    while True:
        try:
            await sandboxes.tidy()
        except Exception:  # the top of a task: it tidies again
            _log.error("not tidied", exc_info=True)
        await asyncio.sleep(TIDY_SECONDS)


if __name__ == "__main__":
    main("sandbox", Settings, run, (_environments,))

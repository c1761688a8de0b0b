"""Puts the service together, and takes it apart again in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import add_VaultProxyServiceServicer_to_server
from services.kit import channels, serving
from services.kit.grants import Grants
from services.vault_proxy import stores
from services.vault_proxy.audit import Audit
from services.vault_proxy.connecting import Connecting
from services.vault_proxy.credentials import Credentials
from services.vault_proxy.doors.authority import Authority
from services.vault_proxy.doors.egress import EgressDoor
from services.vault_proxy.doors.git import GitDoor
from services.vault_proxy.doors.git_upstream import Upstream
from services.vault_proxy.doors.listener import Listener
from services.vault_proxy.doors.purse import Purse
from services.vault_proxy.doors.reception import Reception
from services.vault_proxy.doors.refusals import Refusals
from services.vault_proxy.doors.tickets import Tickets
from services.vault_proxy.doors.uses import Uses
from services.vault_proxy.doors.visit import Door
from services.vault_proxy.doors.wires import Limits as DoorLimits
from services.vault_proxy.executions import Executions
from services.vault_proxy.github_app import Api, GithubApps
from services.vault_proxy.mcp.connections import Connections, Limits
from services.vault_proxy.pins import Pins
from services.vault_proxy.ports import CredentialStore
from services.vault_proxy.renewal import Renewal
from services.vault_proxy.replicas import Replicas
from services.vault_proxy.server import NAME, VaultProxy
from services.vault_proxy.settings import Settings
from services.vault_proxy.tools import Tools
from services.vault_proxy.validation import Validation
from services.vault_proxy.vaults import Vaults
from services.vault_proxy.wallet import Wallet

if TYPE_CHECKING:
    from services.vault_proxy.outbound.dial import Dialler
    from services.vault_proxy.outbound.streams import Streams


def now() -> str:
    """Returns the time in RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def egress_door(settings: Settings, purse: Purse, uses: Uses, refusals: Refusals) -> EgressDoor:
    """Makes the egress door. Raises SettingsError for an authority that is none."""

    def dialler() -> Dialler:
        from services.vault_proxy.outbound.dial import Dialler

        return Dialler(settings.outbound_allow, settings.outbound_ca_file)

    authority = None
    if settings.door_ca_cert_file is not None and settings.door_ca_key_file is not None:
        authority = Authority(settings.door_ca_cert_file, settings.door_ca_key_file)
    limits = DoorLimits(settings.egress_idle_seconds, settings.egress_seconds, settings.egress_mib * 1024 * 1024)
    hosts, most = settings.package_hosts, settings.egress_connections
    return EgressDoor(dialler, purse, authority, uses, refusals, hosts, limits, most)


def git_door(settings: Settings, wallet: Wallet, audit: Audit, refusals: Refusals) -> GitDoor:
    """Makes the git door."""
    reach = settings.outbound_allow, settings.outbound_ca_file

    def streams() -> Streams:
        from services.vault_proxy.outbound.streams import Streams

        return Streams(*reach)

    apps = GithubApps(Api(*reach).post, time.time)
    return GitDoor(Upstream(wallet, apps, audit, streams), refusals, settings.git_push_mib * 1024 * 1024)


def account_flow(settings: Settings, store: CredentialStore, vaults: Vaults) -> Connecting:
    """Makes what connects accounts, when it is needed."""
    reach = settings.outbound_allow, settings.outbound_ca_file
    document = settings.oauth_client_url or ""
    return Connecting(lambda accounts: accounts(store, vaults, time.time, *reach, document))


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[serving.Server]:
    """Serves as long as the context lasts. At its end calls may finish, and uses of credentials are told."""
    channel = channels.connect(settings.session_address, settings.tls_dir)
    session = SessionServiceStub(channel)
    store = stores.make(settings)
    credentials, audit = Credentials(store, now), Audit(session)
    renewal = Renewal(store, credentials, audit, time.time, settings.outbound_allow, settings.outbound_ca_file)
    wallet = Wallet(store, credentials, renewal)
    limits = Limits(settings.connect_seconds, settings.idle_seconds)
    pins = Pins()
    connections = Connections(wallet, pins, limits, settings.outbound_allow, settings.outbound_ca_file)
    purse = Purse(store, credentials)

    def changed(credential_id: str) -> None:
        connections.changed(credential_id)
        purse.changed(credential_id)

    vaults = Vaults(store, now, changed)
    connecting = account_flow(settings, store, vaults)
    reach = settings.outbound_allow, settings.outbound_ca_file
    validation = Validation(session, store, vaults, wallet, connections, *reach)
    executions = Executions(settings.call_seconds)
    replicas = Replicas(settings.replicas, settings.tls_dir)
    tools = Tools(connections, executions, audit, replicas, pins)
    refusals, uses = Refusals(Audit(session)), Uses(audit)
    egress = egress_door(settings, purse, uses, refusals)
    git = git_door(settings, wallet, audit, refusals)
    doors: dict[str, Door] = {"git": git, "egress": egress}
    tickets = Tickets(time.monotonic)
    listener = Listener(doors, tickets)
    reception = Reception(doors, tickets, listener, egress, settings.door_address)

    def revoked(session_id: str, below_epoch: int) -> None:
        store.forget(session_id, below_epoch)
        if below_epoch == 0:  # the session has ended; a newer epoch takes over what runs
            tools.end_session(session_id)
            refusals.forget(session_id)
            purse.forget(session_id)
            reception.end_session(session_id)
            git.forget(session_id)

    grants = Grants(session, revoked, vouched=True)
    server = serving.Server(settings)
    servicer = VaultProxy(grants, tools, vaults, reception, connecting, validation)
    add_VaultProxyServiceServicer_to_server(servicer, server.grpc)
    async with asyncio.TaskGroup() as tasks:
        tellers = audit.tell(), refusals.tell_on(), uses.keep_turning()
        behind = [
            tasks.create_task(each)
            for each in (grants.watch(), store.keep(), connections.keep_tidy(), purse.keep_tidy(), *tellers)
        ]
        try:
            await listener.start(settings.door_listen, settings.tls_dir)
            await server.start(NAME)
            yield server
        finally:
            await server.stop()
            await listener.stop()
            await executions.close()
            await connections.close()
            await renewal.close()
            uses.turn()
            await asyncio.gather(audit.flush(), refusals.flush())
            for task in behind:
                task.cancel()
    await store.close()
    await replicas.close()
    await channel.close()

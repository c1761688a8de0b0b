"""Puts the service together, and takes it apart again in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import add_VaultProxyServiceServicer_to_server
from services.kit import asked, channels, serving
from services.kit.grants import Grants
from services.vault_proxy import stores
from services.vault_proxy.audit import Audit
from services.vault_proxy.connecting import Connecting
from services.vault_proxy.credentials import Credentials
from services.vault_proxy.doors.assembly import Doors
from services.vault_proxy.executions import Executions
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


def now() -> str:
    """Returns the time in RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def account_flow(settings: Settings, store: CredentialStore, vaults: Vaults) -> Connecting:
    """Makes what connects accounts, when it is needed."""
    reach = settings.outbound_allow, settings.outbound_ca_file
    document = settings.oauth_client_url or ""
    return Connecting(lambda accounts: accounts(store, vaults, time.time, *reach, document))


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[serving.Server]:
    """Serves as long as the context lasts. At its end calls may finish, and uses of credentials are told."""
    channel = channels.connect(settings.session_address, settings.tls_dir, pinned=settings.pinned)
    session = SessionServiceStub(channel)
    store = stores.make(settings)
    credentials, audit = Credentials(store, now), Audit(session)
    renewal = Renewal(store, credentials, audit, time.time, settings.outbound_allow, settings.outbound_ca_file)
    wallet = Wallet(store, credentials, renewal)
    limits = Limits(settings.connect_seconds, settings.idle_seconds)
    pins = Pins()
    connections = Connections(wallet, pins, limits, settings.outbound_allow, settings.outbound_ca_file)
    doors = Doors(settings, session, store, credentials, wallet, audit)

    def changed(credential_id: str) -> None:
        connections.changed(credential_id)
        doors.changed(credential_id)

    vaults = Vaults(store, now, changed)
    connecting = account_flow(settings, store, vaults)
    reach = settings.outbound_allow, settings.outbound_ca_file
    validation = Validation(session, store, vaults, wallet, connections, *reach)
    executions = Executions(settings.tool_seconds)
    replicas = Replicas(settings.replicas, settings.tls_dir)
    tools = Tools(connections, executions, audit, replicas, pins)

    def revoked(session_id: str, below_epoch: int) -> None:
        store.forget(session_id, below_epoch)
        if below_epoch == 0:  # the session has ended; a newer epoch takes over what runs
            tools.end_session(session_id)
            doors.end_session(session_id)

    grants = Grants(session, revoked, vouched=True, resumed=doors.doubt)
    server = serving.Server(settings, asked.callers(session))
    servicer = VaultProxy(grants, tools, vaults, doors.reception, connecting, validation)
    add_VaultProxyServiceServicer_to_server(servicer, server.grpc)
    async with asyncio.TaskGroup() as tasks:
        kept = grants.watch(), store.keep(), connections.keep_tidy(), audit.tell(), *doors.behind()
        behind = [tasks.create_task(each) for each in kept]
        try:
            await doors.start()
            await server.start(NAME)
            yield server
        finally:
            await server.stop()
            await doors.stop()
            await executions.close()
            await connections.close()
            await renewal.close()
            await asyncio.gather(audit.flush(), doors.flush())
            for task in behind:
                task.cancel()
    await store.close()
    await replicas.close()
    await channel.close()

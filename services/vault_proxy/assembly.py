"""Puts the service together, and takes it apart again in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import add_VaultProxyServiceServicer_to_server
from services.kit import channels, serving
from services.kit.grants import Grants
from services.vault_proxy import stores
from services.vault_proxy.audit import Audit
from services.vault_proxy.connecting import Connecting
from services.vault_proxy.credentials import Credentials
from services.vault_proxy.executions import Executions
from services.vault_proxy.mcp.connections import Connections, Limits
from services.vault_proxy.renewal import Renewal
from services.vault_proxy.server import NAME, VaultProxy
from services.vault_proxy.settings import Settings
from services.vault_proxy.tools import Tools
from services.vault_proxy.vaults import Vaults
from services.vault_proxy.wallet import Wallet


def now() -> str:
    """Returns the time in RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


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
    connections = Connections(wallet, limits, settings.outbound_allow, settings.outbound_ca_file)
    vaults = Vaults(store, now, connections.changed)
    connecting = Connecting(
        lambda accounts: accounts(
            store, vaults, time.time, settings.outbound_allow, settings.outbound_ca_file, settings.oauth_client_url
        )
    )
    executions = Executions(settings.call_seconds)
    tools = Tools(connections, executions, audit)

    def revoked(session_id: str, below_epoch: int) -> None:
        store.forget(session_id, below_epoch)
        if below_epoch == 0:  # the session has ended; a newer epoch takes over what runs
            tools.end_session(session_id)

    grants = Grants(session, revoked)
    server = serving.Server(settings)
    add_VaultProxyServiceServicer_to_server(VaultProxy(grants, tools, vaults, connecting), server.grpc)
    async with asyncio.TaskGroup() as tasks:
        behind = [
            tasks.create_task(each) for each in (grants.watch(), store.keep(), audit.tell(), connections.keep_tidy())
        ]
        try:
            await server.start(NAME)
            yield server
        finally:
            await server.stop()
            await executions.close()
            await connections.close()
            await renewal.close()
            await audit.flush()
            for task in behind:
                task.cancel()
    await store.close()
    await channel.close()

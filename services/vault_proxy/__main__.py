"""Starts the service: `python -m services.vault_proxy`."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import resource
import sys
import time

from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import add_VaultProxyServiceServicer_to_server
from services.kit import channels, serving
from services.vault_proxy import stores
from services.vault_proxy.audit import Audit
from services.vault_proxy.executions import Executions
from services.vault_proxy.grants import Grants
from services.vault_proxy.mcp.connections import Connections, Limits
from services.vault_proxy.server import NAME, VaultProxy
from services.vault_proxy.settings import Settings
from services.vault_proxy.tools import Tools
from services.vault_proxy.vaults import Vaults

PR_SET_DUMPABLE = 4
ON_FIRST_USE = (
    "services.vault_proxy.mcp.connection",
    "services.vault_proxy.stores.hashicorp.login",
    "services.vault_proxy.stores.memory",
)


def keep_memory_private() -> None:
    """Leaves no core dump, and lets no other process of this user read the memory: secrets are in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def now() -> str:
    """Returns the time in RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def run(settings: Settings) -> None:
    """Serves until SIGTERM, then ends what runs."""
    keep_memory_private()
    channel = channels.connect(settings.session_address, settings.tls_dir)
    session = SessionServiceStub(channel)
    store = stores.make(settings)
    vaults = Vaults(store, now)
    limits = Limits(settings.connect_seconds, settings.idle_seconds)
    connections = Connections(vaults, limits, settings.outbound_allow, settings.outbound_ca_file)
    executions, audit = Executions(settings.call_seconds), Audit(session)
    tools = Tools(connections, executions, audit)

    def revoked(session_id: str, below_epoch: int) -> None:
        if below_epoch == 0:  # the session has ended; a newer epoch takes over what runs
            tools.end_session(session_id)

    grants = Grants(session, revoked)
    server = serving.Server(settings)
    add_VaultProxyServiceServicer_to_server(VaultProxy(grants, tools, vaults), server.grpc)
    async with asyncio.TaskGroup() as tasks:
        behind = [tasks.create_task(each) for each in (grants.watch(), audit.tell(), connections.keep_tidy())]
        await server.start(NAME)
        await serving.until_signal()
        await server.stop()
        await executions.close()
        await connections.close()
        await audit.flush()
        for task in behind:
            task.cancel()
    await store.close()
    await channel.close()


if __name__ == "__main__":
    if "--check" in sys.argv:
        for module in ON_FIRST_USE:
            importlib.import_module(module)
    serving.main("vault_proxy", Settings, run)

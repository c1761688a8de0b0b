"""A running vault_proxy with its real peers: OpenBao, MCP servers, and a session service on the wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.openbao import issuer_key_file
from handmesh.sandbox.v1.tool_pb2 import ToolResult
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.session.v1.session_pb2_grpc import add_SessionServiceServicer_to_server
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit import ids, settings
from services.kit.channels import connect
from services.kit.key_file import KeyFile
from services.vault_proxy.assembly import running
from services.vault_proxy.settings import Settings
from tests.support.mesh_server import Served, served
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.session_peer import GRANT_KEY, NAME, SessionPeer
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server

ONCE = (("handmesh.vault_proxy.v1.VaultProxyService", "Execute"),)
TOKEN = "canary+T0ken/for=tests~01"


@dataclass
class Shop:
    """The demo's MCP server as a process."""

    url: str
    calls_url: str
    process: subprocess.Popen[bytes]
    token: str = TOKEN

    @property
    def origin(self) -> str:
        """What a credential for it is bound to."""
        return self.url.removesuffix("/mcp")

    def calls(self, tool: str) -> list[dict[str, Any]]:
        """Returns the arguments of the calls of a tool that really came."""
        with urllib.request.urlopen(self.calls_url) as answer:
            return [call["arguments"] for call in json.load(answer)["calls"] if call["tool"] == tool]

    def stop(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


def start_shop(directory: Path, listen: str = "127.0.0.1:0", token: str = TOKEN) -> Shop:
    """Starts one and waits until it is ready."""
    file = directory / "shop-token"
    file.write_text(token + "\n")
    command = [sys.executable, "-P", "-m", "handmesh.demo_mcp", "--listen", listen, "--token-file", str(file)]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    return Shop(ready["url"], ready["calls_url"], process, token)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The run's shop: shared, so a test counts calls by arguments of its own."""
    started = start_shop(tmp_path_factory.mktemp("shop"))
    yield started
    started.stop()


@dataclass
class Proxy:
    """A running vault_proxy, seen from its callers."""

    harness: VaultProxyServiceStub
    client: VaultProxyServiceStub
    peer: SessionPeer
    address: str
    client_address: str
    tls: Path
    stop: Callable[[], Any] = field(repr=False)

    async def tools(self, grant: str, refresh: bool = False) -> pb.ListToolsResponse:
        """Lists a session's tools."""
        return await self.harness.ListTools(pb.ListToolsRequest(refresh=refresh), metadata=((GRANT_KEY, grant),))

    async def execute(
        self,
        grant: str,
        name: str,
        arguments: Any = None,
        execution_id: str | None = None,
        attach_only: bool = False,
        offered: int = 0,
    ) -> ToolResult:
        """Calls a tool."""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        request = pb.ExecuteRequest(
            name=name, input=text, execution_id=execution_id, attach_only=attach_only, offered_position=offered
        )
        return (await self.harness.Execute(request, metadata=((GRANT_KEY, grant),))).result

    async def watch(self, grant: str, execution_id: str, offset: int = 0) -> AsyncIterator[pb.WatchExecutionResponse]:
        """Follows a call."""
        request = pb.WatchExecutionRequest(execution_id=execution_id, offset=offset)
        async for each in self.harness.WatchExecution(request, metadata=((GRANT_KEY, grant),)):
            yield each

    async def cancel(self, grant: str, execution_id: str) -> None:
        """Cancels a call."""
        request = pb.CancelExecutionRequest(execution_id=execution_id)
        await self.harness.CancelExecution(request, metadata=((GRANT_KEY, grant),))


Start = Callable[..., AbstractAsyncContextManager[Proxy]]


@pytest.fixture
async def session_peer(tmp_path: Path) -> AsyncIterator[tuple[SessionPeer, Served]]:
    """The session service's place, taken by a peer."""
    peer = SessionPeer()
    add = lambda to: add_SessionServiceServicer_to_server(peer, to)  # noqa: E731
    async with served(tmp_path, "session", add, NAME) as it:
        peer.clients = KeyFile(tmp_path / "api_keys.json")
        yield peer, it


@pytest.fixture
def start(session_peer: tuple[SessionPeer, Served]) -> Start:
    """Starts vault_proxy with settings of the test's own: `async with start(HANDMESH_STORE="memory") as proxy`."""
    peer, mesh = session_peer

    @asynccontextmanager
    async def started(**variables: str) -> AsyncIterator[Proxy]:
        environment = {
            "HANDMESH_LISTEN": "127.0.0.1:0",
            "HANDMESH_CLIENT_LISTEN": "127.0.0.1:0",
            "HANDMESH_TLS_DIR": str(mesh.tls / "vault_proxy"),
            "HANDMESH_SESSION_ADDRESS": mesh.address,
            "HANDMESH_STORE": "memory",
            "HANDMESH_OUTBOUND_ALLOW": "127.0.0.1",
        }
        values = settings.read(Settings, {**environment, **variables})
        if values.vault_approle_file is not None:  # as `OpenBaoServer.approle_file` places it
            peer.issuer_key_file = issuer_key_file(values.vault_approle_file.parent.parent / "openbao")
        async with AsyncExitStack() as stack:
            service = AsyncExitStack()
            stack.push_async_callback(service.aclose)
            server = await service.enter_async_context(running(values))
            address, client_address = server.addresses
            assert client_address is not None
            its = Served(address, client_address, mesh.tls, mesh.key)
            # As the harness calls: a call that may have run is not made again by the channel.
            harness = await stack.enter_async_context(connect(address, mesh.tls / "harness", once=ONCE))
            client = await stack.enter_async_context(its.as_client())
            if values.session_address == mesh.address:
                await peer.watched.wait()
            yield Proxy(
                VaultProxyServiceStub(harness),  # type: ignore[arg-type]
                VaultProxyServiceStub(client),  # type: ignore[arg-type]
                peer,
                address,
                client_address,
                mesh.tls,
                service.aclose,
            )

    return started


def vault_settings(bao: OpenBaoServer) -> dict[str, str]:
    """Returns the settings that point at a real OpenBao: for one start, because the login in them works once."""
    return {
        "HANDMESH_STORE": "hashicorp",
        "HANDMESH_VAULT_URL": bao.url,
        "HANDMESH_VAULT_APPROLE_FILE": str(bao.approle_file()),
    }


def put_credential(
    bao: OpenBaoServer, origin: str, value: str, vault_id: str | None = None, tenant: str = "default"
) -> str:
    """Stores a credential as an operator does by hand, and returns its vault."""
    vault_id = vault_id or ids.mint("vault")
    bao.operator.put_bearer(vault_id, ids.mint("cred"), origin, value, "by hand", tenant)
    return vault_id


@pytest.fixture
async def proxy(start: Start, openbao: OpenBaoServer) -> AsyncIterator[Proxy]:
    """A vault_proxy on the run's OpenBao, which may call loopback."""
    async with start(**vault_settings(openbao)) as started:
        yield started


@pytest.fixture
def shop_grant(proxy: Proxy, shop: Shop, openbao: OpenBaoServer) -> str:
    """A grant for the shop, whose token is in a vault of the session."""
    vault_id = put_credential(openbao, shop.origin, shop.token)
    return proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault_id,))


@pytest.fixture(params=["memory", pytest.param("openbao", marks=pytest.mark.vault)])
def store_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """Settings of each store, with a login that may write."""
    if request.param == "memory":
        return {}
    bao: OpenBaoServer = request.getfixturevalue("openbao")
    return vault_settings(bao)


@pytest.fixture
async def strange() -> AsyncIterator[StrangeServer]:
    """A server on loopback that answers anything with JSON."""
    async with strange_server(
        answer=lambda request: Reply(200, b"{}", {"Content-Type": "application/json"})
    ) as started:
        yield started

"""A mesh with an MCP server that wants a credential, and sessions that have woken."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.hands.world import World as Echo
from bench.hands.world import start as start_echo
from handmesh.demo.stage import SERVER, Stage, mesh_of_its_own, server_address, set_up
from handmesh.launcher.settings import MeshFiles
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.harness.adapters.vault_proxy import ONCE
from services.kit.channels import connect
from services.kit.grants import GRANT_KEY

TOOL, ARGUMENTS, INPUT = "weather", {"city": "Rome"}, '{"city": "Rome"}'


@dataclass(frozen=True)
class Woken:
    """A session that a harness has taken up."""

    session_id: str
    epoch: int
    grant: str


@dataclass(frozen=True)
class World:
    """What runs: the mesh, the server, and an echo. Stubs are a harness's."""

    stage: Stage
    echo: Echo
    session: Any
    vault_proxy: Any

    @property
    def files(self) -> MeshFiles:
        """Where the mesh keeps its things."""
        return MeshFiles(self.stage.data_directory)

    async def woken(self) -> Woken:
        """Starts a session that may use the server, and wakes it."""
        config = config_pb2.SessionConfig(
            mcp_servers=[config_pb2.McpServer(name=SERVER, url=self.stage.server_url)], vault_ids=[self.stage.vault_id]
        )
        session = await self.stage.client.create_session(config)
        woke = event_pb2.Event(
            event_id="bench-woke", harness_woke=event_pb2.HarnessWoke(harness="messages", instance="bench")
        )
        request = session_pb2.EmitEventRequest(session_id=session.id, event=woke, expected_position=1)
        emitting = self.session.EmitEvent(request)
        epoch = (await emitting).position
        grant = next(value for key, value in await emitting.trailing_metadata() if key == GRANT_KEY)
        return Woken(session.id, epoch, grant)

    async def execute(self, grant: str, execution_id: str) -> None:
        """Calls the tool. Raises AioRpcError as the service answers, RuntimeError for a wrong answer."""
        asked = pb.ExecuteRequest(name=f"{SERVER}__{TOOL}", input=INPUT, execution_id=execution_id)
        said = (await self.vault_proxy.Execute(asked, metadata=((GRANT_KEY, grant),))).result.output
        if "Rome" not in said:
            raise RuntimeError(f"Execute said {said!r}")


@asynccontextmanager
async def start() -> AsyncIterator[World]:
    """Starts everything in a folder of its own."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handmesh-bench-")))
        server = server_address()
        mesh = await stack.enter_async_context(mesh_of_its_own(folder, server))
        stage = await stack.enter_async_context(set_up(folder, mesh, server))
        echo = await stack.enter_async_context(start_echo())
        files, ports = MeshFiles(stage.data_directory), stage.mesh.settings.ports
        session, vault_proxy = [
            await stack.enter_async_context(connect(ports.mesh(service), files.tls / "harness", once=ONCE))
            for service in ("session", "vault_proxy")
        ]
        yield World(stage, echo, SessionServiceStub(session), VaultProxyServiceStub(vault_proxy))  # type: ignore[arg-type]

"""The mesh that clients are tried on: as `handmesh up` starts it, with the scripted model, and a client of the SDK."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from handmesh.client import Client, Session, connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted
from handmesh.session.v1.config_pb2 import TOOL_POLICY_ACTION_ASK, CustomTool, SessionConfig, ToolPolicy
from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import Scope
from tests.support.cut_link import cut_link

SCRIPT = Path(__file__).with_name("script.yaml")
WRONG_KEY = "hmk_nobodys"
UNKNOWN_SESSION = "sess_00000000000000000000000000"

CONFIG = SessionConfig(
    custom_tools=[
        CustomTool(name="lookup_order", description="Tells how an order stands.", input_schema_json='{"type":"object"}')
    ],
    tool_policies=[ToolPolicy(pattern="bash", action=TOOL_POLICY_ACTION_ASK)],
)
"""As the programs make their sessions, for one that the SDK sees through."""


@dataclass(frozen=True)
class Ground:
    """A running mesh, and its client."""

    mesh: Mesh
    client: Client

    @property
    def port(self) -> int:
        """Where the session service is, on this machine."""
        return self.mesh.settings.ports.session

    @property
    def key(self) -> str:
        """The key of the mesh's clients."""
        return self.mesh.files.api_key.read_text().strip()

    @property
    def ca_file(self) -> Path:
        """The authority of the mesh."""
        return self.mesh.files.tls / "session" / "ca.pem"

    @property
    def other_ca_file(self) -> Path:
        """An authority that signs none of its services."""
        return self.mesh.files.tls / "doors" / "ca.pem"

    async def log(self, session_id: str) -> list[Event]:
        """Reads a session's log."""
        return [event async for event in self.client.session(session_id).events()]

    async def conversation(self, task: str) -> str:
        """Sees a session through to its turn's end, as the programs do; returns its id."""
        session = await self.client.create_session(CONFIG, task)
        async for event in session.watch():
            await _react(session, event)
            if event.HasField("turn_ended"):
                break
        return session.id

    async def key_of(self, tenant: str, scope: Scope.ValueType) -> str:
        """Makes a key, of the mesh's own tenant where none is named."""
        return (await self.client.api_keys.create("tried", scope, tenant=tenant)).key

    async def restart(self) -> None:
        """Kills the session service and starts it again."""
        await self.mesh.kill("session")
        await self.mesh.restart("session")

    @asynccontextmanager
    async def in_tls(self) -> AsyncIterator[int]:
        """A port of this machine behind which the session service speaks TLS, as it does to other machines."""
        identity = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        identity.load_cert_chain(
            self.mesh.files.tls / "session" / "cert.pem", self.mesh.files.tls / "session" / "key.pem"
        )
        identity.set_alpn_protocols(["h2"])
        async with cut_link(self.port, identity) as link:
            yield link.port


async def _react(session: Session, event: Event) -> None:
    if event.HasField("custom_tool_requested"):
        await session.answer_custom_tool(event.custom_tool_requested.tool_use_id, "order 7 is paid")
    elif event.HasField("tool_confirmation_requested"):
        await session.confirm(event.tool_confirmation_requested, True)


@asynccontextmanager
async def ground(data_directory: Path) -> AsyncIterator[Ground]:
    """Starts a mesh with ports of its own, and stops it at the end, with all hands that it has made."""
    settings = MeshSettings(data_directory, Scripted(SCRIPT), os.environ, Ports.free())
    async with await Mesh.start(settings) as mesh, connect(data_directory=mesh.files.data_directory) as client:
        yield Ground(mesh, client)
        for sandbox in await client.sandboxes():
            await client.release(sandbox.sandbox_id)

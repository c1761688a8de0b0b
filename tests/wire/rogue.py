"""A harness that does wrong: it has a good certificate, speaks the contracts by hand, and keeps to none of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from handmesh.client import Client
from handmesh.client.errors import HandmeshError, raised
from handmesh.launcher.mesh import Mesh
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit.channels import connect
from services.kit.ids import mint

GRANT = "x-handmesh-grant"
KIND = "rogue"  # its type


@dataclass
class Taken:
    """A session that it has taken up."""

    session_id: str
    epoch: int
    grant: str


class Rogue:
    """Its stubs, and the few steps that it takes rightly."""

    def __init__(self, mesh: Mesh, client: Client, session: grpc.aio.Channel, sandbox: grpc.aio.Channel) -> None:
        self.session = SessionServiceStub(session)
        self.sandbox = SandboxServiceStub(sandbox)
        self._client = client

    async def take_up(self, harness: str = KIND) -> Taken:
        """Makes a session of its type and takes it up, as it should."""
        made = await self._client.create_session(SessionConfig(harness=harness), "hello")
        woke = ev.Event(event_id=mint("woke"), harness_woke=ev.HarnessWoke(harness=harness, instance="rogue:1"))
        call = self.session.EmitEvent(pb.EmitEventRequest(session_id=made.id, event=woke, expected_position=2))
        epoch = (await call).position
        trailing = dict((await call.trailing_metadata()) or ())
        return Taken(made.id, epoch, str(trailing[GRANT]))

    async def say(self, session_id: str, epoch: int, **kind: Any) -> int:
        """Emits an event."""
        request = pb.EmitEventRequest(session_id=session_id, event=ev.Event(event_id=mint("ev"), **kind), epoch=epoch)
        answer = await self.session.EmitEvent(request)
        return int(answer.position)


@asynccontextmanager
async def rogue(mesh: Mesh, client: Client) -> AsyncIterator[Rogue]:
    """Connects one."""
    tls, ports = mesh.files.tls / "harness", mesh.settings.ports
    async with connect(ports.mesh("session"), tls) as session, connect(ports.mesh("sandbox"), tls) as sandbox:
        yield Rogue(mesh, client, session, sandbox)


async def refusal(call: Awaitable[Any]) -> HandmeshError:
    """Returns with what a call was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await call
    return raised(told.value)

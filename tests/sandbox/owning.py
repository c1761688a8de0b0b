"""A session service in this process, a sandbox service in another one, and what tests of owners say to both."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from tests.sandbox.service_process import Service as SandboxProcess
from tests.session.running import OTHER_KEY, make_settings, running
from tests.session.running import Service as SessionService
from tests.support.mesh_server import Served
from tests.support.nats import NatsServer

GRANT_KEY = "x-handmesh-grant"
HANDS = ("hand_attached", "hand_detached", "hand_transferred")


@dataclass(frozen=True)
class Brain:
    """A session, and its harness's standing."""

    id: str
    epoch: int
    grant: str

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """What its harness shows."""
        return ((GRANT_KEY, self.grant),)


@dataclass
class Ground:
    """Both services. `client` and `other` are clients of two tenants, `harness` is a harness of the mesh."""

    session: SessionService
    process: SandboxProcess
    client: Any
    other: Any
    harness: Any
    failpoints: Path

    async def brain(self, tenant_key: str = "", to: Sequence[str] = (), **hands: HandSpec) -> Brain:
        """Makes a session and takes it up. Its harness may hand over to those sessions."""
        config = SessionConfig(hands=hands, no_hands=not hands, hand_over_to=to)
        if tenant_key:
            answer = await self.session.other.CreateSession(_create(config))
            session_id = str(answer.session.session_id)
            woke = ev.Event(harness_woke=ev.HarnessWoke(harness="messages", instance="t"))
            call = self.session.harness.EmitEvent(
                _emit(session_id, woke, expected_position=answer.session.last_position)
            )
            position = (await call).position
            return Brain(session_id, position, dict(await call.trailing_metadata())[GRANT_KEY])
        session_id = await self.session.create(config=config)
        return Brain(session_id, *await self.session.wake(session_id))

    async def made(self, brain: Brain, hand: str = "main", environment: str = "process") -> str:
        """Makes a session's own hand, as its harness."""
        request = pb.ProvisionRequest(
            environment=environment,
            session_id=brain.id,
            request_id=f"{brain.id}/{hand}/1",
            epoch=brain.epoch,
            hand=hand,
        )
        answer = await self.harness.Provision(request, metadata=brain.shown)
        return str(answer.sandbox.sandbox_id)

    async def stands(self, name: str, environment: str = "process") -> str:
        """Makes a standing hand, as a client."""
        request = pb.ProvisionRequest(environment=environment, hand=name, description=f"what {name} is for")
        return str((await self.client.Provision(request)).sandbox.sandbox_id)

    async def attached(self, brain: Brain, hand: str, reference: str, read_only: bool = False) -> pb.Sandbox:
        """Attaches a standing hand, as its session's harness."""
        request = pb.ProvisionRequest(
            session_id=brain.id, epoch=brain.epoch, hand=hand, standing_hand=reference, read_only=read_only
        )
        return (await self.harness.Provision(request, metadata=brain.shown)).sandbox

    def bash(self, sandbox_id: str, command: str, execution_id: str, brain: Brain, name: str = "bash") -> Any:
        """Runs a command, as a session's harness."""
        given = {"command": command} if name == "bash" else {"file_path": command}
        request = pb.ExecuteRequest(
            sandbox_id=sandbox_id, name=name, input=json.dumps(given), execution_id=execution_id, epoch=brain.epoch
        )
        return self.harness.Execute(request, metadata=brain.shown)

    async def transfer(self, sandbox_id: str, to: str = "", by: Brain | None = None, **fields: Any) -> pb.Sandbox:
        """Gives a hand away, as its session's harness or as a client."""
        seconds = fields.pop("seconds", None)
        request = pb.TransferRequest(
            sandbox_id=sandbox_id, to_session_id=to or None, epoch=by.epoch if by else 0, **fields
        )
        if seconds is not None:
            request.settle_timeout.FromMilliseconds(round(seconds * 1000))
        if by is None:
            return (await self.client.Transfer(request)).sandbox
        return (await self.harness.Transfer(request, metadata=by.shown)).sandbox

    async def sandbox(self, sandbox_id: str) -> pb.Sandbox:
        """Returns what is known of a sandbox."""
        found = (await self.harness.ListSandboxes(pb.ListSandboxesRequest())).sandboxes
        return next(each for each in found if each.sandbox_id == sandbox_id)

    async def told(self, brain: Brain) -> list[ev.Event]:
        """Returns what a session's log says of hands that came and went."""
        return [event for event in await self.session.log(brain.id) if event.WhichOneof("kind") in HANDS]

    async def executions(self, sandbox_id: str) -> Mapping[str, pb.Execution]:
        """Returns what the hand itself knows that it ran."""
        answer = await self.client.ListExecutions(pb.ListExecutionsRequest(sandbox_id=sandbox_id))
        return {it.execution_id: it for it in answer.executions}

    def arm(self, point: str, action: str = "kill") -> None:
        """Lets the sandbox service be struck at a point."""
        (self.failpoints / point).write_text(action)

    async def struck(self) -> None:
        """Waits until the sandbox service is dead, and starts another."""
        assert self.process.process is not None
        await self.process.process.wait()
        await self.process.start()


def _create(config: SessionConfig) -> Any:
    from handmesh.session.v1 import session_pb2

    return session_pb2.CreateSessionRequest(config=config)


def _emit(session_id: str, event: ev.Event, **fields: Any) -> Any:
    from handmesh.session.v1 import session_pb2

    return session_pb2.EmitEventRequest(session_id=session_id, event=event, **fields)


def identities_in(data: Path) -> None:
    """Makes certificates for every service and two API keys, of the tenants `default` and `other`."""
    ensure_certificates(data / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    ensure_api_key(data)
    rows = json.loads((data / "api_keys.json").read_text())
    rows.append({"sha256": hashlib.sha256(OTHER_KEY.encode()).hexdigest(), "tenant": "other", "name": "other"})
    (data / "keys.json").write_text(json.dumps(rows))


@asynccontextmanager
async def ground(data: Path, nats: NatsServer | None = None) -> AsyncIterator[Ground]:
    """Runs both services, the log in memory unless there is NATS; at the end no sandbox is left."""
    identities_in(data)
    failpoints = data / "failpoints"
    failpoints.mkdir()
    (port,) = free_ports(1)
    async with running(make_settings(data, nats, "jetstream" if nats else "memory"), data) as session:
        process = SandboxProcess(
            data,
            HANDMESH_SESSION_ADDRESS=session.served.address,
            HANDMESH_CLIENT_LISTEN=f"127.0.0.1:{port}",
            HANDMESH_API_KEYS_FILE=str(data / "keys.json"),
            HANDMESH_FAILPOINTS=str(failpoints),
        )
        await process.start()
        key = (data / "client" / "api_key").read_text().strip()
        served = Served("", f"127.0.0.1:{port}", data / "tls", key)
        channels = [served.as_client(), served.as_client(OTHER_KEY), process.channel]
        stubs = [SandboxServiceStub(channel) for channel in channels]
        it = Ground(session, process, *stubs, failpoints)
        try:
            yield it
        finally:
            await _released(it)
            assert process.process is not None
            process.process.kill()
            await process.process.wait()
            for channel in channels:
                await channel.close()


async def _released(it: Ground) -> None:
    for stub in (it.client, it.other):
        for each in (await stub.ListSandboxes(pb.ListSandboxesRequest())).sandboxes:
            await stub.Release(pb.ReleaseRequest(sandbox_id=each.sandbox_id))


async def ended(*calls: Any) -> list[Any]:
    """Waits for calls; returns what each answered, or the error that it ended with."""
    return await asyncio.gather(*(_outcome(call) for call in calls))


async def _outcome(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error

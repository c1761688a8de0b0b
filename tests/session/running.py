"""A session service in this process, with real certificates, keys and gRPC, and what tests say to it."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.memory_pb2_grpc import add_MemoryServiceServicer_to_server
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub, add_SessionServiceServicer_to_server
from services.kit.callers import Callers
from services.kit.channels import raised
from services.kit.errors import ServiceError
from services.kit.key_file import KeyFile
from services.kit.serving import Server
from services.session.__main__ import SERVICES, parts
from services.session.blobs_core import Limits
from services.session.log import Store
from services.session.memories_server import MemoryServicer
from services.session.server import Parts, SessionServicer
from services.session.settings import Settings
from tests.support.mesh_server import Served
from tests.support.nats import NatsServer

OTHER_KEY = "hm_other"
QUOTA_BYTES = 90 * 1024 * 1024
MAX_BLOB_BYTES = 80 * 1024 * 1024
WOKE = ev.HarnessWoke(harness="messages", instance="test")


def make_settings(data: Path, nats: NatsServer | None, log: str = "jetstream") -> Settings:
    """Settings for a session service on free ports."""
    return Settings(
        listen="127.0.0.1:0",
        client_listen="127.0.0.1:0",
        tls_dir=data / "tls" / "session",
        api_keys_file=data / "keys.json",
        log_level="info",
        log=log,
        nats_url=nats.url if nats else "",
        nats_credentials_file=nats.session_credentials if nats else None,
        nats_monitor_url=nats.monitor_url if nats else None,
        throwaway=False,
        blob_quota_bytes=QUOTA_BYTES,
        max_blob_bytes=MAX_BLOB_BYTES,
    )


@dataclass
class Service:
    """A session service that runs, and stubs for those who call it."""

    parts: Parts
    store: Store
    served: Served
    client: Any
    other: Any
    harness: Any
    sandbox: Any
    vault_proxy: Any

    async def create(self, *events: ev.Event, **fields: Any) -> str:
        """Makes a session and returns its id."""
        answer = await self.client.CreateSession(pb.CreateSessionRequest(initial_events=events, **fields))
        return str(answer.session.session_id)

    async def emit(self, session_id: str, event: ev.Event, epoch: int = 0, **fields: Any) -> pb.EmitEventResponse:
        """Emits as the harness of an epoch, or without one as the client."""
        stub = self.harness if epoch else self.client
        request = pb.EmitEventRequest(session_id=session_id, event=event, epoch=epoch, **fields)
        answer: pb.EmitEventResponse = await stub.EmitEvent(request)
        return answer

    async def wake(self, session_id: str, expected_position: int | None = None, event_id: str = "") -> tuple[int, str]:
        """Takes a session up; returns the epoch and the grant."""
        if expected_position is None:
            expected_position = (await self.head(session_id)) or 0
        call = self.harness.EmitEvent(
            pb.EmitEventRequest(
                session_id=session_id,
                event=ev.Event(event_id=event_id, harness_woke=WOKE),
                expected_position=expected_position,
            )
        )
        answer = await call
        trailing = dict(await call.trailing_metadata())
        return answer.position, trailing["x-handmesh-grant"]

    async def head(self, session_id: str) -> int:
        """Returns the position of the last event."""
        answer = await self.client.GetSession(pb.GetSessionRequest(session_id=session_id))
        return int(answer.session.last_position)

    async def status(self, session_id: str) -> str:
        """Returns what the session does, without the prefix."""
        answer = await self.client.GetSession(pb.GetSessionRequest(session_id=session_id))
        return pb.SessionStatus.Name(answer.session.status).removeprefix("SESSION_STATUS_")

    async def events(self, session_id: str, **fields: Any) -> Sequence[ev.Event]:
        """Returns one page of events."""
        answer = await self.client.GetEvents(pb.GetEventsRequest(session_id=session_id, **fields))
        return list(answer.events)

    async def log(self, session_id: str) -> list[ev.Event]:
        """Returns the whole log, page by page."""
        found: list[ev.Event] = []
        start = 1
        while start:
            request = pb.GetEventsRequest(session_id=session_id, start_position=start, page_size=1000)
            answer = await self.client.GetEvents(request)
            found += answer.events
            start = answer.next_position
        return found


Run = Callable[..., AbstractAsyncContextManager[Service]]


@asynccontextmanager
async def running(settings: Settings, identities: Path) -> AsyncIterator[Service]:
    """Runs a session service until the end of the block."""
    make = importlib.import_module(f"services.session.logs.{settings.log}").make
    async with make(settings) as store, serving(settings, store, identities) as service:
        yield service


@asynccontextmanager
async def serving(settings: Settings, store: Store, identities: Path) -> AsyncIterator[Service]:
    """Serves a store until the end of the block."""
    limits = Limits(settings.blob_quota_bytes, settings.max_blob_bytes)
    whole = parts(
        store,
        settings.session_bytes,
        limits=limits,
        memory_bytes=settings.memory_quota_bytes,
        key_file=KeyFile(settings.api_keys_file),
    )
    server = Server(settings, Callers(whole.credentials))
    add_SessionServiceServicer_to_server(SessionServicer(whole), server.grpc)
    add_MemoryServiceServicer_to_server(MemoryServicer(whole.memories, whole.grants), server.grpc)
    await server.start(*SERVICES)
    keeping = asyncio.create_task(whole.run())
    key = (identities / "client" / "api_key").read_text().strip()
    served = Served(server.addresses[0], server.addresses[1] or "", identities / "tls", key)
    channels = [served.as_client(), served.as_client(OTHER_KEY)]
    channels += [served.as_service(name) for name in ("harness", "sandbox", "vault_proxy")]
    try:
        yield Service(whole, store, served, *(SessionServiceStub(channel) for channel in channels))
    finally:
        for channel in channels:
            await channel.close()
        whole.claims.drain()
        whole.watcher.drain()
        whole.grants.drain()
        await server.stop(grace=0.2)
        await whole.finish(hand_over=0.0)  # no harness comes back
        keeping.cancel()
        await asyncio.wait({keeping})


def message(text: str = "hello", event_id: str = "") -> ev.Event:
    """Makes a client's message."""
    content = json.dumps([{"type": "text", "text": text}])
    return ev.Event(event_id=event_id, message_received=ev.MessageReceived(content_json=content))


def note(event_id: str = "", size: int = 0) -> ev.Event:
    """Makes an event that means nothing to anybody, of about so many bytes."""
    custom = ev.Custom(type="test", payload_json='"' + "x" * size + '"')
    return ev.Event(event_id=event_id, ignorable=True, custom=custom)


def replied(*calls: str, read: int = 0, **fields: Any) -> ev.Event:
    """Makes a reply of the model with tool calls."""
    blocks = [{"type": "tool_use", "id": call, "name": "bash", "input": {}} for call in calls]
    return ev.Event(
        model_replied=ev.ModelReplied(
            content_json=json.dumps([{"type": "text", "text": "."}, *blocks]), read_position=read, **fields
        )
    )


def finished(call: str, event_id: str = "") -> ev.Event:
    """Makes a tool call's result."""
    event = ev.Event(event_id=event_id, tool_finished=ev.ToolFinished(tool_use_id=call))
    event.tool_finished.result.output = "ok"
    return event


def turn_ended(read: int, reason: int = 1) -> ev.Event:
    """Makes the end of a turn."""
    return ev.Event(turn_ended=ev.TurnEnded(reason=reason, read_position=read))


async def refusal(call: Any) -> ServiceError:
    """Awaits a call, or reads a stream to its end, which must fail; returns the error that the service raised."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return raised(error)
    raise AssertionError("the call did not fail")

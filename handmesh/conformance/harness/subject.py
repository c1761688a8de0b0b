"""What the checks are made with: the harness in question, sessions of its type, and a rival."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from handmesh.client import Client, HandmeshError, Session
from handmesh.client.errors import raised
from handmesh.conformance.checking import Worker, expect
from handmesh.conformance.harness.rules import breaches, kind_of
from handmesh.session.v1 import event_pb2, session_pb2
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub

RIVAL_SECONDS = 10.0
SANDBOX_GONE = "SANDBOX_GONE"


@dataclass(frozen=True)
class Words:
    """What is said to the harness: anything that it answers without a tool, and what makes it call `bash` with
    `{command}` and answer when it has the result."""

    plain: str
    call: str

    def run(self, command: str) -> str:
        """Returns the message that makes it run a command."""
        return self.call.replace("{command}", command)


class Rival:
    """Another harness of the type, which takes sessions away: `tls` is the directory of a harness's certificate."""

    def __init__(self, address: str, tls: Path) -> None:
        read = [(tls / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
        self._channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*read))
        self._stub = SessionServiceStub(self._channel)

    async def take(self, session: Session, harness: str) -> int:
        """Takes a session up, wherever its log ends; returns the epoch. Raises HandmeshError."""
        woke = event_pb2.HarnessWoke(harness=harness, instance="rival")
        event = Event(event_id=f"rival-{secrets.token_hex(8)}", harness_woke=woke)
        async with asyncio.timeout(RIVAL_SECONDS):
            while True:
                head = (await session.get()).last_position
                request = session_pb2.EmitEventRequest(session_id=session.id, event=event, expected_position=head)
                try:
                    answer = await self._stub.EmitEvent(request)
                    return int(answer.position)
                except grpc.aio.AioRpcError as error:
                    if raised(error).reason != "POSITION_CONFLICT":
                        raise raised(error) from None

    async def close(self) -> None:
        """Closes its channel."""
        await self._channel.close()


@dataclass
class Story:
    """A session of the type, and its log as it was read."""

    session: Session
    events: list[Event] = field(default_factory=list)

    async def send(self, text: str) -> int:
        """Says something; returns its position."""
        return await self.session.send(text)

    async def until(self, enough: Callable[[Sequence[Event]], bool]) -> None:
        """Reads on until the log, as it is now, is enough."""
        if enough(self.events):
            return
        async for event in self.session.watch(len(self.events) + 1):
            self.events.append(event)
            if enough(self.events):
                return

    async def kind(self, kind: str, after: int = 0) -> Event:
        """Reads on until there is an event of a kind behind a position; returns it."""

        def found(events: Sequence[Event]) -> Event | None:
            return next((event for event in events[after:] if kind_of(event) == kind), None)

        await self.until(lambda events: found(events) is not None)
        event = found(self.events)
        assert event is not None
        return event

    async def answered(self, position: int) -> Event:
        """Reads on until a turn has ended that has read a position; returns its end."""

        def ended(events: Sequence[Event]) -> Event | None:
            ends = (event for event in events if kind_of(event) == "turn_ended")
            return next((event for event in ends if event.turn_ended.read_position >= position), None)

        await self.until(lambda events: ended(events) is not None)
        event = ended(self.events)
        assert event is not None
        return event


@dataclass
class Subject:
    """The harness that is checked, and where."""

    client: Client
    harness: str
    words: Words
    worker: Worker
    rival: Rival | None = None

    @contextlib.asynccontextmanager
    async def story(self) -> AsyncIterator[Story]:
        """Begins a session of the type. At the end its log has to obey the rules; then it is ended and cleaned up."""
        story = Story(await self.client.create_session(SessionConfig(harness=self.harness)))
        try:
            yield story
            await self._look(story)
        finally:
            await story.session.end("checked")
            for sandbox in await self.client.sandboxes(story.session.id):
                await self.client.release(sandbox.sandbox_id)

    async def _look(self, story: Story) -> None:
        log = [event async for event in story.session.events()]
        found = breaches(log, self.harness)
        request = session_pb2.VerifySessionRequest(session_id=story.session.id)
        link = self.client.session_link
        seen = await link.call(self.client.session_stub.VerifySession, request)
        found += [f"{it.invariant} at {it.position}: {it.message}" for it in seen.violations]
        expect(not found, "; ".join(found))
        await self._ran_once(log)

    async def _ran_once(self, log: Sequence[Event]) -> None:
        """What hands have run is what the log says was started."""
        started = {event.tool_started.tool_use_id for event in log if kind_of(event) == "tool_started"}
        for sandbox_id in {event.sandbox_provisioned.sandbox_id for event in log} - {""}:
            try:
                ran = [it.execution_id for it in await self.client.executions(sandbox_id)]
            except HandmeshError as problem:
                if problem.reason == SANDBOX_GONE:
                    continue
                raise
            for execution_id in ran:
                expect(execution_id in started, f"{execution_id} ran in {sandbox_id}, and the log does not say so")

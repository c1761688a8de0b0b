"""One session as a client sees it: say something, follow what happens, answer what is asked."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator

import grpc

from handmesh.sandbox.v1.tool_pb2 import TOOL_OUTCOME_OK, ToolResult
from handmesh.session.v1.event_pb2 import (
    CustomToolAnswered,
    Event,
    MessageReceived,
    ToolConfirmationRequested,
    ToolConfirmed,
)
from handmesh.session.v1.session_pb2 import EmitEventRequest, Preview, WatchEventsRequest
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from mesh_client.cursor import Cursor
from mesh_client.errors import MeshError, raised
from mesh_client.link import BROKEN, HEALTHY_AFTER, Endurance, Link


class Session:
    """A handle on one session. All methods raise MeshError."""

    def __init__(self, link: Link, stub: SessionServiceStub, session_id: str) -> None:
        self._link = link
        self._stub = stub
        self.id = session_id

    def emit(self, event: Event) -> int:
        """Appends an event and returns its position. Said again with the same `event_id` it is appended once."""
        request = EmitEventRequest(session_id=self.id, event=event)
        return self._link.call(self._stub.EmitEvent, request).position

    def send(self, text: str) -> int:
        """Sends the agent a message; returns its position."""
        return self.emit(message(text))

    def answer(self, tool_use_id: str, output: str) -> int:
        """Answers a `CustomToolRequested`. The first answer counts; another one is refused (`TOOL_CALL_SETTLED`)."""
        result = ToolResult(output=output, outcome=TOOL_OUTCOME_OK)
        answered = CustomToolAnswered(tool_use_id=tool_use_id, result=result)
        return self.emit(Event(event_id=fresh("answer"), custom_tool_answered=answered))

    def decide(self, asked: ToolConfirmationRequested, allowed: bool, reason: str = "") -> int:
        """Says whether a tool call may run. The first decision counts; `reason` is told to the model."""
        decision = ToolConfirmed(
            tool_use_id=asked.tool_use_id, allowed=allowed, message=reason, call_hash=asked.call_hash
        )
        return self.emit(Event(event_id=fresh("decision"), tool_confirmed=decision))

    def watch(self, start: int = 1, previews: bool = False) -> Iterator[Event | Preview]:
        """Yields the events from `start` on, each once and in order, then each new one; never ends by itself.

        With `previews` also pieces of events to come. After a break it goes on behind the last event seen; previews of
        the meantime are lost.
        """
        cursor, endurance = Cursor(start), Endurance(self._link.patience)
        while True:
            request = WatchEventsRequest(session_id=self.id, start_position=cursor.next_position, previews=previews)
            problem, opened = MeshError("UNAVAILABLE", "", "the stream ended"), time.monotonic()
            stream = self._stub.WatchEvents(request, metadata=self._link.metadata)
            try:
                for page in stream:
                    endurance.renew()
                    yield from cursor.news(page.events)
                    yield from page.previews
            except grpc.RpcError as error:
                problem = raised(error)
            finally:
                stream.cancel()
            if problem.code not in BROKEN and problem.reason != "READER_SLOW":
                raise problem
            if time.monotonic() - opened > HEALTHY_AFTER:
                endurance.renew()
            endurance.wait(problem)


def message(text: str) -> Event:
    """Makes a message to the agent, with an id of its own."""
    content = json.dumps([{"type": "text", "text": text}])
    return Event(event_id=fresh("message"), message_received=MessageReceived(content_json=content))


def fresh(what: str) -> str:
    """Names an event, or a request, so that it can be said again after a lost answer."""
    return f"{what}-{secrets.token_hex(12)}"

"""Others over `SessionService`: sessions that a session starts, writes to, waits for and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

import grpc

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event, MessageReceived
from handmesh.session.v1.session_pb2 import (
    CreateSessionRequest,
    EndSessionRequest,
    GetEventsRequest,
    GetSessionRequest,
    SendMessageRequest,
    Session,
    WatchEventsRequest,
)
from services.harness.adapters.session import RemoteLog
from services.harness.blocks import MAX_OPENED_BYTES, references
from services.harness.mesh.sessions import AT_WORK
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY

CALL_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 30.0  # of a wait in which nothing is heard
BROKEN_SECONDS = 0.5  # until a watch that broke off is begun anew

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

T = TypeVar("T")


class RemoteOthers:
    """Other sessions, on the other side of a channel (see `Others`)."""

    def __init__(self, stub: SessionServiceAsyncStub) -> None:
        self._stub = stub

    async def get(self, session_id: str) -> Session:
        """Returns a session."""
        request = GetSessionRequest(session_id=session_id)
        return (await _answered(self._stub.GetSession(request, timeout=CALL_SECONDS))).session

    async def at_rest(self, session_id: str, seconds: float) -> Session:
        """Waits until a session is not at work (see `Others.at_rest`). Keeps nothing of what it hears."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            found = await self.get(session_id)
            left = deadline - asyncio.get_running_loop().time()
            if found.status not in AT_WORK or left <= 0:
                return found
            await self._hear(session_id, found.last_position + 1, min(left, LOOK_AGAIN_SECONDS))

    async def _hear(self, session_id: str, position: int, seconds: float) -> None:
        """Waits until a turn may have ended, or some time has passed."""
        watch = self._stub.WatchEvents(WatchEventsRequest(session_id=session_id, start_position=position))
        try:
            async with asyncio.timeout(seconds):
                async for answer in watch:
                    if any(event.WhichOneof("kind") in _RESTS for event in answer.events):
                        return
        except TimeoutError:
            return
        except grpc.aio.AioRpcError:
            await asyncio.sleep(min(seconds, BROKEN_SECONDS))  # what is wrong, the next look says
        finally:
            watch.cancel()

    async def last_reply(self, session_id: str) -> str:
        """Returns the content of the model's last answer, also one that lies in a blob."""
        request = GetEventsRequest(session_id=session_id, kinds=["model_replied"], descending=True, page_size=1)
        events = (await _answered(self._stub.GetEvents(request, timeout=CALL_SECONDS))).events
        content = events[0].model_replied.content_json if events else ""
        for block in references(content)[:1]:
            data = await RemoteLog(self._stub, session_id).get_blob(str(block["blob_id"]), MAX_OPENED_BYTES)
            content = content if data is None else data.decode("utf-8", "replace")
        return content

    async def started(self, session_id: str) -> list[str]:
        """Returns the ids of a session's children, newest first."""
        found: list[str] = []
        end = 0
        while True:
            request = GetEventsRequest(
                session_id=session_id, kinds=["child_started"], descending=True, page_size=1_000, end_position=end
            )
            page = await _answered(self._stub.GetEvents(request, timeout=CALL_SECONDS))
            found += [event.child_started.child_session_id for event in page.events]
            end = page.next_position
            if not end:
                return found

    async def start(self, grant: str, call: str, config: SessionConfig, content: str) -> Session:
        """Starts a child."""
        said = Event(event_id="first_message", message_received=MessageReceived(content_json=content))
        request = CreateSessionRequest(request_id=call, config=config, initial_events=[said])
        made = self._stub.CreateSession(request, timeout=CALL_SECONDS, metadata=_showing(grant))
        return (await _answered(made)).session

    async def send(self, grant: str, session_id: str, call: str, content: str) -> None:
        """Writes to a child or the parent."""
        request = SendMessageRequest(session_id=session_id, event_id=call, content_json=content)
        await _answered(self._stub.SendMessage(request, timeout=CALL_SECONDS, metadata=_showing(grant)))

    async def end(self, grant: str, session_id: str, reason: str) -> Session:
        """Ends a child."""
        request = EndSessionRequest(session_id=session_id, reason=reason)
        ended = self._stub.EndSession(request, timeout=CALL_SECONDS, metadata=_showing(grant))
        return (await _answered(ended)).session


_RESTS = frozenset(
    {"turn_ended", "budget_reached", "tool_confirmation_requested", "custom_tool_requested", "session_ended"}
)


def _showing(grant: str) -> tuple[tuple[str, str], ...]:
    return ((GRANT_KEY, grant),)


async def _answered(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None

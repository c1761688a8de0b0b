"""What hand-overs need of the session service: what sessions are, and that their logs say whose a hand is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import grpc

from handmesh.session.v1 import event_pb2, session_pb2
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit.channels import raised
from services.kit.identity import TENANT_KEY
from services.sandbox.owners_core import SessionSeen

CALL_SECONDS = 10.0
MAIN_HAND = "main"  # of a session whose configuration names no hand


@dataclass(frozen=True)
class Attached:
    """A hand joined the session."""

    hand: str
    sandbox_id: str
    generation: int
    from_session_id: str = ""
    read_only: bool = False
    description: str = ""


@dataclass(frozen=True)
class Detached:
    """A hand left the session."""

    hand: str
    sandbox_id: str
    reason: str


@dataclass(frozen=True)
class Transferred:
    """A hand goes to another session."""

    hand: str
    sandbox_id: str
    to_session_id: str
    generation: int


Said = Attached | Detached | Transferred


class Logs(Protocol):
    """The session service. Errors are ServiceErrors."""

    async def seen(self, session_id: str) -> SessionSeen:
        """Looks at a session. Raises Gone (`SESSION_NOT_FOUND`), Unavailable."""
        ...

    async def say(self, session_id: str, tenant: str, event_id: str, said: Said) -> None:
        """Appends to a session's log. Idempotent by the event's id.

        Raises Refused (`SESSION_ENDED`, `SESSION_ARCHIVED`, `SESSION_DAMAGED`), Gone, Full, Invalid and Unavailable.
        """
        ...


class SessionLogs:
    """The session service over its channel (see `Logs`)."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Takes a channel to the session service, as the sandbox service."""
        self._stub = SessionServiceStub(channel)

    async def seen(self, session_id: str) -> SessionSeen:
        """See `Logs.seen`."""
        try:
            request = session_pb2.GetSessionRequest(session_id=session_id)
            session = (await self._stub.GetSession(request, timeout=CALL_SECONDS)).session
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        config = session.config
        named = {name: spec.standing_hand for name, spec in config.hands.items()}
        return SessionSeen(
            config.tenant,
            session.status == session_pb2.SESSION_STATUS_ENDED,
            session.archived,
            named or ({} if config.no_hands else {MAIN_HAND: ""}),
            frozenset(server.name for server in config.mcp_servers),
            config.parent_session_id,
            frozenset(config.hand_over_to),
            frozenset(name for name, spec in config.hands.items() if spec.read_only),
        )

    async def say(self, session_id: str, tenant: str, event_id: str, said: Said) -> None:
        """See `Logs.say`."""
        request = session_pb2.EmitEventRequest(session_id=session_id, event=_event(event_id, said))
        try:
            await self._stub.EmitEvent(request, metadata=((TENANT_KEY, tenant),), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None


def _event(event_id: str, said: Said) -> event_pb2.Event:
    match said:
        case Attached():
            attached = event_pb2.HandAttached(
                hand=said.hand,
                sandbox_id=said.sandbox_id,
                generation=said.generation,
                from_session_id=said.from_session_id,
                read_only=said.read_only,
                description=said.description,
            )
            return event_pb2.Event(event_id=event_id, hand_attached=attached)
        case Detached():
            detached = event_pb2.HandDetached(hand=said.hand, sandbox_id=said.sandbox_id, reason=said.reason)
            return event_pb2.Event(event_id=event_id, hand_detached=detached)
        case Transferred():
            gone = event_pb2.HandTransferred(
                hand=said.hand,
                sandbox_id=said.sandbox_id,
                to_session_id=said.to_session_id,
                generation=said.generation,
            )
            return event_pb2.Event(event_id=event_id, hand_transferred=gone)

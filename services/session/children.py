"""What a harness may do with other sessions, for the session whose grant it shows: start children, write to them and to
the parent, end children.

A child is made in steps, each of which may be taken again by the same request: its id is minted, its entry in the index
names its parent, `ChildStarted` is appended to the parent's log, and then its own log begins. The parent's log is the
count: it takes no more `ChildStarted` than the limits say, whoever asks at the same time. What broke off in between is
gone on with by the same request, or cleared away (`orphans`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import ChildStarted, Event, MessageReceived, SessionStarted
from handmesh.session.v1.session_pb2 import CreateSessionRequest, SendMessageRequest, Session
from services.kit import failpoints
from services.kit.errors import Denied, Gone, Invalid, Refused
from services.session import codec, configs
from services.session.admission import MAX_BATCH_EVENTS, check_children
from services.session.children_rules import Used, bounded, check_depth
from services.session.claims import Claims
from services.session.core import Fact, WriteState, known
from services.session.emitters import SESSION
from services.session.families import PARENT_OVER, Families, over, started
from services.session.grants import Granted, Grants
from services.session.index import Index
from services.session.log import DeletedError
from services.session.requests import Claimed, Requests
from services.session.sessions import Sessions
from services.session.writer import Appended, Draft, Writer

MAX_MESSAGE_BYTES = 256 * 1024  # of a message between sessions
MAX_ANCESTORS = configs.MAX_DEPTH + 1  # that are asked for their limits


class Children:
    """Sessions of sessions. Every `grant` is the one that a harness shows."""

    def __init__(
        self,
        writer: Writer,
        sessions: Sessions,
        requests: Requests,
        index: Index,
        claims: Claims,
        grants: Grants,
        families: Families,
        now: Callable[[], int],
    ) -> None:
        self._writer = writer
        self._sessions = sessions
        self._requests = requests
        self._index = index
        self._claims = claims
        self._grants = grants
        self._families = families
        self._now = now

    async def create(self, grant: str, request: CreateSessionRequest) -> Session:
        """Starts a child of the grant's session (see `CreateSession`)."""
        granted = await self._grants.check(grant)
        if not request.request_id:
            raise Invalid(
                "ARGUMENT_INVALID", "a harness names the call that it starts a session for", field="request_id"
            )
        if len(request.initial_events) >= MAX_BATCH_EVENTS:
            raise Invalid("ARGUMENT_INVALID", f"at most {MAX_BATCH_EVENTS - 1} events", field="initial_events")
        facts = [_message(event, granted.session_id) for event in request.initial_events]
        verb = f"child\0{granted.session_id}"  # a call's id names one call of its own session only
        claimed = await self._requests.claim(granted.tenant, request.request_id, "child", verb)
        await self._sessions.carry(self._create(granted, request, facts, claimed))
        return await self._sessions.get(claimed.session_id, granted.tenant)

    async def send(self, grant: str, request: SendMessageRequest) -> Appended:
        """Writes to a child or the parent of the grant's session (see `SendMessage`)."""
        granted = await self._grants.check(grant)
        mine, its = granted.session_id, request.session_id
        if not await self._is_child(mine, its) and not await self._is_child(its, mine):
            raise Gone("SESSION_NOT_FOUND", f"no such session: {its}", session_id=its)
        # Named anew: an id that the writer chose could be one that the other session needs.
        name = hashlib.sha256(f"{mine}\0{request.event_id}".encode()).hexdigest()[:40] if request.event_id else ""
        event = Event(message_received=MessageReceived(content_json=request.content_json))
        event.event_id = f"from-{name}" if name else ""
        fact = _message(event, mine)
        return await self._sessions.carry(self._send(its, Draft([event], [fact])))

    async def end(self, grant: str, session_id: str, reason: str) -> Session:
        """Ends a child of the grant's session (see `EndSession`)."""
        granted = await self._grants.check(grant)
        if not await self._is_child(granted.session_id, session_id):
            raise Gone("SESSION_NOT_FOUND", f"no such session: {session_id}", session_id=session_id)
        return await self._sessions.end(session_id, reason, granted.tenant)

    # --- carried through ---

    async def _create(
        self, granted: Granted, request: CreateSessionRequest, facts: list[Fact], claimed: Claimed
    ) -> None:
        child, parent = claimed.session_id, granted.session_id
        there = None if claimed.fresh else await self._there(child)
        if there is None:
            await self._make(granted, request, facts, claimed)
        else:
            self._index.note(child, there)
            await self._claims.want(child, there)
        if over(await self._writer.current(parent)):
            await self._families.end(child, PARENT_OVER, None)

    async def _make(self, granted: Granted, request: CreateSessionRequest, facts: list[Fact], claimed: Claimed) -> None:
        child, parent = claimed.session_id, granted.session_id
        state = await self._writer.current(parent)
        used = Used(state.turns, sum(vars(state.usage).values()), state.cost_micros, state.tool_calls)
        config = bounded(request.config, granted.config, parent, used)
        configs.check(config)
        await self._sessions.check_stores(config)
        check_depth(await self._depths(state))
        name = f"child_started-{child}"
        if not known(state, name):
            check_children(state)
        await self._index.put(child, config, self._now(), request=claimed.key)
        event = Event(event_id=name, child_started=ChildStarted(child_session_id=child, tool_use_id=request.request_id))
        appended = await self._writer.append(parent, Draft([event], [codec.fact_of(event, SESSION)]))
        self._index.note(parent, appended.state)
        failpoints.hit("session.child_started")
        await self._sessions.begin(child, _beginning(config, request, facts))

    async def _there(self, child: str) -> WriteState | None:
        """Returns what the log of a session says that an earlier try has made; None when it came not so far."""
        try:
            return await self._writer.current(child)
        except DeletedError:
            raise
        except Gone:
            return None

    async def _depths(self, parent: WriteState) -> list[int]:
        """Returns how many levels each ancestor of a new session allows below it, the parent first."""
        depths, state = [parent.max_depth], parent
        while state.parent and len(depths) < MAX_ANCESTORS:
            try:
                state = await self._writer.current(state.parent)
            except Gone:
                message = "a session above was deleted"
                raise Refused("CHILD_LIMIT", message, limit="max_depth") from None
            depths.append(state.max_depth)
        return depths

    async def _is_child(self, parent: str, child: str) -> bool:
        """Says whether one session has started another: both logs have to say so."""
        if (await self._writer.current(child)).parent != parent:
            return False
        return started(await self._writer.current(parent), child)

    async def _send(self, session_id: str, draft: Draft) -> Appended:
        appended = await self._sessions.append(session_id, draft)
        await self._claims.want(session_id, appended.state, appended)
        return appended


def _message(event: Event, sender: str) -> Fact:
    """Makes the fact of what one session says to another. Raises for anything else, and for too much of it."""
    if event.WhichOneof("kind") != "message_received":
        shown = event.WhichOneof("kind") or "unknown"
        raise Denied("EMITTER_DENIED", f"a session may not emit {shown} for another one", kind=shown)
    if len(event.message_received.content_json.encode()) > MAX_MESSAGE_BYTES:
        message = f"a message between sessions has at most {MAX_MESSAGE_BYTES} bytes"
        raise Invalid("EVENT_TOO_LARGE", message, limit_bytes=MAX_MESSAGE_BYTES)
    event.message_received.from_session_id = sender
    return codec.fact_of(event, SESSION)


def _beginning(config: SessionConfig, request: CreateSessionRequest, facts: list[Fact]) -> Draft:
    began = Event(event_id="session_started", session_started=SessionStarted(config=config))
    return Draft([began, *request.initial_events], [codec.fact_of(began, SESSION), *facts])

"""What a session's end, and an interrupt, mean for the sessions that it has started, and for the one that started it.

A session that is over (it has ended, is archived or deleted) takes those with it that it has started, and they theirs.
It is over first: from then on its log takes no `ChildStarted`, so no child is missed. A child's end is told to its
parent's log behind it. Each step may be taken again; what a process that died has not done `orphans` finds.

A log that was imported says of children whatever its author likes. So a session is that one's child which its own log
names as its parent, and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from handmesh.session.v1.event_pb2 import ChildEnded, ChildRested, Event, InterruptRequested, SessionEnded
from services.kit import failpoints
from services.kit.errors import Full, Gone, Invalid, Refused, ServiceError
from services.kit.logs import Log as Journal
from services.session import codec
from services.session.claims import Claims
from services.session.core import Status, WriteState, name_of, status
from services.session.emitters import SESSION
from services.session.grants import Grants
from services.session.index import Index
from services.session.listing import Listing
from services.session.writer import Draft, Writer

AT_ONCE = 8  # children of one session that are ended or interrupted together
PARENT_OVER = "the session that started it has ended"
ENDED = "it ended"
NEVER_MADE = "it never came to be"
DELETED = "it was deleted"
_RESTS = frozenset({"turn_ended", "budget_reached", "tool_confirmation_requested", "custom_tool_requested"})
_AT_WORK = (Status.RUNNING, Status.RETRYING, Status.WAITING, Status.PAUSED)

_journal = Journal("services.session.families")


class Families:
    """Ends and interrupts sessions with all that they have started."""

    def __init__(self, writer: Writer, index: Index, listing: Listing, claims: Claims, grants: Grants) -> None:
        self._writer = writer
        self._index = index
        self._listing = listing
        self._claims = claims
        self._grants = grants

    async def end(self, session_id: str, reason: str, tenant: str | None) -> None:
        """Ends a session for good, and all below it. Raises Gone and Refused (`SESSION_ARCHIVED`, ...)."""
        event = Event(session_ended=SessionEnded(reason=reason))
        draft = Draft([event], [codec.fact_of(event, SESSION)], tenant=tenant)
        try:
            state = (await self._writer.append(session_id, draft)).state
        except Refused as refused:
            if refused.reason != "SESSION_ENDED":
                raise
            state = await self._writer.current(session_id)
        self._index.note(session_id, state)
        failpoints.hit("session.end_stored")
        await self._grants.revoke(session_id, below_epoch=0)
        await self.settle(session_id, state.children)
        if state.parent:
            await self.tell(state.parent, session_id, reason or ENDED)

    async def settle(self, session_id: str, children: Iterable[str]) -> None:
        """Ends the children of a session that is over. One that cannot be ended keeps none of the others."""
        for part in _parts(children):
            await asyncio.gather(*(self._end_child(session_id, child) for child in part))

    async def forget(self, session_id: str, parent: str, reason: str) -> None:
        """Settles the children of a session that is deleted, and tells its parent. Its log cannot be read any more."""
        await self._listing.sync()
        await self.settle(session_id, self._listing.children_of(session_id))
        if parent:
            await self.tell(parent, session_id, reason)

    async def tell(self, parent: str, child: str, reason: str) -> None:
        """Appends `ChildEnded` to the log of a child's parent, unless it is there or takes nothing any more."""
        try:
            state = await self._writer.current(parent)
            if child not in state.children or over(state) or state.damaged:
                return
            ended = ChildEnded(child_session_id=child, reason=reason)
            await self._tell(parent, Event(event_id=f"child_ended-{child}", child_ended=ended))
        except (Gone, Refused, Full, Invalid) as problem:
            _journal.warning("end of a child not told", session_id=parent, child=child, reason=problem.reason)

    async def rested(self, child: str, parent: str, kind: str, position: int) -> None:
        """Tells a child's parent that it has come to rest, so that whoever waits for it looks. May be lost."""
        rested = ChildRested(child_session_id=child, kind=kind, position=position)
        event = Event(event_id=f"child_rested-{child}-{position}", child_rested=rested)
        try:
            state = await self._writer.current(parent)
            if child in state.children and not over(state):
                await self._tell(parent, event)
        except ServiceError as problem:
            _journal.warning("rest of a child not told", session_id=parent, child=child, reason=problem.reason)

    async def _tell(self, session_id: str, event: Event) -> None:
        appended = await self._writer.append(session_id, Draft([event], [codec.fact_of(event, SESSION)]))
        self._index.note(session_id, appended.state)
        await self._claims.want(session_id, appended.state, appended)

    async def interrupt(self, session_id: str, state: WriteState, event_id: str) -> None:
        """Asks all sessions below one to stop their turns. `event_id` is what the request is called in their logs."""
        for part in _parts(state.children):
            await asyncio.gather(*(self.interrupt_child(session_id, child, event_id) for child in part))

    async def interrupt_child(self, parent: str, child: str, event_id: str) -> None:
        """Asks one to stop its turn, if it is in any, and those below it."""
        try:
            state = await self._writer.current(child)
            if state.parent != parent:
                return
            if status(state) in _AT_WORK and not state.archived:
                event = Event(event_id=event_id, interrupt_requested=InterruptRequested())
                draft = Draft([event], [codec.fact_of(event, SESSION)])
                appended = await self._writer.append(child, draft)
                state = appended.state
                self._index.note(child, state)
                await self._claims.want(child, state, appended)
            await self.interrupt(child, state, event_id)
        except (Gone, Refused, Full, Invalid) as problem:
            _journal.warning("child not interrupted", session_id=child, reason=problem.reason)

    async def _end_child(self, parent: str, child: str) -> None:
        try:
            if (await self._writer.current(child)).parent == parent:
                await self.end(child, PARENT_OVER, None)
        except (Gone, Refused, Full) as problem:  # it is not there yet, archived, damaged: `orphans` looks again
            _journal.warning("child not ended", session_id=child, reason=problem.reason)


def started(state: WriteState, session_id: str) -> bool:
    """Says whether this session has started that one, whether or not it has ended."""
    return int(state.names.get(name_of("child", session_id), 0)) > state.forked  # before, it was the original's


def over(state: WriteState) -> bool:
    """Says whether nothing that this session has started may go on."""
    return state.ended or state.archived


def rests(state: WriteState, kind: str) -> bool:
    """Says whether a session that another one has started came to rest with an event of this kind."""
    return bool(state.parent) and kind in _RESTS and status(state) not in (Status.RUNNING, Status.RETRYING)


def interrupt_id(session_id: str, time: int) -> str:
    """Names an interrupt of a session, by its emit time in nanoseconds, in the logs of those below it."""
    return f"interrupt-{session_id}-{time}"


def _parts(children: Iterable[str]) -> list[list[str]]:
    every = list(children)
    return [every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE)]

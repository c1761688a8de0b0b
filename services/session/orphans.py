"""Finds what processes that died have left half done between sessions and those that they started.

a child that never came to be     its parent's log counts it, or only the index names it: it is deleted
a child that outlives its parent  it is ended
an end that was not told          the parent's log has no `ChildEnded`
an interrupt that went no further than the parent
"""

from __future__ import annotations

from services.kit import ids
from services.kit.errors import Gone, ServiceError, Unavailable
from services.kit.logs import Log as Journal
from services.session.core import Status, WriteState, status
from services.session.families import ENDED, NEVER_MADE, PARENT_OVER, Families, interrupt_id, over
from services.session.lifecycle import Lifecycle
from services.session.listing import Child, Listing
from services.session.writer import Writer

UNMADE_SECONDS = 60.0  # after which a child whose making broke off is deleted

_journal = Journal("services.session.orphans")


class Orphans:
    """Looks after children."""

    def __init__(self, writer: Writer, listing: Listing, families: Families, lifecycle: Lifecycle) -> None:
        self._writer = writer
        self._listing = listing
        self._families = families
        self._lifecycle = lifecycle
        self._settled: set[str] = set()  # children that have ended, and whose parents know

    async def look(self) -> None:
        """Looks at all children for which there may be something to do, as the index tells."""
        await self._listing.sync()
        children = list(self._listing.children())
        self._settled &= {child.session_id for child in children}
        for child in children:
            if child.session_id in self._settled or not self._doubtful(child):
                continue
            try:
                await self._look_at(child)
            except Unavailable:
                raise
            except ServiceError as problem:
                _journal.warning("child not looked after", session_id=child.session_id, reason=problem.reason)

    def _doubtful(self, child: Child) -> bool:
        if child.row.archived:
            return False
        parent = self._listing.row(child.prefix, child.row.parent)
        unmade = child.row.position == 0 and ids.age_seconds(child.session_id) > UNMADE_SECONDS
        at_work = child.row.status not in (Status.IDLE, Status.ENDED, Status.DAMAGED)
        orphan = parent is None or parent.archived or parent.status == Status.ENDED
        return unmade or at_work or orphan or child.row.status == Status.ENDED

    async def _look_at(self, child: Child) -> None:
        parent = await self._state(child.row.parent)
        state = await self._state(child.session_id)
        if state is None:
            await self._clear(child)
        elif state.ended:
            if parent is not None and not over(parent):
                await self._families.tell(child.row.parent, child.session_id, ENDED)
            if parent is None or not parent.archived:
                self._settled.add(child.session_id)
        elif (parent is None or over(parent)) and not (state.archived or state.damaged):
            await self._families.end(child.session_id, PARENT_OVER, None)
            _journal.warning("child ended behind its parent", session_id=child.session_id)
        elif parent is not None and _missed(parent, state, child):
            event_id = interrupt_id(child.row.parent, parent.interrupt_time)
            await self._families.interrupt_child(child.row.parent, child.session_id, event_id)

    async def _clear(self, child: Child) -> None:
        """Deletes what never came to be: nothing is made under its id any more, and its parent is told."""
        if ids.age_seconds(child.session_id) <= UNMADE_SECONDS:
            return
        await self._lifecycle.clear(child.session_id, child.prefix, NEVER_MADE)
        _journal.warning("child that never came to be cleared", session_id=child.session_id)

    async def _state(self, session_id: str) -> WriteState | None:
        try:
            return await self._writer.current(session_id)
        except Gone:
            return None


def _missed(parent: WriteState, child: WriteState, it: Child) -> bool:
    """Says whether a child goes on with what it was at before its parent was interrupted."""
    return (
        parent.interrupt_time > child.message_time > 0
        and parent.interrupt_time > child.interrupt_time
        and status(child) in (Status.RUNNING, Status.RETRYING, Status.WAITING)
        and it.session_id in parent.children
    )

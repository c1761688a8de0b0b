"""What the session service does by itself, now and then: carries deletions through that broke off, mends the index,
clears away what was never made, offers sessions that were forgotten, and archives or deletes what the rules of
`retention` no longer keep.

Each replica does it; all of it may be done twice. None of it hurries.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence

from services.kit import metrics
from services.kit.errors import ServiceError, Unavailable
from services.kit.logs import Log as Journal
from services.session import counting, retention
from services.session.claims import Claims
from services.session.core import needs_harness
from services.session.index import Index, survey
from services.session.lifecycle import Lifecycle
from services.session.listing import Listing
from services.session.log import Log
from services.session.orphans import Orphans
from services.session.retention import Due, Rule
from services.session.writer import Writer

FIRST_SECONDS = 1.0  # after the start: a process that died may have left something
EVERY_SECONDS = 60 * 60.0
DOOMED_SECONDS = 10.0  # between two looks for deletions that broke off
FORGOTTEN_SECONDS = 5.0  # between two looks for sessions that nobody was told of
AT_ONCE = 16  # sessions that may be forgotten and are looked at together
UNMADE_SECONDS = 60 * 60  # after which a fork or an import that broke off is deleted
PAUSE_SECONDS = 0.05  # between two sessions

_journal = Journal("services.session.upkeep")


class Upkeep:
    """Looks after all sessions."""

    def __init__(
        self,
        log: Log,
        writer: Writer,
        index: Index,
        listing: Listing,
        lifecycle: Lifecycle,
        claims: Claims,
        orphans: Orphans,
        now: Callable[[], int],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._log = log
        self._writer = writer
        self._index = index
        self._listing = listing
        self._lifecycle = lifecycle
        self._claims = claims
        self._orphans = orphans
        self._now = now
        self._rules = rules

    async def run(self) -> None:
        """Looks after them for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_repeat(self.look, EVERY_SECONDS))
            tasks.create_task(_repeat(self.finish_deletions, DOOMED_SECONDS))
            tasks.create_task(_repeat(self.find_forgotten, FORGOTTEN_SECONDS))
            tasks.create_task(_repeat(self._orphans.look, FORGOTTEN_SECONDS))

    async def finish_deletions(self) -> None:
        """Carries deletions through that were begun. One that is under way elsewhere may be among them: each step of a
        deletion may be taken twice."""
        await self._listing.sync()
        for prefix, session_id in self._listing.doomed():
            await self._lifecycle.resume(session_id, prefix)
            _journal.info("deletion carried through", session_id=session_id)

    async def find_forgotten(self) -> None:
        """Offers the sessions that need a harness, and that nothing holds which would bring them one (see `Claims`).

        A process that died after something was appended, and before it said so, leaves such a session behind. The
        index knows it when the process that appended lives on, or once `look` has looked into all logs.
        """
        await self._listing.sync()
        if metrics.is_on():
            counting.sessions(row.status for _, _, row in self._listing.rows() if row.made and not row.archived)
            counting.waiting(await self._claims.waiting())
        waiting = self._listing.at_work()
        for start in range(0, len(waiting), AT_ONCE):
            part = waiting[start : start + AT_ONCE]
            found = await asyncio.gather(*map(self._claims.remind, part))
            for session_id in itertools.compress(part, found):
                _journal.warning("forgotten session offered", session_id=session_id)
            await asyncio.sleep(PAUSE_SECONDS)

    async def look(self) -> None:
        """Does all of it once."""
        await self._listing.sync()
        made = [(session_id, row) for _, session_id, row in self._listing.rows() if row.made]
        await survey(self._index, self._writer, self._log, made)
        await self.find_forgotten()
        await self._clear()
        for due in list(retention.due(self._rules, self._listing.rows(), self._now())):
            await self._let_go(due)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _clear(self) -> None:
        latest = self._now() - UNMADE_SECONDS * 1_000_000_000
        for prefix, session_id, row in tuple(self._listing.rows()):
            if not row.made and row.created < latest:
                await self._lifecycle.clear(session_id, prefix)
                _journal.info("broken copy deleted", session_id=session_id)

    async def _let_go(self, due: Due) -> None:
        """Archives or deletes a session, unless it has gone to work meanwhile."""
        try:
            state = await self._writer.current(due.session_id)
            if needs_harness(state):
                return
            if due.delete:
                await self._lifecycle.delete(due.session_id, None)
            else:
                await self._lifecycle.archive(due.session_id, False, None)
        except Unavailable:
            raise
        except ServiceError as problem:
            _journal.warning("session not let go", session_id=due.session_id, reason=problem.reason)
            return
        _journal.info("session let go", session_id=due.session_id, deleted=due.delete)


async def _repeat(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    pause = FIRST_SECONDS
    while True:
        await asyncio.sleep(pause)
        pause = seconds
        try:
            await work()
        except Unavailable:
            pause = FIRST_SECONDS  # the store is away

"""Appends to logs: one step from the rules to the store, whoever else writes at the same time.

The store alone decides who gets a position. What this process remembers of a session is a guess until an append
succeeds: a position that is taken, or a refusal by the rules, makes it read on and ask the rules again.

A little longer than a module should be: one class around one lock, which is read best in one piece.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from handmesh.session.v1.event_pb2 import Event
from services.kit.errors import Invalid, Refused, ServiceError, Unavailable
from services.kit.logs import Log as Journal
from services.session import codec, counting
from services.session.admission import MAX_SESSION_BYTES, admit, check_emitters, check_owner
from services.session.core import Fact, WriteState, fold, known
from services.session.integrity import SETTLING, Mark, Marks, fits
from services.session.log import DeletedError, Log, StoredBatch, TakenError, Wire
from services.session.replay import fold_batch
from services.session.snapshots import Snapshots

if TYPE_CHECKING:
    from services.session.tenancy import Tenancy

NOTE = "note"  # the topic on which replicas hear of each other's batches
NEVER = -1  # an era: nothing of the session was compared with the store yet
MAX_TRIES = 64  # appends of one call that lose their position to somebody else
MAX_SESSIONS = 4_096  # remembered
MAX_NAMES = 2_000_000  # remembered, over all sessions: about 200 MB
READ_BYTES = 4 * 1024 * 1024
READ_ON_SPAN = 64

_journal = Journal("services.session.writer")


@dataclass(frozen=True)
class Draft:
    """What somebody wants to append. `tenant` is whose sessions they may append to; None means all."""

    events: Sequence[Event]
    facts: Sequence[Fact]
    epoch: int = 0
    expected_position: int | None = None
    tenant: str | None = None


@dataclass(frozen=True)
class Appended:
    """Where the events are. `state` is what the log says, and goes on changing; `data` is the events as stored."""

    first_position: int
    time: int
    duplicate: bool
    state: WriteState
    data: bytes = field(default=b"", repr=False)
    last_position: int = 0  # of the events in `data`


@dataclass
class _Kept:
    """What is remembered of a session, and in which era it was last compared with the store.

    `mark` is what the log must at least hold; None before it was looked up. A state of an older era is made again from
    the log, which has to hold all that the state said: while the store was away its files may have been damaged.

    The lock protects the order of this process's own appends: without it each would lose its position to the next.
    """

    state: WriteState = field(default_factory=WriteState)
    era: int = NEVER
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    mark: Mark | None = None
    snapshot: int = 0  # position of the state that was kept last


class Writer:
    """Appends events to sessions, and knows what their logs say."""

    def __init__(
        self,
        log: Log,
        wire: Wire,
        marks: Marks,
        now: Callable[[], int],
        max_session_bytes: int = MAX_SESSION_BYTES,
        snapshots: Snapshots | None = None,
        tenancy: Tenancy | None = None,
    ) -> None:
        self._tenancy = tenancy
        self._log = log
        self._marks = marks
        self._max_session_bytes = max_session_bytes
        self._wire = wire
        self._now = now
        self._snapshots = snapshots
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._names = 0
        self._era = 0

    def doubt(self) -> None:
        """Compares every session with the store before anything is appended: the store was away, and may have lost
        what it had acknowledged. It would take our next position and leave a gap."""
        self._era += 1

    async def append(self, session_id: str, draft: Draft) -> Appended:
        """Appends, and returns once the events are durable. Raises what `EmitEvent` promises."""
        check_emitters(draft.facts)
        begins = draft.facts[0].kind == "session_started"
        if not begins:
            await self.check_tenant(session_id, draft.tenant)
        kept, began = self._keep(session_id), time.perf_counter()
        try:
            async with kept.lock:
                appended = await self._append(session_id, kept, draft)
        except ServiceError as problem:
            counting.refused(problem)
            if isinstance(problem, DeletedError):
                self._forget(session_id, kept)
            raise
        finally:
            self._forget_if_strange(session_id, kept)
        counting.appended(began, duplicate=appended.duplicate)
        if begins and self._tenancy is not None:
            self._tenancy.owns(session_id, appended.state.tenant)
        if any(fact.kind in SETTLING for fact in draft.facts):
            await self._marks.settle(session_id)
        return appended

    async def run(self) -> None:
        """Writes marks behind, for ever."""
        await self._marks.run()

    async def finish(self) -> None:
        """Writes the marks that are left."""
        await self._marks.flush()

    async def current(self, session_id: str, tenant: str | None = None) -> WriteState:
        """Returns what the log says, with every append that has returned, wherever it was made.

        Raises Gone (`SESSION_NOT_FOUND`) when there is no such session, or it is another tenant's.
        """
        await self.check_tenant(session_id, tenant)
        kept = self._keep(session_id)
        try:
            async with kept.lock:
                await self._catch_up(session_id, kept)
                state = kept.state  # the next one to hold the lock may make it anew
        except DeletedError:
            self._forget(session_id, kept)
            raise
        finally:
            self._forget_if_strange(session_id, kept)
        check_owner(session_id, state, tenant)
        return state

    async def check_tenant(self, session_id: str, tenant: str | None) -> None:
        """Raises Gone unless the session is the tenant's: in the same time for somebody else's and for none."""
        if tenant is not None and self._tenancy is not None:
            await self._tenancy.check(session_id, tenant)

    def remembered(self, session_id: str) -> WriteState | None:
        """Returns what the log said when this process looked last, if that may still hold."""
        kept = self._kept.get(session_id)
        return kept.state if kept is not None and kept.era == self._era and not kept.state.damaged else None

    async def _append(self, session_id: str, kept: _Kept, draft: Draft) -> Appended:
        fresh = kept.era != self._era
        if fresh:
            await self._catch_up(session_id, kept)
        for _ in range(MAX_TRIES):
            found = await self._find(session_id, kept.state, draft)
            if found is not None:
                if not fresh:
                    await self._catch_up(session_id, kept)  # a session that was deleted has no events
                return found
            try:
                if draft.facts[0].kind != "session_started":
                    check_owner(session_id, kept.state, draft.tenant)
                admit(
                    kept.state,
                    draft.facts,
                    epoch=draft.epoch,
                    expected_position=draft.expected_position,
                    max_bytes=self._max_session_bytes,
                )
            except ServiceError:
                if fresh:
                    raise
                await self._catch_up(session_id, kept)
                fresh = True
                continue
            try:
                return await self._store(session_id, kept, draft)
            except TakenError:
                await self._read_on(session_id, kept)
                fresh = True
        raise Unavailable("LOG_UNAVAILABLE", "too many others append to the session", retry_after=0.1)

    async def _find(self, session_id: str, state: WriteState, draft: Draft) -> Appended | None:
        """Finds out whether the events are in the log already, by the first one's id."""
        fact = draft.facts[0]
        position = known(state, fact.event_id)
        if not position:
            return None
        check_owner(session_id, state, draft.tenant)
        for batch in await self._log.read(session_id, position, position + 1, 1):
            event = codec.unseal(batch.data)[position - batch.first_position]
            same = (event.event_id, event.WhichOneof("kind") or "", event.emitter)
            if same != (fact.event_id, fact.kind, fact.emitter):
                raise Invalid("EVENT_INVALID", f"event_id {fact.event_id} names another event", field="event_id")
            return Appended(position, codec.nanoseconds(event.emit_time), True, state)
        raise Refused("SESSION_DAMAGED", f"the session's log has lost position {position}")

    async def _store(self, session_id: str, kept: _Kept, draft: Draft) -> Appended:
        state, first = kept.state, kept.state.head + 1
        now = max(self._now(), state.update_time)  # never back: slices are found by time
        emitters = [fact.emitter for fact in draft.facts]
        data = codec.seal(draft.events, emitters, first, now, draft.epoch)
        batch = StoredBatch(first, len(draft.events), state.digest, data)
        asyncio.get_running_loop().call_soon(getattr, batch, "digest")  # hashed while the store works
        await self._log.append(session_id, batch)
        names = len(state.names)
        counting.stored(session_id, draft.facts, state, now)
        for fact in draft.facts:
            fold(state, fact, now)
        state.digest = batch.digest
        state.size += len(data)
        self._weigh(session_id, kept, names)
        self._snapshot(session_id, kept)
        self._marks.note(session_id, Mark(state.head, state.digest, state.tenant))
        await self._wire.send(NOTE, session_id, codec.note(batch))
        return Appended(first, now, False, state, data, batch.last_position)

    async def _read_on(self, session_id: str, kept: _Kept) -> None:
        """Reads what took our position, in one step: whoever is slower here loses the next position too."""
        state, names, head = kept.state, len(kept.state.names), kept.state.head
        for batch in await self._log.read(session_id, head + 1, head + 1 + READ_ON_SPAN, READ_BYTES):
            fold_batch(state, batch, kept.mark or Mark())
        self._weigh(session_id, kept, names)
        if state.head >= head + READ_ON_SPAN:
            await self._catch_up(session_id, kept)

    async def _catch_up(self, session_id: str, kept: _Kept) -> None:
        """Reads what the log has beyond what is remembered, to its end."""
        damaged, era = kept.state.damaged, self._era
        mark = await self._least(session_id, kept)  # before the head: others append meanwhile
        state, names, cold = kept.state, len(kept.state.names), not kept.state.head
        last, snapshot = await self._look(session_id, cold=cold and kept.era == NEVER)
        end = last.last_position if last else 0
        if snapshot is not None and snapshot.head <= end:
            state = await self._resume(session_id, kept, snapshot, end, mark)
        while state.head < end and not state.damaged:
            batches = await self._log.read(session_id, state.head + 1, end + 1, READ_BYTES)
            state.damaged = not batches
            for batch in batches:
                fold_batch(state, batch, mark)
        if not mark.position <= state.head <= end or (last and state.head == end and state.digest != last.digest):
            state.damaged = True
            state.tenant = state.tenant or mark.tenant
        if state.damaged and not damaged:
            _journal.error(
                "log damaged", session_id=session_id, position=state.head, last_position=end, mark=mark.position
            )
        if cold and not state.damaged and state.head > mark.position:
            self._marks.note(session_id, Mark(state.head, state.digest, state.tenant))
        self._weigh(session_id, kept, names)
        kept.era = era
        self._snapshot(session_id, kept)

    async def _look(self, session_id: str, *, cold: bool) -> tuple[StoredBatch | None, WriteState | None]:
        """Returns the log's last batch, and for a session of which nothing is remembered its kept state."""
        if not cold or self._snapshots is None:
            return await self._log.head(session_id), None
        loading = asyncio.create_task(self._snapshots.load(session_id))
        try:
            return await self._log.head(session_id), await loading
        finally:
            loading.cancel()

    async def _resume(self, session_id: str, kept: _Kept, found: WriteState, end: int, mark: Mark) -> WriteState:
        """Takes up the state that was kept, if the log holds the batch with which it ends; else begins anew."""
        batches = await self._log.read(session_id, found.head, end + 1, READ_BYTES)
        marked = found.head != mark.position or fits(mark, found.head, found.digest)
        if marked and batches and batches[0].last_position == found.head and batches[0].digest == found.digest:
            kept.state, kept.snapshot = found, found.head
            for batch in batches[1:]:
                fold_batch(found, batch, mark)
        return kept.state

    def _snapshot(self, session_id: str, kept: _Kept) -> None:
        if self._snapshots is not None:
            kept.snapshot = self._snapshots.keep(session_id, kept.state, kept.snapshot)

    async def _least(self, session_id: str, kept: _Kept) -> Mark:
        """Says what the log must at least hold; forgets a state that is doubted, and remembers how far it came."""
        mark = kept.mark if kept.mark is not None else await self._marks.read(session_id)
        if kept.era != self._era and kept.state.head:
            state = kept.state
            if state.head > mark.position and not state.damaged:
                mark = Mark(state.head, state.digest, state.tenant)
            kept.state = WriteState()
            self._weigh(session_id, kept, len(state.names))
        kept.mark = mark
        return mark

    def _keep(self, session_id: str) -> _Kept:
        kept = self._kept.get(session_id)
        if kept is None:
            kept = self._kept[session_id] = _Kept()
            while len(self._kept) > 1 and (len(self._kept) > MAX_SESSIONS or self._names > MAX_NAMES):
                _, oldest = self._kept.popitem(last=False)
                self._names -= len(oldest.state.names)
        else:
            self._kept.move_to_end(session_id)
        return kept

    def _weigh(self, session_id: str, kept: _Kept, names_before: int) -> None:
        if self._kept.get(session_id) is kept:
            self._names += len(kept.state.names) - names_before

    def _forget(self, session_id: str, kept: _Kept) -> None:
        kept.era = -1
        if self._kept.get(session_id) is kept:
            del self._kept[session_id]
            self._names -= len(kept.state.names)

    def _forget_if_strange(self, session_id: str, kept: _Kept) -> None:
        if not (kept.state.head or kept.state.damaged) and self._kept.get(session_id) is kept:
            del self._kept[session_id]

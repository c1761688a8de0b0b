"""Offers sessions that need a harness to harnesses, and sees to it that none is forgotten.

Three things hold a session that needs a harness:

    the queue        waits for a harness; durable, shared by all replicas
    a claim          a harness has it, as long as its stream is open
    a timer          a harness wants it back at some time; durable, known to all replicas (`timers.py`)

A claim holds the queue's item, so every replica knows that somebody has the session. The item is removed only when a
claim ends and the log needs nobody. The log is read once more after that: what was appended meanwhile is seen then, and
what is appended later queues the session again. When this process dies, the replica that its harnesses come to inherits
the items of what they work on. The other items come back by themselves, and whoever takes one asks the other replicas
first whether a harness is with them by now (`holders.py`). What it should have queued and has not, in the moment
between an append or a removal and the queue, others find: `Upkeep` reminds of it.

A few lines longer than a module should be: who has a session is decided in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from handmesh.session.v1.event_pb2 import TakeoverCause
from services.kit import failpoints
from services.kit.errors import Gone, Unavailable
from services.kit.logs import Log as Journal
from services.session import counting
from services.session.bounded import Bounded
from services.session.core import WriteState, may_be_timed, needs_harness
from services.session.holders import Holders, Word
from services.session.log import HOLD_SECONDS, Registry, Wire, WorkItem, WorkQueue
from services.session.served import Room, Served
from services.session.streams import Claim, Newest, Offered, Stream, check, wants
from services.session.timers import Timer, Timers
from services.session.writer import Appended, Writer

TAKE_SECONDS = 5.0
REFUSED_SECONDS = 1.0  # until a session that a harness refused is offered again
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 60.0  # until one is for which a harness did nothing; doubled each time
TAKE_UP_SECONDS = 30.0  # that a harness has to take up what it was offered, before others are
HAND_OVER_SECONDS = 2.0  # that harnesses have to come to another replica when this one goes

_journal = Journal("services.session.claims")


class Claims:
    """Who works on what, as far as this process offers it."""

    def __init__(
        self, queue: WorkQueue, wire: Wire, registry: Registry, writer: Writer, now: Callable[[], int]
    ) -> None:
        self._queue = queue
        self._writer = writer
        self._now = now
        self._timers = Timers(registry, now, self._ring)
        self._holders = Holders(wire, self._answer)
        self._served = Served(wire, self._serving)
        self._claims: dict[str, Claim] = {}
        self._by_session: dict[str, Claim] = {}
        self._left: dict[str, Claim] = {}  # claims of streams that ended because this process does
        self._ended: Bounded[None] = Bounded()  # claims that were released
        self._newest = Newest()
        self._taken_away: Bounded[Stream] = Bounded()  # claims whose harness did nothing
        self._idle: Bounded[int] = Bounded()  # sessions for which a harness did nothing, how often
        self._causes: Bounded[TakeoverCause.ValueType] = Bounded()  # why each session's last claim ended
        self._streams: set[Stream] = set()
        self._handed_over = asyncio.Event()
        self._draining = False
        self._releasing: set[asyncio.Task[bool]] = set()  # that others were asked for

    def drain(self) -> None:
        """Ends all streams: this process ends. What was claimed stays so for a moment, for harnesses that come back."""
        self._draining = True
        for stream in self._streams:
            stream.end(Unavailable("DRAINING", "this process is going away; ask another"))

    async def finish(self, within: float = HAND_OVER_SECONDS) -> None:
        """Waits until harnesses have taken what they work on to other replicas, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._left:
                    self._handed_over.clear()
                    await self._handed_over.wait()

    async def run(self) -> None:
        """Holds what is claimed and rings timers, until cancelled."""
        stops = [await self._holders.listen(gap=self._writer.doubt), await self._served.listen()]
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._timers.run())
                tasks.create_task(self._hold())
        finally:
            for stop in stops:
                await stop()

    def count(self) -> None:
        """Lets it be counted how many harnesses and claims there are here."""
        counting.CLAIMS.watch(lambda: len(self._claims))
        counting.HARNESSES.watch(lambda: sum(1 for stream in self._streams if stream.harnesses))

    async def waiting(self) -> dict[str, int]:
        """Counts the sessions that wait for a harness, by harness type. A type that none waits for is left out."""
        return await self._queue.waiting()

    async def served(self) -> dict[str, Room]:
        """Returns which harness types are served, at whatever replica, and how much room there is."""
        return await self._served.everywhere()

    def cause(self, session_id: str) -> TakeoverCause.ValueType:
        """Says why the harness that had a session last has it no more, as far as this process knows."""
        if session_id in self._causes:
            return self._causes[session_id]
        return TakeoverCause.TAKEOVER_CAUSE_UNSPECIFIED

    def _serving(self) -> dict[str, Room]:
        found: dict[str, Room] = {}
        for stream in self._streams:
            for harness in stream.harnesses:
                found[harness] = found.get(harness, Room()) + Room(1, stream.room)
        return found

    async def _hold(self) -> None:
        while True:
            await asyncio.sleep(HOLD_SECONDS / 3)
            for claim in (*self._claims.values(), *self._left.values()):
                if claim.item is not None:
                    await claim.item.hold()
                if claim.due is not None and claim.due <= self._now():
                    with contextlib.suppress(Unavailable):  # then it is looked at again
                        await self._take_away(claim)

    async def _take_away(self, claim: Claim) -> None:
        """Offers a session to others that its harness was offered and has not taken up."""
        state = await self._state(claim.session_id)
        claim.due = None
        if claim.claim_id not in self._claims or state is None:
            return
        if not needs_harness(state) or state.last_step > claim.head:
            return
        _journal.warning("harness is idle", session_id=claim.session_id, instance=claim.stream.instance)
        self._unbind(claim, TakeoverCause.TAKEOVER_CAUSE_IDLE)
        claim.stream.idle(claim)
        self._ended[claim.claim_id] = None
        self._taken_away[claim.claim_id] = claim.stream
        await self._back(claim)

    async def want(self, session_id: str, state: WriteState, appended: Appended | None = None) -> None:
        """Sees to it that somebody is offered the session, and what was appended, if need be. Durable on return."""
        if needs_harness(state) and session_id not in self._by_session:  # a claim's end looks into the log again
            self._newest.note(session_id, appended)
            await self._queue.put(state.harness, session_id)

    async def offer(self, session_id: str) -> tuple[Offered, str]:
        """Does the same for whoever asks; says what was found, and the session's harness type. Raises Gone."""
        state = await self._writer.current(session_id)
        if not needs_harness(state):
            return Offered.NOT_NEEDED, state.harness
        if session_id in self._by_session:
            return Offered.CLAIMED, state.harness
        if not await self._queue.put(state.harness, session_id) and await self._holders.has(session_id):
            return Offered.CLAIMED, state.harness
        return Offered.OFFERED, state.harness

    async def remind(self, session_id: str) -> bool:
        """Queues a session whose log needs a harness, if neither the queue nor a timer has it; says whether it did."""
        state = await self._state(session_id)
        if state is None or not needs_harness(state) or session_id in self._by_session:
            return False
        return not await self._timers.has(session_id) and await self._queue.put(state.harness, session_id, timed=True)

    async def claim(
        self, capacity: int, harnesses: Sequence[str], working: Sequence[str], instance: str = ""
    ) -> AsyncIterator[Claim | None]:
        """Yields sessions for a harness, and None as a sign of life. Its end gives all of them to others.

        `working` are sessions that the harness is at work on already: each gets a claim again, which is yielded too,
        and whatever claim the same `instance` had is void. Raises Invalid for a capacity that is out of bounds.
        """
        check(capacity, harnesses)
        stream = Stream(capacity, instance, harnesses if capacity else ())
        counting.allow_types(stream.harnesses)
        self._streams.add(stream)
        pulls: list[asyncio.Task[None]] = []
        try:
            await asyncio.gather(*(self._bind(stream, session_id) for session_id in working))
            if capacity:
                pulls += [asyncio.create_task(self._pull(stream, harness)) for harness in harnesses]
            yield None
            while True:
                yield await stream.next_offer()
        finally:
            for pull in pulls:
                pull.cancel()
            await self._close(stream)

    async def release(self, claim_id: str, wake_time: int | None, refused: bool, session_id: str = "") -> bool:
        """Ends a claim, also a dead process's on `session_id`; says whether that is offered again. Raises Gone.

        Another replica's claim is ended there, a moment later.
        """
        if claim_id in self._ended:
            if (stream := self._taken_away.pop(claim_id, None)) is not None:
                stream.forgive(claim_id)
            return False
        claim = self._claims.get(claim_id)
        if claim is None and session_id and await self._holders.done(session_id, claim_id, wake_time, refused):
            return False
        claim = claim or await self._inherited(session_id)
        if claim is None:
            raise Gone("CLAIM_UNKNOWN", "the claim is not this server's, or not any more")
        self._unbind(claim, TakeoverCause.TAKEOVER_CAUSE_RETURNED)
        self._ended[claim_id] = None
        state = await self._state(claim.session_id)
        if state is None:
            return await self._finish(claim.session_id, claim.item, None)
        if refused:
            return await self._later(claim, state, self._now() + int(REFUSED_SECONDS * 1e9))
        if wake_time is not None and wake_time <= self._now():
            await self._back(claim)
            return True
        unseen = state.last_input > max(claim.head, state.last_step)
        if wake_time is not None and may_be_timed(state) and not unseen:
            return await self._later(claim, state, wake_time)
        if not needs_harness(state) or state.harness != claim.harness:
            return await self._finish(claim.session_id, claim.item, state)
        if max(state.last_input, state.last_deed) > claim.head:
            self._idle.pop(claim.session_id, None)
            await self._back(claim)
            return True
        times = self._idle.get(claim.session_id, 0)
        self._idle[claim.session_id] = times + 1
        _journal.warning("harness did nothing", session_id=claim.session_id, times=times + 1)
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**times)
        return await self._later(claim, state, self._now() + int(pause * 1e9))

    async def _inherited(self, session_id: str) -> Claim | None:
        """Returns a claim like the one that a dead process had, if nobody has one on the session now."""
        state = await self._state(session_id) if session_id else None
        if state is None or session_id in self._by_session or await self._holders.has(session_id):
            return None
        return Claim(session_id, state.harness, 0, await self._queue.inherit(state.harness, session_id), Stream(0, ""))

    # --- taking from the queue ---

    async def _pull(self, stream: Stream, harness: str) -> None:
        try:
            while True:
                await stream.has_room()
                try:
                    item = await self._queue.take(harness, TAKE_SECONDS)
                    if item is not None:
                        await self._offer(stream, harness, item)
                        await stream.pace()
                except Unavailable:
                    await asyncio.sleep(FIRST_PAUSE_SECONDS)
        except Exception as problem:
            stream.end(problem)  # and with it the claims

    async def _offer(self, stream: Stream, harness: str, item: WorkItem) -> None:
        session_id = item.session_id
        state = self._writer.remembered(session_id)
        if state is None or not needs_harness(state):
            state = await self._state(session_id)  # whoever queued it may be another replica
        wanted = state is not None and state.harness == harness and wants(state, item)
        if wanted and (item.again or item.timed) and await self._is_elsewhere(session_id, item):
            return
        claim = self._by_session.get(session_id)
        if claim is not None and claim.harness == harness:
            claim.item = item  # it came back though a harness has it
        elif state is None or not wanted:
            await self._finish(session_id, item, state)
        elif stream.full:
            await item.back()
        else:
            events = self._newest.take(session_id, state.head)
            now = self._now()
            due = now + int(TAKE_UP_SECONDS * 1e9)
            self._register(Claim(session_id, harness, state.head, item, stream, events, due))
            counting.claimed(state, now)

    async def _is_elsewhere(self, session_id: str, item: WorkItem) -> bool:
        """Says whether its harness went to another replica, which then has the item."""
        if session_id in self._by_session or self._holders.is_free(session_id):
            return False
        return await self._holders.has(session_id, item.handle)

    async def _ring(self, timer: Timer) -> None:
        state = await self._state(timer.session_id)
        if state is not None and may_be_timed(state):
            await self._queue.put(state.harness, timer.session_id, timed=True)

    async def _bind(self, stream: Stream, session_id: str) -> None:
        state = await self._state(session_id)
        if state is None or state.ended:
            return
        item = None
        if session_id not in self._by_session:
            if await self._holders.claim(session_id, stream.instance) not in (None, stream.instance):
                return
            item = await self._queue.inherit(state.harness, session_id)
        old = self._by_session.get(session_id)
        if old is not None:
            if old.stream.instance != stream.instance:
                return
            self._unbind(old)
            self._ended[old.claim_id] = None
            item = item or old.item
        self._register(Claim(session_id, state.harness, state.head, item, stream))

    def _answer(self, word: Word) -> str | None:
        """Answers another replica (see `Holders`)."""
        claim = self._by_session.get(word.session_id)
        if word.kind == "done":
            return self._done(word)
        if word.kind == "who":
            if claim is not None and word.handle:
                claim.item = self._queue.adopt(word.session_id, word.handle)
        else:
            for mine in (claim, self._left.get(word.session_id)):
                if mine is not None and mine.stream.instance == word.instance:
                    self._unbind(mine)
                    return word.instance
        return None if claim is None else claim.stream.instance

    def _done(self, word: Word) -> str | None:
        """Ends a claim of this replica's that was given back to another one."""
        claim = self._claims.get(word.claim_id)
        if claim is None and word.claim_id not in self._ended:
            return None
        task = asyncio.create_task(self.release(word.claim_id, word.wake_time, word.refused))
        self._releasing.add(task)
        task.add_done_callback(self._released)
        return claim.stream.instance if claim is not None else ""

    def _released(self, task: asyncio.Task[bool]) -> None:
        self._releasing.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _journal.warning("claim of another replica not released", failure=type(problem).__name__)

    def _register(self, claim: Claim) -> None:
        self._claims[claim.claim_id] = self._by_session[claim.session_id] = claim
        claim.stream.take(claim)

    def _unbind(self, claim: Claim, cause: TakeoverCause.ValueType | None = None) -> None:
        if cause is not None:
            self._causes[claim.session_id] = cause
        if self._claims.pop(claim.claim_id, None) is not None:
            del self._by_session[claim.session_id]
        self._left.pop(claim.session_id, None)
        self._handed_over.set()
        claim.stream.drop(claim)

    # --- giving back ---

    async def _close(self, stream: Stream) -> None:
        self._streams.discard(stream)
        stream.closed = True
        for claim in tuple(stream.claims):
            self._unbind(claim, None if self._draining else TakeoverCause.TAKEOVER_CAUSE_LOST)
            if self._draining:
                self._left[claim.session_id] = claim
            else:
                await self._back(claim)

    async def _finish(self, session_id: str, item: WorkItem | None, seen: WriteState | None) -> bool:
        """Removes the item of a session that needs nobody, or nobody of this type: then it is queued for others
        before. Queues it again when its log, read after that, needs a harness."""
        if seen is not None and needs_harness(seen):
            await self._queue.put(seen.harness, session_id)
        failpoints.hit("session.claim_ended")
        if item is not None:
            await item.done()
        self._idle.pop(session_id, None)
        failpoints.hit("session.item_removed")
        state = await self._state(session_id)
        if state is None or not needs_harness(state):
            return False
        await self._queue.put(state.harness, session_id)
        return True

    async def _later(self, claim: Claim, seen: WriteState, due: int) -> bool:
        """Offers the session again at some time; at once when something is said to it that was not seen."""
        last_input = seen.last_input
        await self._timers.set(Timer(due, claim.session_id, claim.harness))
        if claim.item is not None:
            await claim.item.done()
        state = await self._state(claim.session_id)
        if state is not None and needs_harness(state) and state.last_input > last_input:
            await self._queue.put(state.harness, claim.session_id)
        return True

    async def _back(self, claim: Claim) -> None:
        """Offers the session again at once, to harnesses of another type if it is theirs by now."""
        state = self._writer.remembered(claim.session_id)
        if state is not None and state.harness != claim.harness:
            await self._finish(claim.session_id, claim.item, state)
        elif claim.item is None:
            await self._queue.put(claim.harness, claim.session_id, timed=True)
        else:
            await self._holders.free(claim.session_id)
            await claim.item.back()

    async def _state(self, session_id: str) -> WriteState | None:
        try:
            return await self._writer.current(session_id)
        except Gone:
            return None

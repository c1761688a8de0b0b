"""Offers sessions that need a harness to harnesses, and sees to it that none is forgotten.

Three things hold a session that needs a harness, and it is never in two of them:

    the queue        waits for a harness; durable, shared by all replicas
    a claim          a harness has it, as long as its stream is open
    a rest           a harness wants it back at some time

A claim and a rest hold the queue's item, so every replica knows that somebody has the session. The item is removed
only when a claim ends and the log, read after that, needs nobody: what was appended before is seen then, and what is
appended later queues the session again. When this process dies its items come back by themselves.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from services.kit import ids
from services.kit.errors import Gone, Invalid, Unavailable
from services.kit.logs import Log as Journal
from services.session.configs import HARNESS_TYPE
from services.session.core import WriteState, needs_harness
from services.session.log import HOLD_SECONDS, Wire, WorkItem, WorkQueue
from services.session.writer import Writer

NUDGE, EVERYBODY = "nudge", "all"  # topic and key: a session has news that some replica lets rest
MAX_CAPACITY = 1_000
LIFE_SECONDS = 5.0  # between two signs of life
TAKE_SECONDS = 5.0
TICK_SECONDS = 0.25
HOLD_TICKS = int(HOLD_SECONDS / 3 / TICK_SECONDS)
REFUSED_SECONDS = 1.0  # until a session that a harness refused is offered again
FIRST_PAUSE_SECONDS = 0.5  # until one is offered again for which a harness did nothing; doubled each time
MAX_PAUSE_SECONDS = 60.0
MAX_REMEMBERED = 10_000

_journal = Journal("services.session.claims")
V = TypeVar("V")


@dataclass(eq=False)
class Claim:
    """A session that a harness has. Without an item it was claimed in a process that is no more."""

    session_id: str
    harness: str
    head: int  # the log's last position when it was offered
    item: WorkItem | None
    stream: _Stream
    claim_id: str = field(default_factory=lambda: ids.mint("claim"))


@dataclass(eq=False)
class _Stream:
    """A harness's open `ClaimWork`."""

    capacity: int
    claims: set[Claim] = field(default_factory=set)
    offers: asyncio.Queue[Claim | Exception] = field(default_factory=asyncio.Queue)
    room: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    @property
    def full(self) -> bool:
        return self.closed or len(self.claims) >= self.capacity

    async def has_room(self) -> None:
        while self.full:
            self.room.clear()
            await self.room.wait()


@dataclass(frozen=True)
class _Rest:
    item: WorkItem
    due: float  # of the loop's clock


class Claims:
    """Who works on what, as far as this process offers it."""

    def __init__(self, queue: WorkQueue, wire: Wire, writer: Writer, now: Callable[[], int]) -> None:
        self._queue = queue
        self._wire = wire
        self._writer = writer
        self._now = now
        self._claims: dict[str, Claim] = {}
        self._by_session: dict[str, Claim] = {}
        self._rests: dict[str, _Rest] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()  # claims that were released
        self._idle: OrderedDict[str, int] = OrderedDict()  # sessions for which a harness did nothing, how often
        self._streams: set[_Stream] = set()
        self._draining = False
        self._nudged: set[str] = set()

    def drain(self) -> None:
        """Ends all streams: this process ends. What was claimed stays so for a moment, for harnesses that come back."""
        self._draining = True
        for stream in self._streams:
            stream.offers.put_nowait(Unavailable("DRAINING", "this process is going away; ask another"))

    async def run(self) -> None:
        """Holds what is claimed and wakes what rests, until cancelled."""
        stop = await self._wire.listen(
            NUDGE, EVERYBODY, lambda data: self._nudged.add(data.decode()), gap=self._writer.doubt
        )
        tick = 0
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                tick += 1
                await self._wake_rests()
                if tick % HOLD_TICKS == 0:
                    for item in self._held():
                        await item.hold()
        finally:
            await stop()
            now = asyncio.get_running_loop().time()
            for rest in self._rests.values():
                await rest.item.back(rest.due - now)

    async def want(self, session_id: str, state: WriteState) -> None:
        """Sees to it that somebody is offered the session, if its log needs a harness. Durable on return."""
        if not needs_harness(state) or session_id in self._by_session:
            return  # a claim's end looks into the log again
        rest = self._rests.pop(session_id, None)
        if rest is not None:
            await rest.item.back()
        elif not await self._queue.put(state.harness, session_id):
            self._nudged.add(session_id)
            await self._wire.send(NUDGE, EVERYBODY, session_id.encode())

    async def claim(
        self, capacity: int, harnesses: Sequence[str], working: Sequence[str]
    ) -> AsyncIterator[Claim | None]:
        """Yields sessions for a harness, and None as a sign of life. Its end gives all of them to others.

        `working` are sessions that the harness is at work on already: each gets a claim again, which is yielded too.
        Raises Invalid for a capacity that is out of bounds.
        """
        if not 1 <= capacity <= MAX_CAPACITY:
            raise Invalid("ARGUMENT_INVALID", f"capacity must be 1 to {MAX_CAPACITY}, not {capacity}", field="capacity")
        for harness in harnesses:
            if not HARNESS_TYPE.fullmatch(harness):
                raise Invalid("ARGUMENT_INVALID", f"a type matches ^{HARNESS_TYPE.pattern}$", field="harness_types")
        stream = _Stream(capacity)
        self._streams.add(stream)
        pulls: list[asyncio.Task[None]] = []
        try:
            for session_id in working:
                await self._bind(stream, session_id)
            pulls += [asyncio.create_task(self._pull(stream, harness)) for harness in harnesses]
            yield None
            while True:
                yield await _next_offer(stream)
        finally:
            for pull in pulls:
                pull.cancel()
            await self._close(stream)

    async def release(self, claim_id: str, wake_time: int | None, refused: bool) -> bool:
        """Ends a claim and says whether the session is offered again. Raises Gone for a claim that never was."""
        claim = self._claims.get(claim_id)
        if claim is None:
            if claim_id in self._ended:
                return False
            raise Gone("CLAIM_UNKNOWN", "the claim is not this server's, or not any more")
        self._unbind(claim)
        _remember(self._ended, claim_id, None)
        if refused:
            return await self._rest(claim, REFUSED_SECONDS)
        state = await self._state(claim.session_id)
        if state is None:
            return await self._finish(claim.session_id, claim.item)
        unseen = state.last_input > max(claim.head, state.last_step)
        if wake_time is not None and not unseen:
            return await self._rest(claim, (wake_time - self._now()) / 1_000_000_000)
        if not needs_harness(state) or state.harness != claim.harness:
            return await self._finish(claim.session_id, claim.item)
        if max(state.last_input, state.last_deed) > claim.head:
            self._idle.pop(claim.session_id, None)
            return await self._rest(claim, 0.0)
        times = self._idle.get(claim.session_id, 0)
        _remember(self._idle, claim.session_id, times + 1)
        _journal.warning("harness did nothing", session_id=claim.session_id, times=times + 1)
        return await self._rest(claim, min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**times))

    # --- taking from the queue ---

    async def _pull(self, stream: _Stream, harness: str) -> None:
        try:
            while True:
                await stream.has_room()
                try:
                    item = await self._queue.take(harness, TAKE_SECONDS)
                    if item is not None:
                        await self._offer(stream, harness, item)
                except Unavailable:
                    await asyncio.sleep(FIRST_PAUSE_SECONDS)
        except Exception as problem:
            stream.offers.put_nowait(problem)  # it ends the stream, and with it the claims

    async def _offer(self, stream: _Stream, harness: str, item: WorkItem) -> None:
        state = await self._state(item.session_id)
        claim = self._by_session.get(item.session_id)
        if claim is not None:
            claim.item = item  # it came back though a harness has it
        elif state is None or not needs_harness(state) or state.harness != harness:
            await self._finish(item.session_id, item)
        elif stream.full:
            await item.back()
        else:
            self._register(Claim(item.session_id, harness, state.head, item, stream))

    async def _bind(self, stream: _Stream, session_id: str) -> None:
        state = await self._state(session_id)
        if state is not None and not state.ended and session_id not in self._by_session:
            rest = self._rests.pop(session_id, None)
            self._register(Claim(session_id, state.harness, state.head, rest.item if rest else None, stream))

    def _register(self, claim: Claim) -> None:
        self._claims[claim.claim_id] = self._by_session[claim.session_id] = claim
        claim.stream.claims.add(claim)
        claim.stream.offers.put_nowait(claim)

    def _unbind(self, claim: Claim) -> None:
        del self._claims[claim.claim_id]
        del self._by_session[claim.session_id]
        claim.stream.claims.discard(claim)
        claim.stream.room.set()

    # --- giving back ---

    async def _close(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        stream.closed = True
        for claim in tuple(stream.claims):
            self._unbind(claim)
            if not self._draining:
                await self._rest(claim, 0.0)

    async def _finish(self, session_id: str, item: WorkItem | None) -> bool:
        """Removes the item; queues the session again when its log, read after that, needs a harness."""
        if item is not None:
            await item.done()
        self._idle.pop(session_id, None)
        state = await self._state(session_id)
        if state is None or not needs_harness(state):
            return False
        await self._queue.put(state.harness, session_id)
        return True

    async def _rest(self, claim: Claim, seconds: float) -> bool:
        """Offers the session again after some time."""
        if claim.item is None:
            await self._queue.put(claim.harness, claim.session_id)
        elif seconds > 0:
            self._rests[claim.session_id] = _Rest(claim.item, asyncio.get_running_loop().time() + seconds)
        else:
            await claim.item.back()
        return True

    async def _wake_rests(self) -> None:
        nudged, self._nudged = self._nudged, set()
        now = asyncio.get_running_loop().time()
        for session_id, rest in tuple(self._rests.items()):
            if session_id in nudged or rest.due <= now:
                del self._rests[session_id]
                await rest.item.back()

    def _held(self) -> list[WorkItem]:
        claimed = [claim.item for claim in self._claims.values() if claim.item is not None]
        return claimed + [rest.item for rest in self._rests.values()]

    async def _state(self, session_id: str) -> WriteState | None:
        try:
            return await self._writer.current(session_id)
        except Gone:
            return None


async def _next_offer(stream: _Stream) -> Claim | None:
    try:
        async with asyncio.timeout(LIFE_SECONDS):
            offer = await stream.offers.get()
    except TimeoutError:
        return None
    if isinstance(offer, Exception):
        raise offer
    return offer


def _remember(kept: OrderedDict[str, V], key: str, value: V) -> None:
    kept[key] = value
    while len(kept) > MAX_REMEMBERED:
        kept.popitem(last=False)

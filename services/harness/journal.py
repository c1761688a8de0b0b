"""One session's log as a harness works with it: what was read so far, and what it says.

Facts are said again until they are in the log: a reply or a result did happen. Decisions are only proposed: when the
log has moved on they are dropped, and made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from handmesh.session.v1.event_pb2 import Event
from services.harness.adapters.codec import fact_of
from services.harness.condition import SESSION, Condition
from services.harness.core import Fact, Other, Replied, Woke
from services.harness.ports import Appended, Previews, SessionLog, Standing
from services.harness.shelf import Shelf
from services.kit import failpoints
from services.kit.errors import Conflict, OutOfRange, Refused, ServiceError, Unavailable

SAY_AGAIN_SECONDS = 60.0  # how long a fact is said again while the session service is away
PAUSE_SECONDS = 0.25  # between two tries


class Fenced(Exception):
    """Another harness owns the session: leave it alone."""


class Changed(Exception):
    """The log does not hold what was known of it."""


class Journal:
    """Reads ahead in the background and hands each fact to `apply`, once and in order.

    `condition` hears of it when the log cannot be reached. `known` is the fact that was applied last, if the log was
    read before: it is read again, and has to be the same.
    """

    def __init__(
        self, log: SessionLog, apply: Callable[[Fact], None], condition: Condition, known: Fact | None = None
    ) -> None:
        self.log = log
        self.condition = condition
        self.last = known
        self._known = known
        self.epoch = 0
        self.grant = ""
        self.shelf = Shelf(log)
        self._waiting: list[asyncio.Future[None]] = []
        self._apply = apply
        self._reader: asyncio.Task[None] | None = None
        self._newest_woke = 0
        self._caught_up = asyncio.Event()
        self._owned = asyncio.Event()
        self._previews: Previews | None = None

    @property
    def head(self) -> int:
        """The position of the last event that was applied."""
        return self.last.position if self.last is not None else 0

    async def open(self) -> None:
        """Reads the log to its end as it is now, or was offered. Raises Changed."""
        for fact in self.log.newest:
            self._take(await self._whole(fact))
        if self.log.newest and self.head == self.log.newest[-1].position:
            return  # it is read on while the session is taken up
        self._start_reading()
        assert self._reader is not None
        arrived = asyncio.create_task(self._caught_up.wait())
        await asyncio.wait({self._reader, arrived}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        self.check()

    def _start_reading(self) -> None:
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name=f"read {self.log.session_id}")

    async def close(self) -> None:
        """Stops reading and showing."""
        if self._previews is not None:
            await self._previews.close()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
            if not self._reader.cancelled():
                self._reader.exception()  # `check` has raised it if anybody was there to hear

    @property
    def standing(self) -> Standing:
        """What is shown to hands."""
        return Standing(self.epoch, self.grant)

    def check(self) -> None:
        """Raises what stopped the reading, or Fenced when another harness has woken since."""
        if self._reader is not None and self._reader.done() and not self._reader.cancelled():
            self._reader.result()
        if self.epoch and self._newest_woke > self.epoch:
            raise Fenced

    async def take_up(self, event: Event) -> None:
        """Emits `HarnessWoke` at the log's end as it was read. Raises Conflict when the log has moved on."""
        appended = await self.log.emit([event], 0, self.head)
        self._start_reading()  # not before: the request to the model leaves meanwhile
        self.epoch, self.grant = appended.first_position, appended.grant
        failpoints.hit("harness.woke")
        await self._applied([event], appended)
        self._owned.set()

    async def owned(self) -> None:
        """Waits until the session is this harness's: before that, nothing is appended or shown."""
        await self._owned.wait()

    async def previews(self) -> Previews:
        """Opens the way to show previews, which stays open for the next answer. Waits as `owned` does."""
        await self.owned()
        if self._previews is None:
            self._previews = self.log.previews(self.epoch)
        return self._previews

    async def watched(self) -> bool:
        """Tells whether anybody is shown previews."""
        return await self.log.watched(self.epoch)

    async def say(self, *events: Event) -> None:
        """Appends facts, whatever came in between. A result that came second is dropped: the first one counts."""
        await self._append(events, None)

    async def propose(self, *events: Event) -> bool:
        """Appends what was decided if the log is still as it was read. Tells whether it was."""
        stored = await self._said_next(*events)
        if stored:
            failpoints.hit("harness.decision_stored")
        return stored

    async def say_with(self, *events: Event) -> None:
        """Appends a fact together with what was decided because of it; alone when the log is not as it was read."""
        if len(events) == 1 or not await self._said_next(*events):
            await self.say(events[0])

    async def say_while(self, wanted: Callable[[], bool], *events: Event) -> bool:
        """Appends a fact as `say_with` does, as long as the log as it was read still wants it. Tells whether it did."""
        while wanted():
            if await self._said_next(*events):
                return True
            events = events[:1]
        return False

    async def _said_next(self, *events: Event) -> bool:
        try:
            await self._append(events, self.head)
        except Conflict as conflict:
            await self.reach_conflict(conflict)
            return False
        return True

    async def reach_conflict(self, conflict: Conflict) -> None:
        """Reads to where the log was when it had moved on. Raises any other conflict."""
        if conflict.reason != "POSITION_CONFLICT":
            raise conflict
        await self._reach(int(conflict.metadata.get("last_position", self.head)))

    async def _append(self, events: tuple[Event, ...], expected: int | None) -> None:
        await self.owned()
        began = asyncio.get_running_loop().time()
        deadline = began + SAY_AGAIN_SECONDS
        while True:
            try:
                appended = await self._emitted(events, expected)
            except Unavailable as problem:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                waited = asyncio.get_running_loop().time() - began
                events[0].delay.reason = problem.reason
                events[0].delay.duration.FromNanoseconds(int(waited * 1e9))
            except Conflict as conflict:
                if conflict.reason == "EPOCH_STALE":
                    raise Fenced from None
                raise
            except Refused as refused:
                if refused.reason != "TOOL_CALL_SETTLED" or events[0].HasField("model_replied"):
                    raise
                await asyncio.sleep(PAUSE_SECONDS)  # what came first is in the log, and is read meanwhile
                return
            else:
                await self._applied(list(events), appended)
                return

    async def _emitted(self, events: tuple[Event, ...], expected: int | None) -> Appended:
        """Appends once, and notes whether the session service was there: it is also when it refuses."""
        try:
            appended = await self.log.emit(events, self.epoch, expected)
        except Unavailable as problem:
            self.condition.failed(SESSION, problem)
            raise
        except ServiceError:
            self.condition.passed(SESSION)
            raise
        self.condition.passed(SESSION)
        return appended

    async def _applied(self, events: list[Event], appended: Appended) -> None:
        """Takes what was just appended without waiting to read it back, if nothing lies between."""
        first_position = appended.first_position
        if first_position == self.head + 1:
            for position, event in enumerate(events, first_position):
                mine = Event()
                mine.CopyFrom(event)
                mine.position, mine.epoch = position, self.epoch
                mine.emit_time.FromNanoseconds(appended.time)
                self._take(await self._whole(fact_of(mine)))
        await self._reach(first_position + len(events) - 1)

    async def _reach(self, position: int) -> None:
        await self.wait(position - 1)

    async def wait(self, beyond: int) -> None:
        """Waits until a position beyond this one was read. Raises what stopped the reading."""
        self._start_reading()
        assert self._reader is not None
        while self.head <= beyond:
            self.check()
            told = asyncio.get_running_loop().create_future()
            self._waiting.append(told)
            await asyncio.wait({told, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        self.check()

    async def _read(self) -> None:
        try:
            await self._follow(self._known or Other(0))
        except OutOfRange:
            if self._known is None:
                raise
            raise Changed from None

    async def _follow(self, known: Fact) -> None:
        async for page in self.log.follow(max(1, known.position)):
            for fact in page.facts:
                if fact.position > self.head:
                    self._take(await self._whole(fact))
                elif fact.position == known.position and await self._whole(fact) != known:
                    raise Changed
            if page.last_position < known.position:
                raise Changed
            if self.head >= page.last_position:
                self._caught_up.set()

    async def _whole(self, fact: Fact) -> Fact:
        return await self.shelf.whole(fact) if isinstance(fact, Replied) else fact

    def _take(self, fact: Fact) -> None:
        if fact.position != self.head + 1:
            return  # read back after it was applied at once
        self.last = fact
        if isinstance(fact, Woke):
            self._newest_woke = fact.position
        self._apply(fact)
        for told in self._waiting:
            if not told.done():
                told.set_result(None)
        self._waiting.clear()

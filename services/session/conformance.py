"""What every store must do, for `services/session/logs/*` and whoever writes another one.

`check(make)` opens a fresh store for each of the numbered checks and raises AssertionError for the first promise of
`log.py` that does not hold. `make()` is an async context manager that gives a `Store`; the checks use ids of their
own, so it may give the same store again. (Longer than other modules: it is one list.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from services.kit import ids
from services.session import queue_conformance
from services.session.log import BATCH_SPAN, HOLD_SECONDS, MAX_STORED_BYTES, Stop, Store, StoredBatch, TakenError
from services.session.queue_conformance import _harness, _take

Make = Callable[[], AbstractAsyncContextManager[Store]]
ENOUGH = 64 * 1024 * 1024


def batch(first: int, data: bytes = b"x", count: int = 1, prev_digest: str = "") -> StoredBatch:
    """Makes a batch; stores do not look into `data`."""
    return StoredBatch(first, count, prev_digest, data)


async def fill(store: Store, session_id: str, counts: list[int], size: int = 1) -> list[StoredBatch]:
    """Appends batches of so many events, linked as a log's are."""
    stored: list[StoredBatch] = []
    for count in counts:
        before = stored[-1] if stored else None
        one = StoredBatch(
            before.last_position + 1 if before else 1,
            count,
            before.digest if before else "",
            b"%d:" % len(stored) + b"x" * size,
        )
        await store.log.append(session_id, one)
        stored.append(one)
    return stored


async def log_01_gives_back_what_was_appended(store: Store) -> None:
    """Bytes, counts, positions and links come back as they went in."""
    session = ids.mint("sess")
    stored = await fill(store, session, [1, 3, BATCH_SPAN, 2])
    assert list(await store.log.read(session, 1, 100, ENOUGH)) == stored


async def log_02_knows_the_last_batch(store: Store) -> None:
    """The head is the newest batch, and None for a session that is not there."""
    session = ids.mint("sess")
    assert await store.log.head(session) is None
    stored = await fill(store, session, [1] * 12 + [4])
    assert await store.log.head(session) == stored[-1]


async def log_03_refuses_a_taken_position(store: Store) -> None:
    """A second batch at a position is refused and changes nothing, the same bytes included."""
    session = ids.mint("sess")
    stored = await fill(store, session, [1, 2])
    for again in (stored[1], batch(2, b"other")):
        try:
            await store.log.append(session, again)
        except TakenError:
            pass
        else:
            raise AssertionError("a position was taken twice")
    assert list(await store.log.read(session, 1, 100, ENOUGH)) == stored


async def log_04_lets_one_of_many_racers_win(store: Store) -> None:
    """Of writers that append at the same position at the same time, exactly one succeeds."""
    session = ids.mint("sess")

    async def race(number: int) -> bool:
        try:
            await store.log.append(session, batch(1, b"%d" % number))
        except TakenError:
            return False
        return True

    won = await asyncio.gather(*(race(number) for number in range(20)))
    assert won.count(True) == 1
    assert [each.data for each in await store.log.read(session, 1, 2, ENOUGH)] == [b"%d" % won.index(True)]


async def log_05_reads_any_slice(store: Store) -> None:
    """A slice begins with the batch that holds its start, in its middle too, and ends before its end."""
    session = ids.mint("sess")
    stored = await fill(store, session, [1, BATCH_SPAN, 1, 5, 1, BATCH_SPAN, 2])
    end = stored[-1].last_position + 1
    for start in range(1, end):
        for stop in range(start + 1, end + 1):
            wanted = [one for one in stored if one.last_position >= start and one.first_position < stop]
            assert list(await store.log.read(session, start, stop, ENOUGH)) == wanted, (start, stop)


async def log_06_reads_nothing_past_the_end(store: Store) -> None:
    """A slice past the end is shorter, or empty; a session that is not there has none."""
    session = ids.mint("sess")
    stored = await fill(store, session, [1, 1, 3])
    assert list(await store.log.read(session, 3, 10_000, ENOUGH)) == stored[2:]
    assert list(await store.log.read(session, 6, 10, ENOUGH)) == []
    assert list(await store.log.read(session, 6_000, 60_000, ENOUGH)) == []
    assert list(await store.log.read(ids.mint("sess"), 1, 10, ENOUGH)) == []


async def log_07_stops_at_its_bound(store: Store) -> None:
    """A read stops soon after its bytes are reached, gives one batch at least, and can be gone on with."""
    session = ids.mint("sess")
    stored = await fill(store, session, [1] * 40, size=100_000)
    assert list(await store.log.read(session, 20, 41, 1)) == stored[19:20]
    found: list[StoredBatch] = []
    while len(found) < len(stored):
        part = await store.log.read(session, len(found) + 1, 41, 1_000_000)
        assert 0 < len(part) <= 12
        found += part
    assert found == stored


async def log_08_reads_long_slices(store: Store) -> None:
    """A slice may be longer than what a store reads at once."""
    session = ids.mint("sess")
    stored = await fill(store, session, [1] * 3 + [BATCH_SPAN] * 80)
    assert list(await store.log.read(session, 1, 10_000, ENOUGH)) == stored


async def log_09_keeps_sessions_apart(store: Store) -> None:
    """Appends of several sessions that interleave have each their own dense positions."""
    sessions = [ids.mint("sess") for _ in range(3)]
    for position in range(1, 30):
        for session in sessions:
            await store.log.append(session, batch(position, session.encode() + b"%d" % position))
    for session in sessions:
        found = await store.log.read(session, 1, 100, ENOUGH)
        assert [one.data for one in found] == [session.encode() + b"%d" % position for position in range(1, 30)]


async def log_10_takes_the_biggest_batch(store: Store) -> None:
    """A batch of the largest size that the service makes is stored, and does not disturb others."""
    session = ids.mint("sess")
    big = batch(1, b"x" * MAX_STORED_BYTES, BATCH_SPAN)
    await store.log.append(session, big)
    assert list(await store.log.read(session, 1, 2, ENOUGH)) == [big]
    assert await store.log.head(session) == big


async def log_11_carries_an_append_to_its_end(store: Store) -> None:
    """A task that is cancelled while its batch is under way hears that it was stored."""
    session = ids.mint("sess")
    appending = asyncio.create_task(store.log.append(session, batch(1)))
    await asyncio.sleep(0)
    appending.cancel()
    await appending
    assert await store.log.head(session) == batch(1)


async def registry_01_swaps_at_a_revision(store: Store) -> None:
    """A swap succeeds only at the revision that is there; 0 means that nothing is."""
    key = ids.mint("key")
    assert await store.registry.get("requests", key) is None
    assert await store.registry.swap("requests", key, b"a", 0)
    assert not await store.registry.swap("requests", key, b"b", 0)
    entry = await store.registry.get("requests", key)
    assert entry is not None and entry.value == b"a"
    assert await store.registry.swap("requests", key, b"b", entry.revision)
    assert not await store.registry.swap("requests", key, b"c", entry.revision)
    entry = await store.registry.get("requests", key)
    assert entry is not None and entry.value == b"b"


async def registry_02_lets_one_of_many_racers_win(store: Store) -> None:
    """Of swaps at the same time on an empty key exactly one succeeds, and tells the entry's revision."""
    key = ids.mint("key")
    swaps = (store.registry.swap("requests", key, b"%d" % number, 0) for number in range(20))
    won = await asyncio.gather(*swaps)
    entry = await store.registry.get("requests", key)
    assert won.count(0) == 19
    assert entry is not None and entry.value == b"%d" % won.index(max(won)) and entry.revision == max(won)


async def registry_03_puts_whatever_was_there(store: Store) -> None:
    """A put replaces; buckets do not see each other's keys."""
    key = ids.mint("key")
    await store.registry.put("requests", key, b"a")
    await store.registry.put("requests", key, b"b")
    entry = await store.registry.get("requests", key)
    assert entry is not None and entry.value == b"b"
    assert await store.registry.get("sessions", key) is None


async def registry_04_lists_by_prefix(store: Store) -> None:
    """Keys are listed by the part before a dot, and read many at once; those that are missing are left out."""
    prefix = ids.mint("tenant") + "."
    keys = [f"{prefix}{ids.mint('sess')}" for _ in range(600)]
    for key in keys:
        await store.registry.put("requests", key, key.encode())
    await store.registry.put("requests", ids.mint("tenant") + ".x", b"other")
    assert sorted(await store.registry.keys("requests", prefix)) == sorted(keys)
    assert await store.registry.get_many("requests", [*keys, prefix + "none"]) == {key: key.encode() for key in keys}
    assert await store.registry.keys("requests", "nobody.") == []


async def registry_05_tells_what_has_changed(store: Store) -> None:
    """Changes after a revision come in order, each key once and as it is now; after the newest there are none."""
    keys = [ids.mint("key") for _ in range(1_200)]
    for key in keys:
        await store.registry.put("requests", key, b"old")
    await store.registry.put("requests", keys[0], b"new")
    seen, revision = await _changes(store, 0)
    ours = [(key, value) for key, value in seen if key in frozenset(keys)]
    assert ours == [*((key, b"old") for key in keys[1:]), (keys[0], b"new")]
    assert await _changes(store, revision) == ([], revision)
    await store.registry.put("requests", keys[1], b"newer")
    assert (await _changes(store, revision))[0] == [(keys[1], b"newer")]


async def registry_06_tells_of_one_prefix(store: Store) -> None:
    """With a prefix only its keys come, no more than were asked for, the rest after the last one."""
    ours, others = ids.mint("tenant"), ids.mint("tenant")
    keys = [f"{ours}.{ids.mint('key')}" for _ in range(5)]
    for key in keys:
        await store.registry.put("requests", f"{others}.{ids.mint('key')}", b"x")
        await store.registry.put("requests", key, b"x")
    first, whole = await store.registry.changes("requests", 0, f"{ours}.", 3)
    assert ([key for key, _ in first], whole) == (keys[:3], False)
    rest, whole = await store.registry.changes("requests", first[-1][1].revision, f"{ours}.", 3)
    assert ([key for key, _ in rest], whole) == (keys[3:], True)


async def _changes(store: Store, revision: int) -> tuple[list[tuple[str, bytes]], int]:
    found: list[tuple[str, bytes]] = []
    whole = False
    while not whole:
        part, whole = await store.registry.changes("requests", revision)
        found += [(key, entry.value) for key, entry in part]
        revision = part[-1][1].revision if part else revision
    return found, revision


async def queue_01_gives_each_session_once(store: Store) -> None:
    """A session is in the queue once, whether it waits or is taken; once done, it can be queued again."""
    harness, session = _harness(), ids.mint("sess")
    assert await store.queue.put(harness, session)
    assert not await store.queue.put(harness, session)
    item = await _take(store, harness)
    assert item.session_id == session
    assert await store.queue.take(harness, 0.2) is None
    assert not await store.queue.put(harness, session)
    await item.done()
    assert await store.queue.put(harness, session)
    await (await _take(store, harness)).done()


async def queue_02_gives_back_at_once_or_later(store: Store) -> None:
    """What is given back is taken again: at once, or not before its time."""
    harness, session = _harness(), ids.mint("sess")
    await store.queue.put(harness, session)
    await (await _take(store, harness)).back()
    item = await _take(store, harness)
    assert item.session_id == session
    await item.back(0.5)
    assert await store.queue.take(harness, 0.2) is None
    item = await _take(store, harness)
    assert item.session_id == session
    await item.done()


async def queue_03_keeps_types_apart(store: Store) -> None:
    """A harness takes sessions of its own type only."""
    one, other = _harness(), _harness()
    session = ids.mint("sess")
    await store.queue.put(one, session)
    assert await store.queue.take(other, 0.2) is None
    await (await _take(store, one)).done()


async def queue_04_wakes_a_taker_that_waits(store: Store) -> None:
    """Who waits for a session gets the next one that is queued; each of several gets one."""
    harness = _harness()
    takers = [asyncio.create_task(store.queue.take(harness, 10.0)) for _ in range(3)]
    sessions = {ids.mint("sess") for _ in range(3)}
    for session in sessions:
        await store.queue.put(harness, session)
    items = [item for item in await asyncio.gather(*takers) if item is not None]
    assert {item.session_id for item in items} == sessions
    for item in items:
        await item.done()


async def queue_05_loses_nothing_with_a_taker(store: Store) -> None:
    """A taker that is cancelled, whenever that is, takes no session with it."""
    harness = _harness()
    for _ in range(20):
        session = ids.mint("sess")
        taker = asyncio.create_task(store.queue.take(harness, 10.0))
        await store.queue.put(harness, session)
        taker.cancel()
        await asyncio.wait({taker})
        item = await _take(store, harness) if taker.cancelled() else taker.result()
        assert item is not None and item.session_id == session
        await item.done()


async def queue_06_lets_the_item_of_a_dead_holder_be_inherited(store: Store) -> None:
    """An item that somebody has taken can be held, given back and removed by another; one that waits cannot."""
    harness, session = _harness(), ids.mint("sess")
    assert await store.queue.inherit(harness, session) is None
    await store.queue.put(harness, session)
    assert await store.queue.inherit(harness, session) is None
    await _take(store, harness)
    inherited = await store.queue.inherit(harness, session)
    assert inherited is not None and inherited.session_id == session
    await inherited.hold()
    assert await store.queue.take(harness, 0.2) is None
    await inherited.back()
    async with asyncio.timeout(HOLD_SECONDS / 2):
        item = await _take(store, harness)
    assert item.session_id == session and item.again
    inherited = await store.queue.inherit(harness, session)
    assert inherited is not None
    await inherited.done()
    assert await store.queue.inherit(harness, session) is None
    assert await store.queue.put(harness, session)
    await (await _take(store, harness)).done()


async def wire_01_reaches_everybody_who_listens(store: Store) -> None:
    """What is sent reaches all who listen to the topic and key, in order, and nobody else."""
    key = ids.mint("sess")
    ears = [_Ear(store, "note", key), _Ear(store, "note", key)]
    strangers = [_Ear(store, "preview", key), _Ear(store, "note", ids.mint("sess"))]
    for ear in ears + strangers:
        await ear.open()
    for number in range(50):
        await store.wire.send("note", key, b"%d" % number)
    for ear in ears:
        assert await ear.heard(50) == [b"%d" % number for number in range(50)]
    for ear in strangers:
        await store.wire.send(ear.topic, ear.key, b"end")
        assert await ear.heard(1) == [b"end"]
    for ear in ears + strangers:
        await ear.stop()


async def wire_02_stops(store: Store) -> None:
    """After a stop nothing is heard, and sending to nobody is no error."""
    key = ids.mint("sess")
    before, after = _Ear(store, "note", key), _Ear(store, "note", key)
    await before.open()
    await before.stop()
    await store.wire.send("note", key, b"x")
    await after.open()
    await store.wire.send("note", key, b"y")
    assert await after.heard(1) == [b"y"]
    await after.stop()
    assert before.data == []


class _Ear:
    """Listens, and can be waited for."""

    def __init__(self, store: Store, topic: str, key: str) -> None:
        self.topic, self.key = topic, key
        self.data: list[bytes] = []
        self._store = store
        self._news = asyncio.Event()
        self.stop: Stop = self._nothing

    async def open(self) -> None:
        self.stop = await self._store.wire.listen(self.topic, self.key, self._hear)

    def _hear(self, data: bytes) -> None:
        self.data.append(data)
        self._news.set()

    async def heard(self, count: int) -> list[bytes]:
        async with asyncio.timeout(10):
            while len(self.data) < count:
                self._news.clear()
                await self._news.wait()
        return self.data

    async def _nothing(self) -> None:
        return


Check = Callable[[Store], Awaitable[None]]

CHECKS: list[Check] = [
    value
    for name, value in sorted({**vars(queue_conformance), **globals()}.items())
    if name.startswith(("log_", "registry_", "queue_", "wire_")) and callable(value)
]


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator[Store]:
    """Opens a store for one check."""
    async with asyncio.timeout(60), make() as store:
        yield store


async def check(make: Make) -> None:
    """Runs all checks, in order of their numbers."""
    for one in CHECKS:
        async with opened(make) as store:
            await one(store)

"""What every `WorkQueue` says of what was taken, and to whom it belongs: checks of `conformance`."""

from __future__ import annotations

import asyncio

from services.kit import ids
from services.session.log import HOLD_SECONDS, Store, WorkItem


async def queue_07_says_why_a_session_is_there(store: Store) -> None:
    """`timed` is as it was queued, however often it is taken; the next time it is queued is another time."""
    harness, session = _harness(), ids.mint("sess")
    for timed in (True, False):
        await store.queue.put(harness, session, timed)
        await store.queue.put(harness, session, not timed)  # it is there already: this says nothing
        item = await _take(store, harness)
        assert item.timed == timed
        await item.back()
        item = await _take(store, harness)
        assert item.timed == timed
        await item.done()


async def queue_08_says_whether_it_was_taken_before(store: Store) -> None:
    """`again` from the second time on; a session that was done and is queued anew was not."""
    harness, session = _harness(), ids.mint("sess")
    for _ in range(2):
        await store.queue.put(harness, session)
        for again in (False, True, True):
            item = await _take(store, harness)
            assert item.again == again
            if item.again and again:
                await item.hold()
                assert item.again
            await item.back()
        await (await _take(store, harness)).done()


async def queue_09_takes_back_what_nobody_holds(store: Store) -> None:
    """After `HOLD_SECONDS` without a sign of life, and not while somebody gives one."""
    harness, held, left = _harness(), ids.mint("sess"), ids.mint("sess")
    await store.queue.put(harness, held)
    mine = await _take(store, harness)
    await store.queue.put(harness, left)
    await _take(store, harness)
    come = asyncio.create_task(store.queue.take(harness, 4 * HOLD_SECONDS))
    while not come.done():
        await mine.hold()
        await asyncio.wait({come}, timeout=HOLD_SECONDS / 5)
    item = come.result()
    assert item is not None
    assert (item.session_id, item.again) == (left, True)
    await item.done()
    assert not await store.queue.put(harness, held)
    await mine.done()


async def queue_10_adopts_what_another_replica_took(store: Store) -> None:
    """By its handle, which is text that survives a wire: from then on the adopter holds it, gives it back, or is done.
    `again` is as it was; `timed` is not known any more."""
    harness, session = _harness(), ids.mint("sess")
    await store.queue.put(harness, session, True)
    for again in (False, True):
        taken = await _take(store, harness)
        mine = store.queue.adopt(session, taken.handle.encode().decode())
        assert (mine.session_id, mine.handle, mine.again, mine.timed) == (session, taken.handle, again, False)
        await mine.hold()
        assert await store.queue.take(harness, 0.2) is None
        await mine.back()
    taken = await _take(store, harness)
    await store.queue.adopt(session, taken.handle).done()
    assert await store.queue.put(harness, session)
    await (await _take(store, harness)).done()


async def queue_11_adopts_what_is_gone_already(store: Store) -> None:
    """A session that is done, or that the queue never had, can be adopted: nothing comes of it, whatever is said."""
    harness, session = _harness(), ids.mint("sess")
    await store.queue.put(harness, session)
    taken = await _take(store, harness)
    await taken.done()
    late = store.queue.adopt(session, taken.handle)
    await late.hold()
    await late.back()
    await late.done()
    assert await store.queue.take(harness, 0.2) is None
    assert await store.queue.put(harness, session)
    await (await _take(store, harness)).done()


async def queue_12_counts_those_that_wait(store: Store) -> None:
    """By type, until they are taken; a type that nobody waits for is not told."""
    one, other = _harness(), _harness()
    for harness in (one, one, other):
        await store.queue.put(harness, ids.mint("sess"))
    assert _of(await store.queue.waiting(), one, other) == {one: 2, other: 1}
    item = await _take(store, one)
    taken = await _take(store, other)
    assert _of(await store.queue.waiting(), one, other) == {one: 1}
    await item.done()
    await (await _take(store, one)).done()
    assert _of(await store.queue.waiting(), one, other) == {}
    await taken.done()


def _of(counted: dict[str, int], *harnesses: str) -> dict[str, int]:
    return {name: count for name, count in counted.items() if name in harnesses}


def _harness() -> str:
    return ids.mint("type")


async def _take(store: Store, harness: str) -> WorkItem:
    item = await store.queue.take(harness, 10.0)
    assert item is not None, "nothing came"
    return item

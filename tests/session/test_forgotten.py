"""A session that needs a harness, and of which neither queue, claim nor timer knows, is found and offered."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.session.v1 import event_pb2 as ev
from tests.session.claiming import Harness, harness, make, settle
from tests.session.running import Run, Service, message


async def forget(service: Service, kind: str, patch: pytest.MonkeyPatch) -> str:
    """Makes a session with a message of which the queue is not told."""

    async def lost(*_: Any, **__: Any) -> bool:
        return True

    session = await make(service, kind)
    with patch.context() as patched:
        patched.setattr(service.store.queue, "put", lost)
        await service.emit(session, message())
    return session


async def test_a_forgotten_session_is_found(service: Service, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever looks: it is offered, once, however often it is looked for."""
    session = await forget(service, kind, monkeypatch)
    async with harness(service, kind, 5) as one:
        await one.nothing()
        await service.parts.upkeep.find_forgotten()
        await service.parts.upkeep.find_forgotten()
        offer = await one.offer()
        assert offer.session_id == session
        await service.parts.upkeep.find_forgotten()
        await one.nothing()
        await settle(service, session)
        assert not await one.release(offer)


async def test_a_session_that_rests_is_not_forgotten(service: Service, kind: str) -> None:
    """One with a timer needs a harness at its time and not before; one that waits for a person needs none."""
    rests, waits = await make(service, kind, message()), await make(service, kind, message())
    tomorrow = Timestamp(seconds=int(time.time()) + 86_400)
    async with harness(service, kind, 5) as one:
        for offer in (await one.offer(), await one.offer()):
            epoch, _ = await service.wake(offer.session_id)
            if offer.session_id == rests:
                await service.emit(rests, ev.Event(retry_scheduled=ev.RetryScheduled(attempt=1)), epoch)
                assert await one.release(offer, wake_time=tomorrow)
            else:
                await service.emit(waits, ev.Event(budget_reached=ev.BudgetReached(budget="turns")), epoch)
                assert not await one.release(offer)
        await service.parts.upkeep.find_forgotten()
        await one.nothing()


@pytest.mark.nats
async def test_a_session_at_work_elsewhere_is_not_forgotten(
    run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A harness at another replica has it, without an item in the queue: that replica then has the item."""
    async with run() as one, run() as two:
        session = await forget(one, kind, monkeypatch)
        async with harness(one, kind, working=(session,), instance="at work") as first, harness(two, kind, 5) as second:
            offer = await first.offer()
            await two.parts.upkeep.look()
            await second.nothing()
            await settle(one, session)
            assert not await first.release(offer)


@pytest.mark.nats
async def test_the_survey_finds_what_the_index_does_not_know(
    run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only process that knew of a message died before the index had it: the next one finds it at its start."""
    async with run() as one:
        session = await make(one, kind)
        await one.parts.sessions.finish()
        monkeypatch.setattr(one.parts.sessions._index, "note", lambda *_: None)
        with monkeypatch.context() as patched:

            async def lost(*_: Any, **__: Any) -> bool:
                return True

            patched.setattr(one.store.queue, "put", lost)
            await one.emit(session, message())
    async with run() as two:
        other = Harness(two, kind)
        await two.parts.upkeep.find_forgotten()
        await other.nothing()
        await two.parts.upkeep.look()
        assert (await other.offer()).session_id == session
        await other.close()

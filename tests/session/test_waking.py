"""Sessions wake at their time, and nobody takes one from a harness that is at work: over restarts and replicas."""

from __future__ import annotations

import asyncio
import time

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.session import streams, timers
from services.session.log import HOLD_SECONDS
from services.session.streams import Offered
from tests.session.claiming import Harness, harness, make, settle
from tests.session.running import Run, Service, message, refusal, replied
from tests.support.nats import NatsServer


def at(seconds: float) -> Timestamp:
    """A time from now on."""
    when = Timestamp()
    when.FromNanoseconds(time.time_ns() + int(seconds * 1e9))
    return when


async def rest(one: Harness, session: str, seconds: float) -> Timestamp:
    """Takes an offered session up, fails to ask the model, and wants it back after some time."""
    offer = await one.offer()
    assert offer.session_id == session
    epoch, _ = await one.service.wake(session)
    await one.service.emit(session, ev.Event(retry_scheduled=ev.RetryScheduled(attempt=1)), epoch)
    wake_time = at(seconds)
    assert await one.release(offer, wake_time=wake_time)
    return wake_time


async def offered(service: Service, session: str) -> str:
    """Offers a session as `Wake` does, and says what was found."""
    answer = await service.harness.OfferWork(pb.OfferWorkRequest(session_id=session))
    return pb.OfferOutcome.Name(answer.outcome).removeprefix("OFFER_OUTCOME_")


def test_outcomes_are_the_contracts() -> None:
    """The numbers that the code uses are those of the contract."""
    contract = {name.removeprefix("OFFER_OUTCOME_"): number for name, number in pb.OfferOutcome.items() if number}
    assert contract == {each.name: each.value for each in Offered}


@pytest.mark.nats
@pytest.mark.parametrize("victim", ["session service", "nats-server"])
async def test_a_timer_outlives_everything(
    run: Run, own_nats_server: NatsServer, kind: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that rests is offered when it is due and not before, though what was asked to remember it is gone."""
    monkeypatch.setattr(timers, "GRACE_SECONDS", 0.0)
    async with run() as service:
        session = await make(service, kind, message())
        async with harness(service, kind) as one:
            wake_time = await rest(one, session, 4)
            if victim == "nats-server":
                await own_nats_server.kill()
                await own_nats_server.restart()
                assert (await one.offer()).session_id == session
                assert time.time_ns() >= wake_time.ToNanoseconds()
    if victim == "session service":
        async with run() as service, harness(service, kind) as one:
            assert (await one.offer()).session_id == session
            assert time.time_ns() >= wake_time.ToNanoseconds()


async def test_a_time_that_has_come_is_now(service: Service, kind: str) -> None:
    """A harness that goes away gives a session to the next one at once."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        await service.wake(session)
        assert await one.release(offer, wake_time=at(-1))
        assert (await one.offer()).session_id == session


async def test_a_time_for_a_session_that_waits_for_a_client(service: Service, kind: str) -> None:
    """Nobody is needed for it, and the time that a harness has set is kept all the same; once."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, replied("t1", read=epoch), epoch)
        asked = ev.Event(custom_tool_requested=ev.CustomToolRequested(tool_use_id="t1", input_json="{}"))
        await service.emit(session, asked, epoch)
        assert await one.release(offer, wake_time=at(1))
        await one.nothing()
        offer = await one.offer()
        assert offer.session_id == session
        assert not await one.release(offer)
        await one.nothing()


async def test_a_time_for_a_session_that_is_done(service: Service, kind: str) -> None:
    """The turn has ended before the time came: nobody is woken."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        await rest(one, session, 0.3)
        await service.emit(session, message("now"))
        offer = await one.offer()
        await settle(service, session)
        assert not await one.release(offer)
        await one.nothing()
        await one.nothing()


async def test_what_an_offer_by_hand_finds(service: Service, kind: str) -> None:
    """A session that a harness has is left alone; when that one is dead, it is not; an idle one needs nobody."""
    session = await make(service, kind, message())
    assert await offered(service, session) == "OFFERED"
    async with harness(service, kind) as one, harness(service, kind) as two:
        offers = {asyncio.create_task(each.offer()): each for each in (one, two)}
        done, left = await asyncio.wait(offers, return_when=asyncio.FIRST_COMPLETED)
        first, other = offers[done.pop()], offers[left.pop()]
        assert await offered(service, session) == "CLAIMED"
        await other.nothing()
        await first.close()
        offer = await next(task for task, each in offers.items() if each is other)
        assert await offered(service, session) == "CLAIMED"
        await settle(service, session)
        await other.release(offer)
        assert await offered(service, session) == "NOT_NEEDED"
    nobody = pb.OfferWorkRequest(session_id=ids.mint("sess"))
    assert (await refusal(service.harness.OfferWork(nobody))).reason == "SESSION_NOT_FOUND"


@pytest.mark.nats
async def test_an_offer_by_hand_at_another_replica(run: Run, kind: str) -> None:
    """A replica that has no claim asks the others."""
    async with run() as one, run() as two:
        session = await make(one, kind, message())
        async with harness(one, kind) as first, harness(two, kind) as second:
            tasks = [asyncio.create_task(each.offer()) for each in (first, second)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert [await offered(each, session) for each in (one, two)] == ["CLAIMED", "CLAIMED"]
            for task in tasks:
                task.cancel()


async def test_a_harness_that_takes_no_more(service: Service, kind: str) -> None:
    """With capacity 0 a harness keeps what it works on, over the end of its older stream, and gets nothing new."""
    session = await make(service, kind, message())
    one = Harness(service, kind, 5, instance="one")
    old = await one.offer()
    async with harness(service, kind, 0, working=(session,), instance="one") as last:
        offer = await last.offer()
        await one.close()
        other = await make(service, kind, message())
        await last.nothing()
        assert not await last.release(old)
        async with harness(service, kind, 5) as two:
            assert (await two.offer()).session_id == other
            await two.nothing()
            await service.wake(session)
            assert await last.release(offer, wake_time=at(0))
            assert (await two.offer()).session_id == session


@pytest.mark.nats
async def test_a_harness_that_comes_from_a_replica_that_goes(run: Run, kind: str) -> None:
    """A replica is drained: what its harness works on is claimed at the next replica, and is offered to nobody else."""
    async with run() as two, run() as three:
        async with run() as one:
            session = await make(one, kind, message())
            first = Harness(one, kind, instance="first")
            await first.offer()
            one.parts.claims.drain()
            await first.close()
            moved = Harness(two, kind, working=(session,), instance="first")
            offer = await moved.offer()
            assert offer.session_id == session
        async with harness(three, kind, 5) as other:
            await asyncio.sleep(HOLD_SECONDS + 0.5)  # the queue gives back by then what nobody holds
            await other.nothing()
            await settle(two, session)
            assert not await moved.release(offer)
            await three.emit(session, message("more"))
            tasks = {asyncio.create_task(each.offer()) for each in (moved, other)}
            done, left = await asyncio.wait(tasks, timeout=HOLD_SECONDS / 2, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().session_id for task in done] == [session]
            for task in left:
                task.cancel()
        await moved.close()


async def killed_at_work(run: Run, kind: str) -> str:
    """Returns a session whose harness works on, and whose replica is gone with a claim that nobody gave back."""
    async with run() as one:
        session = await make(one, kind, message())
        first = Harness(one, kind, instance="first")
        await first.offer()
        one.parts.claims._left.clear()
        one.parts.claims._claims.clear()
        one.parts.claims._by_session.clear()
        for stream in one.parts.claims._streams:
            stream.claims.clear()
        await first.close()
    return session


@pytest.mark.nats
async def test_a_message_after_a_replica_was_killed(run: Run, kind: str) -> None:
    """The replica that the harness comes to has the dead one's item: what is said after the turn is offered at once,
    and not when the queue gives up on the dead."""
    session = await killed_at_work(run, kind)
    async with run() as two, harness(two, kind, working=(session,), instance="first") as moved:
        offer = await moved.offer()
        await settle(two, session)
        assert not await moved.release(offer)
        await two.emit(session, message("more"))
        async with asyncio.timeout(HOLD_SECONDS / 2):
            assert (await moved.offer()).session_id == session


@pytest.mark.nats
async def test_an_item_is_not_inherited_from_the_living(run: Run, kind: str) -> None:
    """A harness that was away too long comes to another replica than its successor's: it gets no claim there, and
    takes none from the successor."""
    session = await killed_at_work(run, kind)
    async with run() as two, run() as three, harness(three, kind, instance="second") as successor:
        offer = await successor.offer()
        async with harness(two, kind, 5, working=(session,), instance="first") as sleeper:
            await sleeper.nothing()
            assert session not in two.parts.claims._by_session
            await settle(three, session)
            assert not await successor.release(offer)


@pytest.mark.nats
async def test_an_item_that_comes_back_at_the_wrong_replica(run: Run, kind: str) -> None:
    """A replica was killed: whoever gets the item that nobody holds gives it to the replica that has the harness."""
    session = await killed_at_work(run, kind)
    async with run() as two, run() as three, harness(two, kind, working=(session,), instance="first") as moved:
        offer = await moved.offer()
        two.parts.claims._claims[offer.claim_id].item = None  # as if NATS had not answered
        async with harness(three, kind, 5) as other:
            await asyncio.sleep(HOLD_SECONDS + 0.5)
            await other.nothing()
            claim = two.parts.claims._claims[offer.claim_id]
            assert claim.item is not None


async def test_many_that_wake_at_once(service: Service, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness with room for all is offered some at once, and the others one after another."""
    monkeypatch.setattr(streams, "BURST", 3)
    monkeypatch.setattr(streams, "OFFERS_PER_SECOND", 0.5)
    sessions = {await make(service, kind, message()) for _ in range(6)}
    async with harness(service, kind, 10) as one:
        first = {(await one.offer()).session_id for _ in range(4)}
        await one.nothing()
        rest = {(await one.offer()).session_id for _ in range(2)}
        assert first | rest == sessions

"""Sessions that need a harness are offered to one, and to another when that one is gone."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.session import claims as claiming
from services.session import streams
from tests.session.claiming import Harness, harness, make, settle
from tests.session.running import Run, Service, message, note, refusal, replied, turn_ended


async def test_a_message_brings_an_offer(service: Service, kind: str) -> None:
    """A session with a message is offered once, with its type; one without is not; and again with the next message."""
    async with harness(service, kind, 5) as one:
        await make(service, kind)
        session = await make(service, kind, message())
        offer = await one.offer()
        assert (offer.session_id, offer.harness) == (session, kind)
        await settle(service, session)
        assert not await one.release(offer)
        await one.nothing()
        await service.emit(session, note())
        await one.nothing()
        await service.emit(session, message("more"))
        assert (await one.offer()).session_id == session


async def test_what_waited_is_offered_to_who_comes(service: Service, kind: str) -> None:
    """Sessions wait in the queue until a harness of their type opens its stream."""
    sessions = {await make(service, kind, message()) for _ in range(3)}
    async with harness(service, kind + "x", 5) as stranger, harness(service, kind, 5) as one:
        assert {(await one.offer()).session_id for _ in sessions} == sessions
        await stranger.nothing()


async def test_capacity_is_kept(service: Service, kind: str) -> None:
    """No more is offered than a harness takes at once; a release makes room for the next."""
    for _ in range(3):
        await make(service, kind, message())
    async with harness(service, kind, 2) as one:
        offers = [await one.offer(), await one.offer()]
        await one.nothing()
        await settle(service, offers[0].session_id)
        await one.release(offers[0])
        third = await one.offer()
        assert third.session_id not in {offer.session_id for offer in offers}


async def test_a_claimed_session_is_not_offered_twice(service: Service, kind: str) -> None:
    """Messages to a session at work reach the harness that has it, and wake nobody else."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        await one.offer()
        async with harness(service, kind, 5) as other:
            await service.emit(session, message("more"))
            await service.emit(session, ev.Event(interrupt_requested=ev.InterruptRequested()))
            await other.nothing()


async def test_a_closed_stream_is_a_dead_harness(service: Service, kind: str) -> None:
    """What a harness had is offered to another at once when its stream closes."""
    session = await make(service, kind, message())
    one = Harness(service, kind)
    first = await one.offer()
    async with harness(service, kind) as other:
        await other.nothing()
        began = time.monotonic()
        await one.close()
        second = await other.offer()
        assert second.session_id == session and second.claim_id != first.claim_id
        assert time.monotonic() - began < 5  # not after the store's own time limit of 10 s
        error = await refusal(other.service.harness.ReleaseWork(pb.ReleaseWorkRequest(claim_id=first.claim_id)))
        assert (error.code, error.reason) == ("NOT_FOUND", "CLAIM_UNKNOWN")


async def test_the_log_says_why_a_harness_took_over(service: Service, kind: str) -> None:
    """By the service's own word, not the harness's: the one before died, or gave the session back."""
    session = await make(service, kind, message())
    one = Harness(service, kind)
    await one.offer()
    await service.wake(session)
    await one.close()
    async with harness(service, kind) as other:
        offer = await other.offer()
        await service.wake(session)
        await other.release(offer)
        await other.offer()
        await service.wake(session)
    causes = [it.harness_woke.cause for it in await service.events(session) if it.HasField("harness_woke")]
    assert causes == [ev.TAKEOVER_CAUSE_UNSPECIFIED, ev.TAKEOVER_CAUSE_LOST, ev.TAKEOVER_CAUSE_RETURNED]


async def test_many_deaths_in_a_row(service: Service, kind: str) -> None:
    """However often harnesses come and go, the session is offered to the next one."""
    session = await make(service, kind, message())
    for _ in range(20):
        one = Harness(service, kind)
        assert (await one.offer()).session_id == session
        await one.close()


async def test_a_message_while_a_harness_lets_go(service: Service, kind: str) -> None:
    """Whenever a message lands between a harness's last look and its release, the session is offered again."""
    async with harness(service, kind) as one:
        session = await make(service, kind, message())
        for number in range(30):
            offer = await one.offer()
            assert offer.session_id == session
            await settle(service, session)

            async def say(delay: float = number / 5_000) -> None:
                await asyncio.sleep(delay)
                await service.emit(session, message("more"))

            await asyncio.gather(one.release(offer), say())


async def test_a_message_at_the_worst_moment(service: Service, kind: str) -> None:
    """A message that lands after the last look into the log, while the queue still holds the session, is not lost."""
    async with harness(service, kind) as one:
        session = await make(service, kind, message())
        offer = await one.offer()
        await settle(service, session)
        claim = service.parts.claims._claims[offer.claim_id]

        class Late:
            """The queue's item, removed a moment after a message came."""

            def __init__(self, item: Any) -> None:
                self.item = item

            async def done(self) -> None:
                await service.emit(session, message("late"))
                await self.item.done()

        claim.item = Late(claim.item)  # type: ignore[assignment]
        assert await one.release(offer)
        assert (await one.offer()).session_id == session


async def test_a_release_can_be_said_again(service: Service, kind: str) -> None:
    """A lost answer: the second release of the same claim changes nothing. A claim that never was is an error."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        await settle(service, session)
        assert not await one.release(offer)
        assert not await one.release(offer)
    never = pb.ReleaseWorkRequest(claim_id=ids.mint("claim"))
    error = await refusal(service.harness.ReleaseWork(never))
    assert (error.code, error.reason) == ("NOT_FOUND", "CLAIM_UNKNOWN")


async def test_a_release_that_left_work(service: Service, kind: str) -> None:
    """A harness that lets go in the middle of a turn is followed by another."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, replied("t1", read=epoch), epoch)
        assert await one.release(offer)
        assert (await one.offer()).session_id == session


async def test_a_refused_session_goes_to_another(service: Service, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that cannot take a session gives it back; it is offered again, a moment later."""
    monkeypatch.setattr(claiming, "REFUSED_SECONDS", 0.1)
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        assert await one.release(await one.offer(), refused=True)
        assert (await one.offer()).session_id == session


async def test_a_harness_that_does_nothing_is_not_asked_at_once_again(
    service: Service, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log and harness disagree about what there is to do: the offers come slower and slower, and do not stop."""
    monkeypatch.setattr(claiming, "FIRST_PAUSE_SECONDS", 0.3)
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        moments: list[float] = []
        for _ in range(3):
            offer = await one.offer()
            moments.append(asyncio.get_running_loop().time())
            await service.wake(session)
            assert await one.release(offer)
        await one.offer()
        moments.append(asyncio.get_running_loop().time())
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert pauses[0] >= 0.3 and pauses[1] >= 0.6 and pauses[2] >= 1.2


async def test_a_harness_that_takes_and_does_not_work(
    service: Service, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a harness does not take up in time is offered to another one. It is offered nothing more until it gives back
    what it has, and then again."""
    monkeypatch.setattr(claiming, "TAKE_UP_SECONDS", 0.3)
    monkeypatch.setattr(claiming, "HOLD_SECONDS", 0.3)
    session = await make(service, kind, message())
    async with harness(service, kind, 5) as idle:
        first = await idle.offer()
        async with harness(service, kind, 5) as other:
            second = await other.offer()
            assert second.session_id == first.session_id == session
            await settle(service, session)
            more = {await make(service, kind, message()) for _ in range(3)}
            offers = [await other.offer() for _ in more]
            assert {offer.session_id for offer in offers} == more
            await idle.nothing()
            for offer in offers:
                await settle(service, offer.session_id)
            for offer in (second, *offers):
                await other.release(offer)
        assert not await idle.release(first)
        last = await make(service, kind, message())
        assert (await idle.offer()).session_id == last


async def test_a_harness_that_works_for_long(service: Service, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has taken a session up keeps it, however long nothing is said; so does who was at work on it before."""
    monkeypatch.setattr(claiming, "TAKE_UP_SECONDS", 0.2)
    monkeypatch.setattr(claiming, "HOLD_SECONDS", 0.2)
    session = await make(service, kind, message())
    one = Harness(service, kind, instance="one")
    await one.offer()
    await service.wake(session)
    async with harness(service, kind, 5) as other:
        await other.nothing()
        again = Harness(service, kind, working=(session,), instance="one")
        await again.offer()
        await other.nothing()
        await again.close()
    await one.close()


async def test_a_rest_until_some_time(service: Service, kind: str) -> None:
    """A harness wants a session back later: not before, and then for certain."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, ev.Event(retry_scheduled=ev.RetryScheduled(attempt=1)), epoch)
        wake_time = Timestamp()
        wake_time.FromNanoseconds(time.time_ns() + 1_500_000_000)
        assert await one.release(offer, wake_time=wake_time)
        await one.nothing()
        assert (await one.offer()).session_id == session
        assert time.time_ns() >= wake_time.ToNanoseconds()


async def test_a_message_ends_a_rest(service: Service, kind: str) -> None:
    """A session that rests until tomorrow is offered when somebody writes; also when that was before the release."""
    session = await make(service, kind, message())
    tomorrow = Timestamp(seconds=int(time.time()) + 86_400)
    async with harness(service, kind) as one:
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, ev.Event(retry_scheduled=ev.RetryScheduled(attempt=1)), epoch)
        assert await one.release(offer, wake_time=tomorrow)
        await one.nothing()
        await service.emit(session, message("now"))
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, ev.Event(retry_scheduled=ev.RetryScheduled(attempt=2)), epoch)
        await service.emit(session, message("now!"))
        assert await one.release(offer, wake_time=tomorrow)
        assert (await one.offer()).session_id == session


async def test_a_person_who_decides_wakes_the_session(service: Service, kind: str) -> None:
    """A session that waits for a person is nobody's; the decision brings an offer."""
    session = await make(service, kind, message())
    async with harness(service, kind) as one:
        offer = await one.offer()
        epoch, _ = await service.wake(session)
        await service.emit(session, replied("t1", read=epoch), epoch)
        asked = ev.Event(tool_confirmation_requested=ev.ToolConfirmationRequested(tool_use_id="t1"))
        await service.emit(session, asked, epoch)
        assert not await one.release(offer)
        await service.emit(session, message("hello?"))
        await one.nothing()
        await service.emit(session, ev.Event(tool_confirmed=ev.ToolConfirmed(tool_use_id="t1", allowed=True)))
        assert (await one.offer()).session_id == session


async def test_a_lost_item_is_healed_by_saying_it_again(
    service: Service, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service died between the append and the queue: the client says it again, and the session is offered."""
    session = await make(service, kind)
    put = service.store.queue.put

    async def lost(harness: str, session_id: str) -> bool:
        return True

    monkeypatch.setattr(service.store.queue, "put", lost)
    await service.emit(session, message("a", "m1"))
    monkeypatch.setattr(service.store.queue, "put", put)
    async with harness(service, kind) as one:
        await one.nothing()
        assert (await service.emit(session, message("a", "m1"))).duplicate
        assert (await one.offer()).session_id == session


async def test_an_ended_session_is_nobodys(service: Service, kind: str) -> None:
    """What was queued and has ended since is not offered."""
    session = await make(service, kind, message())
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    async with harness(service, kind) as one:
        await one.nothing()


async def test_a_session_that_changed_its_type(service: Service, kind: str) -> None:
    """A session goes to harnesses of the type that it has now, also when it was queued under another."""
    session = await make(service, kind, message())
    request = pb.UpdateSessionRequest(session_id=session, config=SessionConfig(harness=kind + "x"))
    await service.client.UpdateSession(request)
    async with harness(service, kind) as old, harness(service, kind + "x") as new:
        offer = await new.offer()
        assert (offer.session_id, offer.harness) == (session, kind + "x")
        await old.nothing()


async def test_work_that_went_on_is_claimed_again(service: Service, kind: str) -> None:
    """A harness whose stream broke names what it works on, and gets claims for it that it can release."""
    session = await make(service, kind)
    async with harness(service, kind, working=(session,)) as one:
        offer = await one.offer()
        assert offer.session_id == session
        await service.emit(session, message())
        async with harness(service, kind, 5) as other:
            await other.nothing()
        assert await one.release(offer)
        assert (await one.offer()).session_id == session


async def test_signs_of_life(service: Service, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without offers sends empty messages, the first at once."""
    monkeypatch.setattr(streams, "LIFE_SECONDS", 0.1)
    call = service.harness.ClaimWork(pb.ClaimWorkRequest(capacity=1, harness_types=[kind]))
    for _ in range(3):
        assert await call.read() == pb.ClaimWorkResponse()
    call.cancel()


@pytest.mark.parametrize(
    "fields",
    [{"capacity": -1}, {"capacity": 10**6}, {"capacity": 1, "harness_types": ["a.>"]}],
)
async def test_nonsense_claims(service: Service, fields: dict[str, Any]) -> None:
    """A capacity that is none, or a type that cannot be one, is an error."""
    error = await refusal(service.harness.ClaimWork(pb.ClaimWorkRequest(**fields)))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "ARGUMENT_INVALID")


@pytest.mark.nats
async def test_replicas_share_the_work(run: Run, kind: str) -> None:
    """Two replicas: a session that is claimed at one is not offered at the other, nor by messages that come there."""
    async with run() as one, run() as two:
        session = await make(one, kind, message())
        async with harness(one, kind) as first:
            offer = await first.offer()
            async with harness(two, kind, 5) as second:
                await two.emit(session, message("at the other"))
                await second.nothing()
                await settle(one, session)
                await two.emit(session, message("while it rests"))
                assert await first.release(offer)
                got = await asyncio.wait_for(_either(first, second), 20)
                assert got.session_id == session


@pytest.mark.nats
async def test_a_claim_may_be_given_back_to_any_replica(run: Run, kind: str) -> None:
    """The replica that has the claim ends it: its harness is offered what is said to the session later, as a new claim.
    A claim that no replica has is an error all the same."""
    async with run() as one, run() as two:
        session = await make(one, kind, message())
        async with harness(one, kind) as first:
            offer = await first.offer()
            await settle(one, session)
            request = pb.ReleaseWorkRequest(claim_id=offer.claim_id, session_id=session)
            await two.harness.ReleaseWork(request)
            await first.nothing()
            await two.emit(session, message("more"))
            again = await first.offer()
            assert (again.session_id, again.claim_id == offer.claim_id) == (session, False)
            never = pb.ReleaseWorkRequest(claim_id=ids.mint("claim"), session_id=session)
            assert (await refusal(two.harness.ReleaseWork(never))).reason == "CLAIM_UNKNOWN"


@pytest.mark.nats
async def test_a_message_at_another_replica_ends_a_rest(run: Run, kind: str) -> None:
    """A session that rests at one replica is woken by a message at another."""
    async with run() as one, run() as two:
        session = await make(one, kind, message())
        async with harness(one, kind) as first:
            offer = await first.offer()
            epoch, _ = await one.wake(session)
            await one.emit(session, ev.Event(retry_scheduled=ev.RetryScheduled(attempt=1)), epoch)
            assert await first.release(offer, wake_time=Timestamp(seconds=int(time.time()) + 86_400))
            await first.nothing()
            await two.emit(session, message("now"))
            assert (await first.offer()).session_id == session


async def _either(one: Harness, other: Harness) -> pb.ClaimWorkResponse:
    tasks = {asyncio.create_task(each.offer()) for each in (one, other)}
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    return done.pop().result()


async def test_a_moved_session_goes_to_the_other_type(service: Service, kind: str) -> None:
    """A waiting session that is moved is offered to the other type, and to none of the first that comes later."""
    session = await make(service, kind, message())
    async with harness(service, kind + "x") as one:
        await move(service, session, kind + "x")
        assert (await one.offer()).harness == kind + "x"
        async with harness(service, kind, 5) as late:
            await late.nothing()


async def test_a_session_is_moved_when_its_turn_ends(service: Service, kind: str) -> None:
    """Whoever has answered ends the turn, also another one after its death; then the other type gets the session."""
    session = await make(service, kind, message())
    one = Harness(service, kind)
    await one.offer()
    epoch, _ = await service.wake(session)
    await service.emit(session, replied(read=epoch), epoch)
    async with harness(service, kind + "x") as other:
        await move(service, session, kind + "x")
        await service.emit(session, message("more"))
        await one.close()
        async with harness(service, kind) as again:
            offer = await again.offer()
            epoch, _ = await service.wake(session)
            await service.emit(session, turn_ended(epoch - 2), epoch)
            await other.nothing()
            assert await again.release(offer)
        assert (await other.offer()).session_id == session


async def test_a_death_right_after_the_border(service: Service, kind: str) -> None:
    """A harness that dies when its type's last turn has ended is followed by one of the other type alone."""
    session = await make(service, kind, message())
    one = Harness(service, kind)
    await one.offer()
    epoch, _ = await service.wake(session)
    await service.emit(session, replied(read=epoch), epoch)
    await move(service, session, kind + "x")
    await service.emit(session, message("more"))
    await service.emit(session, turn_ended(epoch), epoch)
    await one.close()
    async with harness(service, kind + "x") as other:
        assert (await other.offer()).session_id == session


async def move(service: Service, session: str, kind: str) -> None:
    """Makes it a session of another harness type."""
    config = SessionConfig(harness=kind)
    await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=config))

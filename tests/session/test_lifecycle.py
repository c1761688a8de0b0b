"""What happens to a session as a whole: archived, restored, deleted."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import nats
import pytest

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.kit.errors import Gone
from services.session import codec, tombstones
from services.session.emitters import SESSION
from services.session.log import Store, StoredBatch
from services.session.logs import memory
from services.session.logs.jetstream.streams import shard_of
from services.session.tombstones import LivingLog, Tombstone, Tombstones
from tests.session.running import Run, Service, message, note, refusal, turn_ended
from tests.support.nats import NatsServer


async def archive(service: Service, session: str, restore: bool = False) -> pb.Session:
    """Archives a session, or restores it."""
    answer = await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session, restore=restore))
    found: pb.Session = answer.session
    return found


async def delete(service: Service, session: str) -> None:
    """Deletes a session."""
    await service.client.DeleteSession(pb.DeleteSessionRequest(session_id=session))


async def listed(service: Service, **fields: Any) -> list[str]:
    """Returns the ids of a page of 1,000."""
    answer = await service.client.ListSessions(pb.ListSessionsRequest(page_size=1_000, **fields))
    return [session.session_id for session in answer.sessions]


async def reasons(service: Service, session: str) -> set[str]:
    """Makes each call that asks a session or writes to it, which must fail, and returns the reasons."""
    client = service.client
    made: list[Any] = [
        service.emit(session, note("n1")),
        client.GetSession(pb.GetSessionRequest(session_id=session)),
        client.GetEvents(pb.GetEventsRequest(session_id=session)),
        client.WatchEvents(pb.WatchEventsRequest(session_id=session)),
        service.emit(session, message()),
        client.UpdateSession(pb.UpdateSessionRequest(session_id=session)),
        client.EndSession(pb.EndSessionRequest(session_id=session)),
        client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session)),
        client.ForkSession(pb.ForkSessionRequest(session_id=session)),
        service.harness.EmitEvent(
            pb.EmitEventRequest(session_id=session, event=ev.Event(harness_woke=ev.HarnessWoke()), expected_position=2)
        ),
    ]
    return {(await refusal(call)).reason for call in made}


async def test_an_archived_session_is_read_only(service: Service) -> None:
    """It can be read and not written to, says so, and is listed only when asked for; twice is the same as once."""
    session = await service.create(note("n1"))
    for _ in range(2):
        archived = await archive(service, session)
        assert (archived.archived, archived.last_position) == (True, 3)
    writes = (
        service.emit(session, message()),
        service.wake(session),
        service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session)),
        service.client.EndSession(pb.EndSessionRequest(session_id=session)),
    )
    for write in writes:
        error = await refusal(write)
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "SESSION_ARCHIVED")
    assert (await service.emit(session, note("n1"))).duplicate
    kinds = [event.WhichOneof("kind") for event in await service.log(session)]
    assert kinds == ["session_started", "custom", "session_archived"]
    assert session not in await listed(service)
    assert session in await listed(service, include_archived=True)


async def test_a_restored_session_goes_on(service: Service) -> None:
    """Restoring gives back everything: it is writable, listed, and offered if it has work; saying it twice is fine."""
    session = await service.create(message())
    await archive(service, session)
    for _ in range(2):
        assert not (await archive(service, session, restore=True)).archived
    assert session in await listed(service)
    epoch, _ = await service.wake(session)
    assert (await service.emit(session, turn_ended(2), epoch)).position == epoch + 1


async def test_nobody_works_on_an_archived_session(service: Service) -> None:
    """It is not offered though it has a message to answer; once restored it is."""
    archived, other = await service.create(message()), ""
    await archive(service, archived)
    other = await service.create(message())
    offered = service.harness.ClaimWork(pb.ClaimWorkRequest(capacity=1_000))
    seen: set[str] = set()
    async for claim in offered:
        seen.add(claim.session_id)
        if claim.session_id == other:
            break
    assert archived not in seen
    await archive(service, archived, restore=True)
    async for claim in offered:
        if claim.session_id == archived:
            break
    offered.cancel()


async def test_archiving_revokes_grants(service: Service) -> None:
    """A hand or the vault proxy is told that nobody acts for the session any more."""
    session = await service.create(message())
    _, grant = await service.wake(session)
    metadata = (("x-handmesh-grant", grant),)
    await service.sandbox.CheckGrant(pb.CheckGrantRequest(), metadata=metadata)
    await archive(service, session)
    error = await refusal(service.sandbox.CheckGrant(pb.CheckGrantRequest(), metadata=metadata))
    assert error.reason == "GRANT_INVALID"


async def test_an_ended_session_can_be_put_away(service: Service) -> None:
    """Archived and restored, it stays ended."""
    session = await service.create()
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    assert (await archive(service, session)).archived
    restored = await archive(service, session, restore=True)
    assert (restored.archived, restored.status) == (False, pb.SESSION_STATUS_ENDED)
    assert (await refusal(service.emit(session, message()))).reason == "SESSION_ENDED"


async def test_a_strangers_session_is_not_there(service: Service) -> None:
    """Another tenant can neither archive nor delete it, and cannot tell that there is one."""
    session = await service.create()
    for call in (
        service.other.ArchiveSession(pb.ArchiveSessionRequest(session_id=session)),
        service.other.DeleteSession(pb.DeleteSessionRequest(session_id=session)),
    ):
        error = await refusal(call)
        assert (error.code, error.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND")
    await delete(service, session)
    error = await refusal(service.other.DeleteSession(pb.DeleteSessionRequest(session_id=session)))
    assert error.reason == "SESSION_NOT_FOUND"


async def test_a_deleted_session_is_gone_for_every_call(service: Service) -> None:
    """All that asks it or writes to it says that it is not there; deleting it again is fine; no list has it."""
    session = await service.create(note("n1"), request_id=(request := ids.mint("req")))
    before = time.time_ns() // 1_000_000
    for _ in range(2):
        await delete(service, session)
    assert await reasons(service, session) == {"SESSION_NOT_FOUND"}
    assert session not in await listed(service, include_archived=True)
    assert (await refusal(service.create(note("n1"), request_id=request))).reason == "SESSION_NOT_FOUND"
    entry = await service.store.registry.get("tombstones", session)
    assert entry is not None
    stone = json.loads(entry.value)
    assert before <= stone.pop("deleted") <= time.time_ns() // 1_000_000
    assert len(stone.pop("request")) == 64
    assert stone == {"tenant": "default"}


async def test_what_was_never_there_cannot_be_deleted(service: Service) -> None:
    """An id that means nothing is an error and gets no tombstone."""
    session = ids.mint("sess")
    assert (await refusal(delete(service, session))).reason == "SESSION_NOT_FOUND"
    assert await service.store.registry.get("tombstones", session) is None


async def test_whoever_watches_sees_the_end(service: Service) -> None:
    """The last event of a deleted session reaches those who watch; then their streams end as not found."""
    session = await service.create()
    watching = service.client.WatchEvents(pb.WatchEventsRequest(session_id=session))
    assert len((await watching.read()).events) == 1
    await delete(service, session)
    assert [event.WhichOneof("kind") for event in (await watching.read()).events] == ["session_deleted"]
    assert (await refusal(watching)).reason == "SESSION_NOT_FOUND"


async def test_deleting_ends_an_archived_session_too(service: Service) -> None:
    """Archived or ended, a session can be deleted."""
    session = await service.create()
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    await archive(service, session)
    await delete(service, session)
    assert (await refusal(archive(service, session, restore=True))).reason == "SESSION_NOT_FOUND"


@pytest.mark.nats
async def test_writers_at_another_replica_find_it_gone(run: Run, own_nats_server: NatsServer) -> None:
    """Writers that race a deletion at another replica all end with not found, and nothing follows the last event."""
    async with run() as one, run() as two:
        session = await one.create()

        async def write(name: str) -> str:
            for number in range(1_000):
                try:
                    await two.emit(session, note(f"{name}{number}"))
                except Exception as problem:
                    return (await refusal(_raise(problem))).reason
            return ""

        writing = [asyncio.create_task(write(name)) for name in "abc"]
        while await one.head(session) < 20:
            await asyncio.sleep(0)
        await delete(one, session)
        assert {*await asyncio.gather(*writing)} == {"SESSION_NOT_FOUND"}
        last = await one.store.log.head(session)
        assert last is not None and tombstones.is_fence(last)
        assert await reasons(two, session) == {"SESSION_NOT_FOUND"}


@pytest.mark.nats
async def test_a_purged_session_stays_gone(run: Run, own_nats_server: NatsServer) -> None:
    """Once its log is purged, replicas that remember the session, and new ones, say the same as before."""
    async with run() as one, run() as two:
        session = await one.create(note("n1"), request_id=(request := ids.mint("req")))
        await two.emit(session, note("n2"))
        await delete(one, session)
        connection = await nats.connect(own_nats_server.url, **own_nats_server.migrate_login)
        shard = shard_of(session)
        await connection.jetstream().purge_stream(f"LOG-{shard}", subject=f"log.{shard}.{session}.*")
        await connection.close()
        async with run() as three:
            for service in (one, two, three):
                assert await reasons(service, session) == {"SESSION_NOT_FOUND"}
                error = await refusal(service.create(note("n1"), request_id=request))
                assert error.reason == "SESSION_NOT_FOUND"
                await delete(service, session)


async def _raise(problem: Exception) -> None:
    raise problem


class _Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


async def _stored(store: Store, session: str) -> StoredBatch:
    """Stores a session's first event and returns what would come next."""
    first = StoredBatch(1, 1, "", codec.seal([note("n1")], [SESSION], 1, 1, 0))
    await store.log.append(session, first)
    return StoredBatch(2, 1, first.digest, codec.seal([note("n2")], [SESSION], 2, 2, 0))


@pytest.mark.parametrize("look_first", [False, True])
async def test_a_writer_that_slept_through_it_resurrects_nothing(look_first: bool) -> None:
    """A process stopped in the middle of an append, while the log was deleted and purged, is told that it is gone."""
    async with memory.make() as store:
        clock, session = _Clock(), ids.mint("sess")
        stones = Tombstones(store.registry)
        living = LivingLog(store.log, stones, clock)
        late = await _stored(store, session)
        assert await living.head(session) is not None
        await tombstones.fence(store.log, session, 3)
        await stones.put(session, Tombstone(3, "default"))
        store.log._batches.pop(session)  # type: ignore[attr-defined]  # as the janitor does
        clock.time += tombstones.PURGE_AFTER_SECONDS
        with pytest.raises(Gone):
            await (living.head(session) if look_first else living.append(session, late))
        with pytest.raises(Gone):
            await living.head(session)


async def test_what_was_purged_is_not_called_damaged() -> None:
    """A reader that saw the session alive a moment ago, and misses its events now, is told that it is gone."""
    async with memory.make() as store:
        clock, session = _Clock(), ids.mint("sess")
        stones = Tombstones(store.registry)
        living = LivingLog(store.log, stones, clock)
        await _stored(store, session)
        assert await living.head(session) is not None
        await stones.put(session, Tombstone(3, "default"))
        store.log._batches.pop(session)  # type: ignore[attr-defined]  # as the janitor does
        with pytest.raises(Gone):
            await living.read(session, 1, 2, 1000)


async def test_a_session_in_use_costs_no_look_at_tombstones() -> None:
    """Only what was not seen alive for some time is looked for among the dead."""

    class Counting(Tombstones):
        looks = 0

        async def find(self, session_id: str) -> Tombstone | None:
            self.looks += 1
            return await super().find(session_id)

    async with memory.make() as store:
        clock, session = _Clock(), ids.mint("sess")
        stones = Counting(store.registry)
        living = LivingLog(store.log, stones, clock)
        following = await _stored(store, session)
        for _ in range(10):
            await living.head(session)
        await living.append(session, following)
        assert stones.looks == 1
        clock.time += tombstones.TRUST_SECONDS
        await living.head(session)
        assert stones.looks == 2


async def test_even_a_damaged_log_can_be_deleted(service: Service) -> None:
    """The fence goes past all rules."""
    session = await service.create()
    broken = StoredBatch(2, 1, "0" * 64, codec.seal([note("x")], [SESSION], 2, 2, 0))
    await service.store.log.append(session, broken)
    assert await service.status(session) == "DAMAGED"
    assert (await refusal(archive(service, session))).reason == "SESSION_DAMAGED"
    await delete(service, session)
    assert (await refusal(service.emit(session, note()))).reason == "SESSION_NOT_FOUND"

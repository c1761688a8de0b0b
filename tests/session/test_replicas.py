"""Two session services over one store: any replica is correct, whatever the other has done meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.session.log import StoredBatch
from services.session.settings import Settings
from tests.session.claiming import harness
from tests.session.running import Run, Service, finished, message, note, refusal, replied, running, turn_ended

pytestmark = pytest.mark.nats


@pytest.fixture
async def pair(run: Run) -> AsyncIterator[tuple[Service, Service]]:
    """Two replicas."""
    async with run() as one, run() as two:
        yield one, two


async def test_appends_at_both_are_one_log(pair: tuple[Service, Service]) -> None:
    """Writers at two replicas race for the positions of one session: no gap, no double, each one's order kept."""
    one, two = pair
    session = await one.create()

    async def write(service: Service, name: str) -> None:
        for number in range(50):
            await service.emit(session, note(f"{name}{number}"))

    await asyncio.gather(write(one, "a"), write(two, "b"), write(two, "c"))
    log = await one.log(session)
    assert log == await two.log(session)
    assert [event.position for event in log] == list(range(1, 152))
    for name in "abc":
        mine = [event.event_id for event in log if event.event_id.startswith(name) and event.HasField("custom")]
        assert mine == [f"{name}{number}" for number in range(50)]
    times = [event.emit_time.ToNanoseconds() for event in log]
    assert times == sorted(times)


async def test_what_one_appended_the_other_knows(pair: tuple[Service, Service]) -> None:
    """A replica that remembers an older log reads on before it refuses, answers twice or says what there is."""
    one, two = pair
    session = await one.create()
    await two.emit(session, note("x"))
    await one.emit(session, message("a", "m1"))
    assert await two.head(session) == 3
    assert (await two.emit(session, message("a", "m1"))).duplicate
    await one.emit(session, note("y"))
    assert (await two.emit(session, note("z"), expected_position=4)).position == 5
    error = await refusal(one.emit(session, note("late"), expected_position=4))
    assert (error.reason, error.metadata) == ("POSITION_CONFLICT", {"last_position": "5"})


async def test_an_epoch_holds_everywhere(pair: tuple[Service, Service]) -> None:
    """A harness that was fenced at one replica is fenced at the other, also by an append that the other never saw."""
    one, two = pair
    session = await one.create(message())
    first, _ = await one.wake(session)
    await two.emit(session, replied("t1", read=first), first)
    second, _ = await one.wake(session, 4)
    error = await refusal(two.emit(session, finished("t1"), first))
    assert (error.reason, error.metadata) == ("EPOCH_STALE", {"epoch": str(second)})
    await two.emit(session, finished("t1", "f"), second)
    error = await refusal(one.emit(session, finished("t1", "g"), second))
    assert error.reason == "TOOL_CALL_SETTLED"
    await one.emit(session, turn_ended(second + 1), second)
    assert await two.status(session) == "IDLE"


async def test_watchers_at_another_replica(pair: tuple[Service, Service]) -> None:
    """What is appended at one replica reaches who watches at the other."""
    one, two = pair
    session = await one.create()
    call = two.client.WatchEvents(pb.WatchEventsRequest(session_id=session))
    positions: list[int] = []

    async def write() -> None:
        for number in range(40):
            await (one if number % 2 else two).emit(session, note(f"n{number}"))

    writing = asyncio.create_task(write())
    async with asyncio.timeout(20):
        while not positions or positions[-1] < 41:
            positions += [event.position for event in (await call.read()).events]
    await writing
    assert positions == list(range(1, 42))
    call.cancel()


async def test_a_request_id_makes_one_session_at_both(pair: tuple[Service, Service]) -> None:
    """The same CreateSession at two replicas at once is one session."""
    request = pb.CreateSessionRequest(request_id="r", config=SessionConfig(title="t"), initial_events=[message()])
    answers = await asyncio.gather(*(service.client.CreateSession(request) for service in pair * 5))
    assert len({answer.session.session_id for answer in answers}) == 1
    found = await pair[1].client.ListSessions(pb.ListSessionsRequest())
    assert [session.session_id for session in found.sessions] == [answers[0].session.session_id]


async def test_whom_both_serve(pair: tuple[Service, Service]) -> None:
    """Each replica knows which harness types are served at any, and how much room there is; who takes nothing serves
    nobody."""
    one, two = pair
    async with harness(one, "echo", 3), harness(two, "echo", 5), harness(two, "review", 2), harness(two, "old", 0):
        for service in pair:
            await _served(service, [("echo", 2, 8), ("review", 1, 2)])
    await _served(one, [])


async def _served(service: Service, wanted: list[tuple[str, int, int]]) -> None:
    """Waits until these types are served, and no other ones: a stream that is opened or closed arrives in a moment."""
    async with asyncio.timeout(20):
        while True:
            answer = await service.client.ListServedTypes(pb.ListServedTypesRequest())
            if [(it.name, it.harnesses, it.room) for it in answer.types] == wanted:
                return
            await asyncio.sleep(0.01)


async def test_those_that_wait_are_counted_by_type(pair: tuple[Service, Service]) -> None:
    """Only when that is asked for; a type that nobody serves is told, since that is why they wait."""
    one, two = pair
    for kind in ("nobody", "nobody", "somebody"):
        await one.create(message(), config=SessionConfig(harness=kind))

    async def told(service: Service, **asked: bool) -> dict[str, tuple[int, int]]:
        answer = await service.client.ListServedTypes(pb.ListServedTypesRequest(**asked))
        return {it.name: (it.harnesses, it.waiting) for it in answer.types}

    assert await told(two) == {}
    assert await told(two, count_waiting=True) == {"nobody": (0, 2), "somebody": (0, 1)}
    async with harness(one, "somebody", 1):
        async with asyncio.timeout(20):
            while await told(one, count_waiting=True) != {"nobody": (0, 2), "somebody": (1, 0)}:
                await asyncio.sleep(0.01)


async def test_ends_at_both(pair: tuple[Service, Service]) -> None:
    """An end at one replica is an end at the other, and can be said there too."""
    one, two = pair
    session = await one.create(message())
    await two.status(session)
    await asyncio.gather(*(s.client.EndSession(pb.EndSessionRequest(session_id=session)) for s in pair))
    assert (await refusal(two.emit(session, message()))).reason == "SESSION_ENDED"
    assert [event.WhichOneof("kind") for event in await one.log(session)].count("session_ended") == 1


# --- a log that is not as it was ---


@pytest.mark.parametrize("damage", ["link", "gap", "count"])
async def test_a_damaged_log_is_read_and_never_written(settings: Settings, identities, damage: str) -> None:  # type: ignore[no-untyped-def]
    """A broken link, a gap or a wrong count: the session says `damaged`, refuses to append, and is read up to there."""
    async with running(settings, identities) as service:
        session = await service.create()
        await service.emit(session, note("n1"))
        head = await service.store.log.head(session)
        assert head is not None
        event = ev.Event(event_id="evil", position=4 if damage == "gap" else 3, ignorable=True, custom=ev.Custom())
        data = pb.GetEventsResponse(events=[event]).SerializeToString()
        link = "0" * 64 if damage == "link" else head.digest
        batch = StoredBatch(event.position, 2 if damage == "count" else 1, link, data)
        await service.store.log.append(session, batch)
        assert await service.status(session) == "DAMAGED"
        error = await refusal(service.emit(session, note("n2")))
        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "SESSION_DAMAGED")
        assert [e.event_id for e in await service.events(session, end_position=3)] == ["session_started", "n1"]
        assert await service.status(await service.create()) == "IDLE"


async def test_a_log_that_became_shorter_is_damaged(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has lost its end, which this process remembers: nothing is written over it."""
    session = await service.create()
    await service.emit(session, note("n1"))
    shorter = (await service.store.log.read(session, 1, 2, 1))[0]

    async def head(session_id: str, hint: StoredBatch | None = None) -> StoredBatch:
        return shorter

    monkeypatch.setattr(service.store.log, "head", head)
    assert await service.status(session) == "DAMAGED"
    assert (await refusal(service.emit(session, note("n2")))).reason == "SESSION_DAMAGED"


async def test_strangers_are_not_remembered(service: Service) -> None:
    """Ids that nothing stands behind cost no memory."""
    for _ in range(50):
        await refusal(service.client.GetSession(pb.GetSessionRequest(session_id=ids.mint("sess"))))
    assert len(service.parts.sessions._writer._kept) < 50

"""High-water marks, and what a session is whose log fell short of its mark."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from handmesh.session.v1 import session_pb2 as pb
from services.kit import ids
from services.kit.errors import Unavailable
from services.session.integrity import BUCKET, LAG_EVENTS, Mark, Marks
from services.session.log import Store, StoredBatch
from services.session.logs.memory import MemoryRegistry, make
from services.session.settings import Settings
from tests.session.running import Service, make_settings, message, note, refusal, running, serving, turn_ended

# --- writing marks ---


async def mark_of(service: Service, session: str) -> int:
    """Returns the position of a session's mark."""
    return (await Marks(service.store.registry).read(session)).position


async def marked(service: Service, session: str, position: int) -> None:
    """Waits until a session's mark has come to a position."""
    async with asyncio.timeout(20):
        while await mark_of(service, session) < position:
            await asyncio.sleep(0.01)


async def test_the_end_of_a_turn_is_acknowledged_with_its_mark(service: Service) -> None:
    """Once `TurnEnded` has returned, a loss of anything up to it would be noticed; a repeat says so too."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    ended = turn_ended(2)
    ended.event_id = "end"
    for _ in range(2):
        assert (await service.emit(session, ended, epoch)).position == 4
        assert await mark_of(service, session) == 4


async def test_marks_follow_by_themselves(service: Service) -> None:
    """Without any end of a turn the mark follows: behind the appends, and not with each of them."""
    session = await service.create()
    for number in range(5):
        await service.emit(session, note(f"n{number}"))
    await marked(service, session, 6)


async def test_many_events_do_not_wait_for_the_clock() -> None:
    """`LAG_EVENTS` without a mark are one due; fewer are not."""
    marks = Marks(MemoryRegistry())
    for position in range(1, LAG_EVENTS + 1):
        assert not marks._due.is_set()
        marks.note("s", Mark(position, "d"))
    assert marks._due.is_set()
    await marks.flush()
    marks._due.clear()
    marks.note("s", Mark(LAG_EVENTS + 1, "d"))
    assert not marks._due.is_set()
    assert (await marks.read("s")).position == LAG_EVENTS


async def test_marks_only_rise() -> None:
    """Two replicas write the same session's mark in any order: the highest stays."""
    registry = MemoryRegistry()
    one, two = Marks(registry), Marks(registry)
    for marks, position in ((one, 9), (two, 4), (two, 12), (one, 10)):
        marks.note("s", Mark(position, f"d{position}"))
        await marks.settle("s")
    assert await one.read("s") == Mark(12, "d12")
    many = [Marks(registry) for _ in range(8)]
    for position, marks in enumerate(many, 20):
        marks.note("s", Mark(position, ""))
    await asyncio.gather(*(marks.settle("s") for marks in many))
    assert (await one.read("s")).position == 27


async def test_a_mark_that_cannot_be_written_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the registry is away nothing is forgotten, and the end of a turn is not acknowledged."""
    marks = Marks(MemoryRegistry())
    marks.note("s", Mark(1, "d"))

    async def away(*_: object) -> bool:
        raise Unavailable("LOG_UNAVAILABLE", "away")

    with monkeypatch.context() as patch:
        patch.setattr(marks._registry, "swap", away)
        await marks.flush()
        with pytest.raises(Unavailable):
            await marks.settle("s")
    await marks.flush()
    assert (await marks.read("s")).position == 1


# --- logs that fell short ---


class Cut:
    """A log that has lost what was appended after a point, as a damaged block file does it: silently."""

    def __init__(self, log: object, session: str, batches: Sequence[StoredBatch]) -> None:
        self._log, self._session, self._batches = log, session, list(batches)

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        if session_id == self._session:
            raise AssertionError("a damaged log was written to")
        await self._log.append(session_id, batch)  # type: ignore[attr-defined]

    async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> Sequence[StoredBatch]:
        if session_id != self._session:
            found: Sequence[StoredBatch] = await self._log.read(session_id, start, end, max_bytes)  # type: ignore[attr-defined]
            return found
        return [each for each in self._batches if each.last_position >= start and each.first_position < end]

    async def head(self, session_id: str) -> StoredBatch | None:
        if session_id != self._session:
            found: StoredBatch | None = await self._log.head(session_id)  # type: ignore[attr-defined]
            return found
        return self._batches[-1] if self._batches else None


@dataclass
class Damaged:
    """A session whose log is not as it was, at a service that has not seen it before."""

    service: Service
    session: str


LOSSES = {
    "its end": lambda batches: batches[:-1],
    "all but its beginning": lambda batches: batches[:1],
    "its middle": lambda batches: [*batches[:2], *batches[3:]],
    "everything": lambda batches: [],
    "its end, and others wrote over it": lambda batches: [
        *batches[:-1],
        replace(batches[-1], data=batches[-1].data.replace(b"n5", b"xx")),
    ],
    "sense": lambda batches: [*batches[:-1], replace(batches[-1], data=b"\xff" * 20)],
}


@asynccontextmanager
async def damaged(identities: Path, loss: str) -> AsyncIterator[Damaged]:
    """Damages a session with six events in six batches."""
    settings = make_settings(identities, None, "memory")
    async with make() as store:
        async with serving(settings, store, identities) as before:
            session = await before.create()
            for number in range(1, 6):
                await before.emit(session, note(f"n{number}"))
        batches = await store.log.read(session, 1, 7, 1 << 20)
        assert len(batches) == 6
        broken: Store = replace(store, log=Cut(store.log, session, LOSSES[loss](list(batches))))
        async with serving(settings, broken, identities) as service:
            yield Damaged(service, session)


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_log_that_lost_something_is_damaged(identities: Path, loss: str) -> None:
    """Whatever is missing or other than marked: the session says so, is never written, and others are not touched."""
    async with damaged(identities, loss) as there:
        service, session = there.service, there.session
        assert await service.status(session) == "DAMAGED"
        for call in (
            service.emit(session, note("n9")),
            service.wake(session, 6),
            service.client.EndSession(pb.EndSessionRequest(session_id=session)),
        ):
            assert (await refusal(call)).reason == "SESSION_DAMAGED"
        answer = await service.client.VerifySession(pb.VerifySessionRequest(session_id=session))
        assert {each.invariant for each in answer.violations} == {"I2"} and answer.high_water_position == 6
        assert (await refusal(service.other.GetSession(pb.GetSessionRequest(session_id=session)))).code == "NOT_FOUND"
        assert await service.status(await service.create()) == "IDLE"


async def test_what_is_left_of_a_damaged_log_is_read(identities: Path) -> None:
    """Readable: the events before the loss, and behind a hole those after it; the hole itself is an error."""
    async with damaged(identities, "its middle") as there:
        assert [e.position for e in await there.service.events(there.session, end_position=3)] == [1, 2]
        assert [e.position for e in await there.service.events(there.session, start_position=4)] == [4, 5, 6]
        request = pb.GetEventsRequest(session_id=there.session, start_position=3)
        assert (await refusal(there.service.client.GetEvents(request))).reason == "SESSION_DAMAGED"
    async with damaged(identities, "everything") as there:
        assert list(await there.service.events(there.session)) == []


async def test_a_loss_is_noticed_without_a_restart(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store was away and came back shorter: what this process remembers is compared before it is written on."""
    session = await service.create()
    await service.emit(session, note("n1"))
    await service.emit(session, note("n2"))
    batches = await service.store.log.read(session, 1, 3, 1 << 20)
    cut = Cut(service.store.log, session, batches)
    writer = service.parts.writer
    monkeypatch.setattr(writer, "_log", cut)
    writer.doubt()
    assert (await refusal(service.emit(session, note("n3")))).reason == "SESSION_DAMAGED"
    writer.doubt()  # once more: what was found is not forgotten
    assert (await refusal(service.emit(session, note("n3")))).reason == "SESSION_DAMAGED"
    assert await service.status(session) == "DAMAGED"


async def test_doubt_does_no_harm(service: Service) -> None:
    """A log that is as it was goes on after any number of doubts, also in the middle of appends."""
    session = await service.create()

    async def write(name: str) -> None:
        for number in range(20):
            await service.emit(session, note(f"{name}{number}"))
            service.parts.writer.doubt()

    await asyncio.gather(*(write(name) for name in "abc"))
    assert [event.position for event in await service.log(session)] == list(range(1, 62))
    assert await service.status(session) == "IDLE"


async def test_a_mark_survives_the_service(settings: Settings, identities: Path) -> None:
    """What was appended before an orderly end is marked, and a log that was only read is marked too."""
    async with make() as store:
        async with serving(settings, store, identities) as service:
            session = await service.create()
            await service.emit(session, note("n1"))
        assert (await Marks(store.registry).read(session)).position == 2
        store.registry._buckets[BUCKET].clear()  # type: ignore[attr-defined]
        async with serving(settings, store, identities) as service:
            assert await service.status(session) == "IDLE"
            await marked(service, session, 2)


# --- VerifySession ---


async def test_verify_finds_nothing_in_a_good_log(service: Service) -> None:
    """A session with batches and a turn: no violations, its length, and how far it is covered."""
    session = await service.create(message("a"), message("b"))
    epoch, _ = await service.wake(session)
    await service.emit(session, turn_ended(3), epoch)
    answer = await service.client.VerifySession(pb.VerifySessionRequest(session_id=session))
    assert answer == pb.VerifySessionResponse(last_position=5, high_water_position=5)


async def test_verify_is_for_ones_own(service: Service) -> None:
    """Another tenant's session is not there, nor one that does not exist."""
    session = await service.create()
    for stub, which in ((service.other, session), (service.client, ids.mint("sess"))):
        error = await refusal(stub.VerifySession(pb.VerifySessionRequest(session_id=which)))
        assert (error.code, error.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND")


async def test_verify_reads_over_wide_holes(settings: Settings, identities: Path) -> None:
    """A hole of a thousand positions hides nothing of what lies behind it."""
    async with running(settings, identities) as service:
        session = await service.create()
        last = await service.store.log.head(session)
        assert last is not None
        far = StoredBatch(1_500, 1, last.digest, pb.GetEventsResponse(events=[_far()]).SerializeToString())
        await service.store.log.append(session, far)
        answer = await service.client.VerifySession(pb.VerifySessionRequest(session_id=session))
        assert answer.last_position == 1_500
        assert ("I2", 2) in {(each.invariant, each.position) for each in answer.violations}


async def test_the_command_verifies(identities: Path) -> None:
    """`handmesh verify --all` names what is wrong with which session, and its exit code says so too."""
    async with damaged(identities, "its end") as there:
        good = await there.service.create()
        code, said = await _command(there.service, "--all")
        assert code == 1 and "2 verified, 1 with violations" in said
        assert f"{there.session}  I2  position 6: the log ends at 5, and had come to 6" in said
        assert await _command(there.service, good) == (0, "nothing is wrong\n")
        assert (await _command(there.service))[0] == 2


async def _command(service: Service, *arguments: str) -> tuple[int, str]:
    environment = os.environ | {
        "HANDMESH_ADDRESS": service.served.client_address,
        "HANDMESH_API_KEY": service.served.key,
    }
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "handmesh.cli", "verify", *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await command.communicate()
    return command.returncode or 0, said.decode()


def _far():  # type: ignore[no-untyped-def]
    event = note("far")
    event.position, event.emitter = 1_500, "client"
    return event

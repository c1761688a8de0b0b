"""Following a log: each position once and in order, over breaks; previews on the side; slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.session import codec
from services.session import watcher as watching
from services.session.integrity import Marks
from services.session.log import Store
from services.session.logs.memory import make
from services.session.writer import Draft, Writer
from tests.session.running import Service, message, note, refusal


class Watch:
    """A watcher that keeps what it saw."""

    def __init__(self, stub: Any, session: str, start: int = 1, previews: bool = False) -> None:
        self.positions: list[int] = []
        self.seen: list[tuple[str, str]] = []
        self.discarded: list[str] = []
        self.call = stub.WatchEvents(pb.WatchEventsRequest(session_id=session, start_position=start, previews=previews))

    async def read(self) -> pb.WatchEventsResponse:
        """Reads one message."""
        async with asyncio.timeout(20):
            answer = await self.call.read()
        assert answer is not grpc.aio.EOF
        self.seen += [("preview", piece.text) for piece in answer.previews]
        self.discarded += [piece.event_id for piece in answer.previews if piece.discarded]
        self.seen += [("event", event.event_id) for event in answer.events]
        self.positions += [event.position for event in answer.events]
        return answer

    async def until(self, position: int) -> list[int]:
        """Reads until a position was seen; returns all that were."""
        while not self.positions or self.positions[-1] < position:
            await self.read()
        return self.positions


async def test_what_is_there_and_what_comes(service: Service) -> None:
    """A watcher is told the log from a position on, then each new event."""
    session = await service.create(note("a"), note("b"))
    watch = Watch(service.client, session, 2)
    assert await watch.until(3) == [2, 3]
    for number in range(20):
        await service.emit(session, note(f"n{number}"))
    assert await watch.until(23) == list(range(2, 24))
    watch.call.cancel()


async def test_the_first_message_comes_at_once(service: Service) -> None:
    """Who watches from the end on is told where the end is, and misses nothing after that."""
    session = await service.create()
    watch = Watch(service.client, session, 2)
    first = await watch.read()
    assert (list(first.events), first.last_position) == ([], 1)
    await service.emit(session, note("a"))
    assert await watch.until(2) == [2]
    watch.call.cancel()


async def test_past_the_end(service: Service) -> None:
    """A position that nobody can have seen the one before of is an error, with the last one."""
    session = await service.create()
    error = await refusal(Watch(service.client, session, 3).call)
    assert (error.code, error.reason) == ("OUT_OF_RANGE", "POSITION_OUT_OF_RANGE")
    assert error.metadata == {"last_position": "1"}


async def test_replay_is_packed(service: Service) -> None:
    """Many events come in few messages."""
    session = await service.create()
    for start in range(0, 1_008, 16):
        events = [note(f"n{start + number}", 500) for number in range(16)]
        await service.client.EmitEvents(pb.EmitEventsRequest(session_id=session, events=events))
    watch = Watch(service.client, session)
    messages = 0
    while not watch.positions or watch.positions[-1] < 1_009:
        await watch.read()
        messages += 1
    assert watch.positions == list(range(1, 1_010))
    assert messages <= 4
    watch.call.cancel()


async def test_a_watcher_that_reconnects_sees_each_position_once(service: Service) -> None:
    """While 200 events are appended, a watcher breaks off again and again, and resumes after what it saw."""
    session = await service.create()

    async def write() -> None:
        for number in range(200):
            await service.emit(session, note(f"n{number}"))

    writing = asyncio.create_task(write())
    positions: list[int] = []
    while not positions or positions[-1] < 201:
        watch = Watch(service.client, session, len(positions) + 1)
        for _ in range(3):
            await watch.read()
            if positions and (positions + watch.positions)[-1] >= 201:
                break
        watch.call.cancel()
        positions += watch.positions
    await writing
    assert positions == list(range(1, 202))


async def test_many_watch_one_session(service: Service) -> None:
    """Each of many watchers, from wherever it began, sees the same."""
    session = await service.create()
    watches = [Watch(service.client, session) for _ in range(20)]
    batch = [note(f"b{number}") for number in range(10)]
    await service.client.EmitEvents(pb.EmitEventsRequest(session_id=session, events=batch))
    await asyncio.gather(*(service.emit(session, note(f"n{number}")) for number in range(20)))
    for watch in watches:
        assert await watch.until(31) == list(range(1, 32))
        watch.call.cancel()


async def test_what_the_wire_loses_is_read_from_the_log(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the notes are lost: the log fills the gaps, nothing comes twice."""
    session = await service.create()
    watch = Watch(service.client, session)
    await watch.until(1)
    send = service.store.wire.send
    sent = 0

    async def lossy(topic: str, key: str, data: bytes) -> None:
        nonlocal sent
        sent += 1
        if sent % 2:
            await send(topic, key, data)

    monkeypatch.setattr(service.store.wire, "send", lossy)
    for number in range(21):
        await service.emit(session, note(f"n{number}"))
    assert await watch.until(22) == list(range(1, 23))
    watch.call.cancel()


async def test_a_watcher_that_hears_nothing_looks_by_itself(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last note is lost: a slow look into the log heals it."""
    monkeypatch.setattr(watching, "POLL_SECONDS", 0.2)
    session = await service.create()
    watch = Watch(service.client, session)
    await watch.until(1)

    async def deaf(topic: str, key: str, data: bytes) -> None:
        return

    monkeypatch.setattr(service.store.wire, "send", deaf)
    await service.emit(session, note("a"))
    assert await watch.until(2) == [1, 2]
    watch.call.cancel()


async def test_a_slow_reader_is_sent_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not read while much is appended is dropped, with the position to resume from; nothing is lost."""
    monkeypatch.setattr(service.parts.watcher, "_slow_seconds", 0.0)
    session = await service.create()
    watch = Watch(service.client, session)
    await watch.until(1)
    for number in range(20):
        await service.emit(session, note(f"n{number}", 900_000))
    positions = list(watch.positions)
    try:
        while True:
            await watch.read()
    except grpc.aio.AioRpcError as broken:
        error = await refusal(_raise(broken))
    positions = watch.positions
    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "READER_SLOW")
    resume = int(error.metadata["next_position"])
    assert positions == list(range(1, resume))
    rest = Watch(service.client, session, resume)
    assert await rest.until(21) == list(range(resume, 22))
    rest.call.cancel()


async def _raise(error: grpc.aio.AioRpcError) -> None:
    raise error


async def test_what_waits_for_a_slow_reader_is_bounded(store: Store) -> None:
    """However much is appended, a watcher that does not read keeps a bounded amount, and reads the rest later."""
    writer = Writer(store.log, store.wire, Marks(store.registry), lambda: 1)
    watcher = watching.Watcher(store.log, store.wire, slow_seconds=3600)
    session = "sess_" + "0" * 26
    await writer.append(session, _draft(ev.Event(event_id="s", session_started=ev.SessionStarted()), "session"))
    reading = watcher.watch(session, 1, previews=False)
    assert [event.position for event in (await anext(reading)).events] == [1]
    for number in range(30):
        await writer.append(session, _draft(note(f"n{number}", 500_000), "client"))
        (watch,) = watcher._watches
        assert watch.size <= watching.BUFFER_BYTES + 600_000
    found: list[int] = []
    while not found or found[-1] < 31:
        found += [event.position for event in (await anext(reading)).events]
    assert found == list(range(2, 32))
    await reading.aclose()


def _draft(event: ev.Event, emitter: str) -> Draft:
    return Draft([event], [codec.fact_of(event, emitter)])


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store in memory."""
    async with make() as store:
        yield store


async def test_watchers_leave_nothing_behind(service: Service) -> None:
    """Streams that are opened and dropped are forgotten."""
    session = await service.create()
    for _ in range(100):
        watch = Watch(service.client, session)
        await watch.read()
        watch.call.cancel()
    async with asyncio.timeout(20):
        while service.parts.watcher.watches:
            await asyncio.sleep(0.01)


# --- previews ---


def piece(event_id: str, text: str, offset: int = 0) -> pb.Preview:
    return pb.Preview(event_id=event_id, offset=offset, text=text)


async def test_previews_reach_those_who_ask_for_them(service: Service) -> None:
    """Pieces come in order to a watcher that wants them, and end in the event of record; others see that alone."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    wanting = Watch(service.client, session, epoch + 1, previews=True)
    other = Watch(service.client, session, epoch + 1)
    await wanting.read()
    await other.read()

    async def pieces() -> AsyncIterator[pb.PublishPreviewsRequest]:
        for number, text in enumerate("abcde"):
            yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, previews=[piece("reply-1", text, number)])

    answer = await service.harness.PublishPreviews(pieces())
    assert answer.dropped == 0
    while ("preview", "e") not in wanting.seen:
        await wanting.read()
    event = ev.Event(event_id="reply-1", ignorable=True, custom=ev.Custom(type="x"))
    await service.emit(session, event, epoch)
    await wanting.until(epoch + 1)
    await other.until(epoch + 1)
    assert wanting.seen == [("preview", text) for text in "abcde"] + [("event", "reply-1")]
    assert other.seen == [("event", "reply-1")]
    wanting.call.cancel()
    other.call.cancel()


async def test_previews_never_follow_their_event(service: Service) -> None:
    """Pieces that come late, for an event that was passed on, are dropped."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    watch = Watch(service.client, session, epoch + 1, previews=True)
    await watch.read()
    event = ev.Event(event_id="reply-1", ignorable=True, custom=ev.Custom(type="x"))
    await service.emit(session, event, epoch)
    await watch.until(epoch + 1)

    async def pieces() -> AsyncIterator[pb.PublishPreviewsRequest]:
        yield pb.PublishPreviewsRequest(
            session_id=session, epoch=epoch, previews=[piece("reply-1", "late"), piece("reply-2", "next")]
        )

    await service.harness.PublishPreviews(pieces())
    while ("preview", "next") not in watch.seen:
        await watch.read()
    assert watch.seen == [("event", "reply-1"), ("preview", "next")]
    watch.call.cancel()


async def test_previews_of_a_harness_that_died_are_discarded(service: Service) -> None:
    """Another harness takes over: its watcher is told once to forget the pieces; late ones of the dead are dropped."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    watch = Watch(service.client, session, epoch + 1, previews=True)
    await watch.read()

    async def pieces(epoch: int, event_id: str) -> AsyncIterator[pb.PublishPreviewsRequest]:
        yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, previews=[piece(event_id, event_id)])

    await service.harness.PublishPreviews(pieces(epoch, "reply-1"))
    while ("preview", "reply-1") not in watch.seen:
        await watch.read()
    later, _ = await service.wake(session)
    assert (await refusal(service.harness.PublishPreviews(pieces(epoch, "reply-1")))).reason == "EPOCH_STALE"
    await service.harness.PublishPreviews(pieces(later, "reply-2"))
    while ("preview", "reply-2") not in watch.seen:
        await watch.read()
    assert [text for kind, text in watch.seen if kind == "preview"] == ["reply-1", "", "reply-2"]
    assert watch.discarded == ["reply-1"]
    watch.call.cancel()


async def test_a_fenced_harness_shows_nothing(service: Service) -> None:
    """Previews of an old epoch, or of none, are refused."""
    session = await service.create(message())
    first, _ = await service.wake(session)
    second, _ = await service.wake(session)
    for epoch in (0, first, second + 1):

        async def pieces(epoch: int = epoch) -> AsyncIterator[pb.PublishPreviewsRequest]:
            yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, previews=[piece("r", "x")])

        error = await refusal(service.harness.PublishPreviews(pieces()))
        assert (error.code, error.reason, error.metadata) == ("ABORTED", "EPOCH_STALE", {"epoch": str(second)})


async def test_previews_that_are_too_big_are_dropped_and_counted(service: Service) -> None:
    """A piece that no watcher should have to hold is not passed on, and its harness is told."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)

    async def pieces() -> AsyncIterator[pb.PublishPreviewsRequest]:
        yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, previews=[piece("r", "x" * 100_000)])
        yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, previews=[piece("r", "x")])

    assert (await service.harness.PublishPreviews(pieces())).dropped == 1


async def test_whether_anybody_watches(service: Service) -> None:
    """A harness is told whether somebody is shown previews: nobody, who only follows the log, or who wants them."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)

    async def asked() -> bool:
        async def question() -> AsyncIterator[pb.PublishPreviewsRequest]:
            yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, ask_watched=True)

        return bool((await service.harness.PublishPreviews(question())).watched)

    other = Watch(service.client, session)
    await other.read()
    assert not await asked()
    wanting = Watch(service.client, session, previews=True)
    await wanting.read()
    assert await asked()
    assert {kind for kind, _ in wanting.seen} == {"event"}  # the question is not shown
    wanting.call.cancel()
    other.call.cancel()


async def test_the_next_harness_shows_a_call_from_its_beginning(service: Service) -> None:
    """A call outlives the harness that showed it: under the same id its output is shown anew, once it was discarded."""
    session = await service.create(message())
    epoch, _ = await service.wake(session)
    watch = Watch(service.client, session, epoch + 1, previews=True)
    await watch.read()

    async def pieces(epoch: int, text: str) -> AsyncIterator[pb.PublishPreviewsRequest]:
        yield pb.PublishPreviewsRequest(session_id=session, epoch=epoch, previews=[piece("finished-t1", text)])

    await service.harness.PublishPreviews(pieces(epoch, "first"))
    while ("preview", "first") not in watch.seen:
        await watch.read()
    newer, _ = await service.wake(session)
    await watch.until(newer)
    assert watch.discarded == ["finished-t1"]
    await service.harness.PublishPreviews(pieces(newer, "again"))
    while ("preview", "again") not in watch.seen:
        await watch.read()
    watch.call.cancel()

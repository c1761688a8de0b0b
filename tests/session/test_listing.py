"""Lists of sessions: from a small index that is right after restarts and at every replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from services.session import index as index_module
from services.session.index import BUCKET, Row, key_of, merged, survey
from tests.session.running import Run, Service, message, note, turn_ended

IDLE, RUNNING, ENDED = pb.SESSION_STATUS_IDLE, pb.SESSION_STATUS_RUNNING, pb.SESSION_STATUS_ENDED


@pytest.fixture
async def pair(run: Run) -> AsyncIterator[tuple[Service, Service]]:
    """Two replicas."""
    async with run() as one, run() as two:
        yield one, two


async def listed(service: Service, **fields: Any) -> list[str]:
    """Returns a page's ids."""
    answer = await service.client.ListSessions(pb.ListSessionsRequest(**fields))
    return [session.session_id for session in answer.sessions]


async def row(service: Service, session: str) -> Row:
    """Reads a session's entry, written as far as it is."""
    entry = await service.store.registry.get(BUCKET, key_of("default", session))
    assert entry is not None
    return Row.unpack(entry.value)


async def test_what_a_session_does_can_be_asked_for_at_once(service: Service) -> None:
    """The replica that took an event lists by what it says without any delay."""
    label = {"test": ids.mint("x")}
    session = await service.create(message(), config=SessionConfig(labels=label))
    assert await listed(service, labels=label, statuses=[RUNNING]) == [session]
    assert await listed(service, labels=label, statuses=[IDLE]) == []
    epoch, _ = await service.wake(session)
    await service.emit(session, turn_ended(2), epoch)
    assert await listed(service, labels=label, statuses=[RUNNING]) == []
    assert await listed(service, labels=label, statuses=[IDLE]) == [session]


async def test_those_that_nothing_happened_to_can_be_asked_for(service: Service) -> None:
    """By the time of the log's last event, whatever it was, exclusive: who is stuck is at work and says nothing."""
    label = {"test": ids.mint("x")}
    silent = await service.create(message(), config=SessionConfig(labels=label))
    moment = (await service.log(silent))[-1].emit_time
    later = Timestamp(seconds=moment.seconds + 3600)
    assert await listed(service, labels=label, updated_before=later, statuses=[RUNNING]) == [silent]
    assert await listed(service, labels=label, updated_before=moment) == []
    await service.emit(silent, note())  # changes nothing in the index
    said = (await service.log(silent))[-1].emit_time
    between = Timestamp(seconds=moment.seconds, nanos=moment.nanos + 1)
    assert moment.ToNanoseconds() < said.ToNanoseconds()
    for summary in (False, True):
        assert await listed(service, labels=label, updated_before=between, summary=summary) == []
        assert await listed(service, labels=label, updated_before=later, summary=summary) == [silent]


@pytest.mark.nats
async def test_a_summary_reads_no_log(pair: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    """What this replica wrote is told whole, of others' sessions what the index has; in pages, and by filters."""
    one, two = pair
    mine = await one.create(message(), config=SessionConfig(labels={"a": "b"}, title="T"))
    theirs = await two.create(config=SessionConfig(labels={"a": "b"}))
    epoch, _ = await one.wake(mine)

    async def unwanted(*_: object) -> None:
        raise AssertionError("a log was looked at")

    for each in ("head", "read"):
        monkeypatch.setattr(one.store.log, each, unwanted)
    ask = pb.ListSessionsRequest(labels={"a": "b"}, summary=True)
    found = (await one.client.ListSessions(ask)).sessions
    assert [(it.session_id, it.status, it.epoch, it.config.labels["a"]) for it in found] == [
        (theirs, IDLE, 0, "b"),
        (mine, RUNNING, epoch, "b"),
    ]
    ask.statuses.append(RUNNING)
    assert [it.session_id for it in (await one.client.ListSessions(ask)).sessions] == [mine]
    first = await one.client.ListSessions(pb.ListSessionsRequest(summary=True, page_size=1))
    second = await one.client.ListSessions(
        pb.ListSessionsRequest(summary=True, page_size=1, page_token=first.next_page_token)
    )
    assert [it.session_id for it in (*first.sessions, *second.sessions)] == [theirs, mine]


@pytest.mark.nats
async def test_a_new_session_is_listed_everywhere_at_once(pair: tuple[Service, Service]) -> None:
    """Once CreateSession has answered, any replica lists the session; once deleted or archived, none does."""
    one, two = pair
    made = [await (one, two)[number % 2].create() for number in range(10)]
    for service in pair:
        assert await listed(service) == made[::-1]
    await one.client.DeleteSession(pb.DeleteSessionRequest(session_id=made[0]))
    await one.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=made[1]))
    assert await listed(two) == made[:1:-1]
    update = pb.UpdateSessionRequest(session_id=made[2], config=SessionConfig(labels={"a": "b"}, title="T"))
    await one.client.UpdateSession(update)
    answer = await two.client.ListSessions(pb.ListSessionsRequest(labels={"a": "b"}))
    assert [(each.session_id, each.config.title) for each in answer.sessions] == [(made[2], "T")]


@pytest.mark.nats
async def test_the_index_is_written_before_the_end(run: Run) -> None:
    """A process that ends writes what it had not written; the next one lists by it, logs unread."""
    async with run() as service:
        ended = await service.create()
        await service.client.EndSession(pb.EndSessionRequest(session_id=ended))
        running = await service.create(message())
    async with run() as service:
        assert await listed(service, statuses=[ENDED]) == [ended]
        assert await listed(service, statuses=[RUNNING]) == [running]
        assert (await row(service, ended)).position == 2


async def test_a_survey_mends_what_a_crash_left(service: Service) -> None:
    """An entry that is behind its log is found, and only such logs are looked into."""
    label = {"test": ids.mint("x")}
    session = await service.create(config=SessionConfig(labels=label))
    other = await service.create()
    parts = service.parts
    await parts.sessions.finish()
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    parts.sessions._index._behind.clear()  # as if the process had died
    parts.sessions._index._shown.clear()
    assert await listed(service, labels=label, statuses=[ENDED]) == []
    await parts.listing.sync()
    rows = [(each, await row(service, each)) for each in (session, other)]
    index = parts.sessions._index
    assert await survey(index, parts.sessions._writer, service.store.log, rows) == 1
    await index.finish()
    assert await listed(service, labels=label, statuses=[ENDED]) == [session]


async def test_pages_go_on_where_they_stopped(service: Service) -> None:
    """Page by page each session comes once, whatever is made, deleted or changed meanwhile."""
    label = {"test": ids.mint("x")}
    made = [await service.create(config=SessionConfig(labels=label)) for _ in range(12)]
    seen: list[str] = []
    token = ""
    while True:
        request = pb.ListSessionsRequest(labels=label, page_size=5, page_token=token)
        answer = await service.client.ListSessions(request)
        seen += [session.session_id for session in answer.sessions]
        token = answer.next_page_token
        if not token:
            break
        await service.create(config=SessionConfig(labels=label))
        await service.client.DeleteSession(pb.DeleteSessionRequest(session_id=seen[-1]))
    assert seen == sorted(made, reverse=True)  # those of one millisecond in the order of their ids


async def test_pages_are_bounded_in_bytes(service: Service) -> None:
    """Sessions with big configurations come on more pages instead of one that is too big for a message."""
    label = {"test": ids.mint("x")}
    config = SessionConfig(labels=label, system="x" * 500_000)
    made = [await service.create(config=config) for _ in range(10)]
    first = await service.client.ListSessions(pb.ListSessionsRequest(labels=label))
    assert 0 < len(first.sessions) < 10
    second = pb.ListSessionsRequest(labels=label, page_token=first.next_page_token)
    rest = await service.client.ListSessions(second)
    assert [each.session_id for each in (*first.sessions, *rest.sessions)] == made[::-1]


async def test_a_row_of_another_version_is_read(service: Service) -> None:
    """What an entry does not say is as in an empty one, and comes when the session goes on; what is new is left out."""
    session = await service.create()
    await service.parts.sessions.finish()
    old = b'{"harness": "messages", "labels": {"a": "b"}, "created": 1, "of_a_newer_version": 7}'
    await service.store.registry.put(BUCKET, key_of("default", session), old)
    assert await row(service, session) == Row("messages", {"a": "b"}, 1)
    await service.emit(session, note())
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    await service.parts.sessions.finish()
    found = await row(service, session)
    assert (found.status, found.labels, found.position) == (ENDED, {"a": "b"}, 3)


_rows = st.builds(
    Row,
    harness=st.sampled_from("ab"),
    config=st.integers(-1, 3),
    status=st.integers(1, 7),
    position=st.integers(0, 3),
    gone=st.booleans(),
)


@given(st.lists(_rows, min_size=1, max_size=6))
def test_rows_never_go_back(rows: list[Row]) -> None:
    """Merging keeps the newest of each half, and what is gone stays so, whatever comes late."""
    now = rows[0]
    for new in rows[1:]:
        was, now = now, merged(now, new)
        assert now.gone >= was.gone
        assert now.gone or (now.position >= was.position and now.config >= was.config)


def test_the_lag_is_what_the_docs_say() -> None:
    """The number is a promise."""
    assert index_module.LAG_SECONDS == 1.0

"""Sessions that were exported become sessions again, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from handmesh.client import Client, HandmeshError, Session, blobs
from handmesh.client.addresses import Addresses
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.kit import ids
from tests.session.running import OTHER_KEY, Service, make_settings, message, note, refusal, running
from tests.session.test_lifecycle_fork import fork, worked


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    """A client of the service."""
    async with Client(Addresses.behind(service.served.client_address), service.served.key) as made:
        yield made


@pytest.fixture
async def other(service: Service) -> AsyncIterator[Client]:
    """Another tenant's client."""
    async with Client(Addresses.behind(service.served.client_address), OTHER_KEY) as made:
        yield made


async def exported(client: Client, session: str) -> list[str]:
    """Returns the lines of a session's file."""
    return [line async for line in client.session(session).export()]


def again(lines: Iterable[str]) -> Callable[[], Iterable[str]]:
    """Makes lines that can be read as often as one likes."""
    return lambda: list(lines)


async def invalid(client: Client, lines: list[str]) -> HandmeshError:
    """Imports what must be refused."""
    with pytest.raises(HandmeshError) as caught:
        await client.import_session(again(lines))
    assert caught.value.reason == "LOG_INVALID"
    return caught.value


async def test_an_import_is_the_log_that_was_exported(service: Service, client: Client) -> None:
    """Positions, times, emitters, epochs and contents are as they were; it is another session, and goes on."""
    session = await worked(service)
    await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=SessionConfig(title="t")))
    made = await client.import_session(again(await exported(client, session)))
    assert made.id != session
    assert await service.log(made.id) == await service.log(session)
    wanted = await client.session(session).get()
    wanted.session_id = made.id
    assert await made.get() == wanted
    assert (await service.emit(made.id, message())).position == wanted.last_position + 1
    answer = await service.client.ListSessions(pb.ListSessionsRequest())
    assert made.id in [each.session_id for each in answer.sessions]


async def test_all_kinds_of_sessions_can_be_carried_over(service: Service, client: Client) -> None:
    """Ended, archived and forked ones too."""
    session = await worked(service)
    forked = (await fork(service, session, position=4)).session_id
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session))
    for each in (session, forked):
        made = await client.import_session(again(await exported(client, each)))
        assert await service.log(made.id) == await service.log(each)
        assert (await made.get()).status == (await client.session(each).get()).status


async def test_an_import_is_the_callers(service: Service, client: Client, other: Client) -> None:
    """Whoever imports owns it: the tenant is set anew, whatever the file says."""
    session = await service.create(note("n1"))
    made = await other.import_session(again(await exported(client, session)))
    assert (await made.get()).config.tenant == "other"
    request = pb.GetSessionRequest(session_id=made.id)
    assert (await refusal(service.client.GetSession(request))).reason == "SESSION_NOT_FOUND"


async def test_a_request_makes_one_import(service: Service, client: Client) -> None:
    """Said again it answers the same, also when the session has gone on; with other events it is refused."""
    session = await worked(service)
    lines, request = await exported(client, session), ids.mint("req")
    made = await client.import_session(again(lines), request_id=request)
    await service.emit(made.id, note("later"))
    assert (await client.import_session(again(lines), request_id=request)).id == made.id
    assert await service.head(made.id) == len(lines) - 1
    longer = await service.create(note("n1"))
    with pytest.raises(HandmeshError) as caught:
        await client.import_session(again(await exported(client, longer)), request_id=request)
    assert caught.value.reason == "REQUEST_ID_REUSED"
    assert await service.head(made.id) == len(lines) - 1


@pytest.mark.parametrize("at", [1, 2, 5, 9])
async def test_a_line_that_is_not_as_it_was(service: Service, client: Client, at: int) -> None:
    """Changed, lost, doubled or swapped: the first wrong position is named, and nothing is made."""
    lines = await exported(client, await worked(service))
    assert len(lines) == 11
    before = len((await service.client.ListSessions(pb.ListSessionsRequest())).sessions)
    changed = json.dumps({**json.loads(lines[at]), "traceparent": "x"}, separators=(",", ":"))
    for wrong, position in (
        ([*lines[:at], changed, *lines[at + 1 :]], at),
        ([*lines[:at], *lines[at + 1 :]], at),
        ([*lines[: at + 1], *lines[at:]], at + 1),
        ([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]], at if at < 9 else 10),  # 10 is no event
    ):
        assert (await invalid(client, wrong)).metadata == {"position": str(position)}
    assert len((await service.client.ListSessions(pb.ListSessionsRequest())).sessions) == before


async def test_a_file_that_was_cut_off(service: Service, client: Client) -> None:
    """Wherever it ends too early it is refused."""
    lines = await exported(client, await worked(service))
    for length in range(len(lines)):
        await invalid(client, lines[:length])


Send = Callable[..., Any]


@pytest.fixture
async def send(service: Service) -> Send:
    """Sends events to the service as they are, past the client's own checks."""

    async def send(*events: ev.Event) -> pb.ImportSessionResponse:
        requests = [pb.ImportSessionRequest(events=[event]) for event in events]
        answer: pb.ImportSessionResponse = await service.client.ImportSession(iter(requests))
        return answer

    return send


def _edit(path: str, value: object) -> Callable[[ev.Event], None]:
    def edit(event: ev.Event) -> None:
        *way, last = path.split(".")
        target: Any = event
        for step in way:
            target = getattr(target, step)
        setattr(target, last, value)

    return edit


@pytest.mark.parametrize(
    ("position", "edit"),
    [
        (3, _edit("position", 4)),
        (3, _edit("event_id", "")),
        (3, _edit("event_id", "a b")),
        (4, _edit("event_id", "m1")),
        (2, _edit("emitter", "harness")),
        (2, _edit("emitter", "nobody")),
        (2, _edit("epoch", 1)),
        (4, _edit("epoch", 2)),
        (3, _edit("epoch", 2)),
        (5, _edit("emit_time.seconds", 1)),
        (5, _edit("emit_time.seconds", 2**33)),
        (2, _edit("message_received.content_json", "{")),
        (4, _edit("model_replied.content_json", '[{"type":"tool_use"}]')),
        (6, _edit("tool_started.tool_use_id", "c2")),
        (1, _edit("session_started.config.harness", "?")),
        (9, lambda event: event.session_deleted.SetInParent()),
        (8, lambda event: event.session_ended.SetInParent()),
    ],
    ids=range(17),
)
async def test_the_service_takes_no_log_that_could_not_be(
    service: Service, send: Send, position: int, edit: Callable[[ev.Event], None]
) -> None:
    """Each event must pass the rules that it passed once; the first that does not is named, and nothing stays."""
    events = await service.log(await worked(service))
    edit(events[position - 1])
    error = await refusal(send(*events))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "LOG_INVALID")
    assert error.metadata == {"position": str(position)}


async def test_no_events_are_no_session(send: Send) -> None:
    """An empty stream, and one that does not begin with the beginning."""
    assert (await refusal(send())).metadata == {"position": "1"}
    assert (await refusal(send(note("x")))).metadata == {"position": "1"}


# --- with blobs ---


async def with_blobs(service: Service, client: Client) -> tuple[str, list[ev.BlobRef], list[bytes]]:
    """Makes a session with blobs of several sizes, an event that refers to one, and puts it away."""
    session = client.session(await service.create(note("n1")))
    contents = [b"", b"small", bytes(range(256)) * 4_096 + b"tail"]
    kept = [await session.upload(content, "application/octet-stream") for content in contents]
    await session.send([blobs.reference(kept[1])])
    await session.end()
    await session.archive()
    return session.id, kept, contents


async def content_of(session: Session, blob: ev.BlobRef) -> bytes:
    return b"".join([piece async for piece in session.download(blob.blob_id)])


async def test_a_session_is_carried_over_with_its_blobs(service: Service, client: Client, identities: Path) -> None:
    """Into the same mesh, another tenant's, and another mesh: under the same names, whole, though it has ended."""
    session_id, kept, contents = await with_blobs(service, client)
    lines = await exported(client, session_id)
    async with running(make_settings(identities, None, "memory"), identities) as elsewhere:
        for key, target in ((client_key(service), service), (OTHER_KEY, service), (OTHER_KEY, elsewhere)):
            async with Client(Addresses.behind(target.served.client_address), key) as taking:
                for _ in range(2):
                    made = await taking.import_session(again(lines), request_id="carried")
                assert [event async for event in made.events(2)] == [
                    event async for event in client.session(session_id).events(2)
                ]
                assert sorted(await made.blobs(), key=str) == sorted(kept, key=str)
                assert [await content_of(made, blob) for blob in kept] == contents
                assert await exported(taking, made.id) != lines  # the header names another session
                bare = await taking.import_session(again(lines), blobs=False)
                assert await bare.blobs() == []


def client_key(service: Service) -> str:
    return service.served.key


async def test_blobs_can_be_left_out(service: Service, client: Client) -> None:
    """Then the file has events alone, is whole, and is imported without them."""
    session_id, _, _ = await with_blobs(service, client)
    lines = [line async for line in client.session(session_id).export(blobs=False)]
    assert len(lines) == 2 + (await client.session(session_id).get()).last_position
    made = await client.import_session(again(lines))
    assert await made.blobs() == []


async def test_a_blob_line_that_was_touched_is_found(service: Service, client: Client) -> None:
    """Changed, lost, doubled or swapped: nothing is sent. The position is the first behind the events."""
    session_id, _, _ = await with_blobs(service, client)
    lines = await exported(client, session_id)
    last = (await client.session(session_id).get()).last_position
    first = next(at for at, line in enumerate(lines) if '"c21hbGw' in line)
    count = len((await service.client.ListSessions(pb.ListSessionsRequest(include_archived=True))).sessions)
    for broken in (
        [*lines[:first], lines[first].replace("c21hbGw", "c21hbGx"), *lines[first + 1 :]],
        [*lines[:first], *lines[first + 1 :]],
        [*lines[:first], lines[first], *lines[first:]],
        [*lines[: first - 1], lines[first], lines[first - 1], *lines[first + 1 :]],
    ):
        assert (await invalid(client, broken)).metadata == {"position": str(last + 1)}
    answer = await service.client.ListSessions(pb.ListSessionsRequest(include_archived=True))
    assert len(answer.sessions) == count


async def test_the_service_checks_blobs_too(service: Service, client: Client) -> None:
    """Another content than was said, too long, too short, without a beginning, or over the quota: nothing is left."""
    session_id, kept, _ = await with_blobs(service, client)
    events = await service.log(session_id)
    small, huge = kept[1], ev.BlobRef(media_type="image/png", size=1 << 40, sha256="0" * 64)
    for blob, chunk, reason in (
        (small, b"smalx", "ARGUMENT_INVALID"),
        (small, b"small!", "ARGUMENT_INVALID"),
        (small, b"smal", "ARGUMENT_INVALID"),
        (None, b"small", "ARGUMENT_INVALID"),
        (ev.BlobRef(media_type="no type", size=5), b"small", "ARGUMENT_INVALID"),
        (huge, b"small", "BLOB_QUOTA"),
    ):
        requests = [
            pb.ImportSessionRequest(request_id=(request := ids.mint("req")), events=events),
            pb.ImportSessionRequest(blob=blob, chunk=chunk),
        ]
        assert (await refusal(service.client.ImportSession(iter(requests)))).reason == reason
        again = pb.ImportSessionRequest(request_id=request, events=events)
        assert (await refusal(service.client.ImportSession(iter([again])))).reason == "REQUEST_ID_REUSED"

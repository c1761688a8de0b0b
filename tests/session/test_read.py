"""Slices and pages of logs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.session.slices import PAGE_BYTES
from tests.session.running import Service, message, note, refusal


async def filled(service: Service, batches: list[int], size: int = 0) -> tuple[str, list[ev.Event]]:
    """Makes a session with batches of so many events, named by their positions; returns its log."""
    session = await service.create()
    position = 1
    for count in batches:
        names = [f"e{position + n}" for n in range(1, count + 1)]
        events = [message(event_id=name) if int(name[1:]) % 5 == 0 else note(name, size) for name in names]
        await service.client.EmitEvents(pb.EmitEventsRequest(session_id=session, events=events))
        position += count
    return session, await service.log(session)


async def positions(service: Service, session: str, **fields: Any) -> list[int]:
    return [event.position for event in await service.events(session, **fields)]


async def test_slices(service: Service) -> None:
    """Ranges, the last n, and their combinations, over batches of all sizes."""
    session, log = await filled(service, [1, 3, 16, 1, 1, 7])
    end = len(log) + 1
    assert end == 31
    for start in range(end + 3):
        for stop in (0, *range(start, end + 3)):
            wanted = list(range(max(1, start), min(stop or end, end)))
            assert await positions(service, session, start_position=start, end_position=stop) == wanted
    assert await positions(service, session, last=4) == [27, 28, 29, 30]
    assert await positions(service, session, last=99, page_size=2) == [1, 2]
    assert await positions(service, session, end_position=10, last=3) == [7, 8, 9]
    assert await positions(service, session, start_position=8, end_position=10, last=5) == [8, 9]


async def test_past_the_end(service: Service) -> None:
    """A slice past the end is empty and no error, and still tells where the end is."""
    session, log = await filled(service, [2])
    answer = await service.client.GetEvents(pb.GetEventsRequest(session_id=session, start_position=1_000_000))
    assert (list(answer.events), answer.next_position, answer.last_position) == ([], 0, len(log))


async def test_backwards(service: Service) -> None:
    """Newest first, page by page, every position once."""
    session, log = await filled(service, [16, 5, 1, 16, 2])
    seen: list[int] = []
    end = 0
    while True:
        request = pb.GetEventsRequest(session_id=session, end_position=end, descending=True, page_size=7)
        answer = await service.client.GetEvents(request)
        seen += [event.position for event in answer.events]
        end = answer.next_position
        if not end:
            break
    assert seen == list(range(len(log), 0, -1))
    assert await positions(service, session, descending=True, last=3) == [41, 40, 39]


async def test_around_an_event(service: Service) -> None:
    """n before and m from an anchor on: by position, by the emitter's id, by time."""
    session, log = await filled(service, [4, 4, 4])
    assert await positions(service, session, anchor_position=6, before=2, after=3) == [4, 5, 6, 7, 8]
    assert await positions(service, session, anchor_event_id="e6", before=2) == [4, 5]
    assert await positions(service, session, anchor_event_id="session_started", after=2) == [1, 2]
    moment = log[5].emit_time  # that of the second batch, 6 to 9
    assert await positions(service, session, anchor_emit_time=moment, before=2, after=1) == [4, 5, 6]
    past = Timestamp(seconds=1)
    assert await positions(service, session, anchor_emit_time=past, before=5, after=1) == [1]
    future = Timestamp(seconds=moment.seconds + 1_000_000)
    assert await positions(service, session, anchor_emit_time=future, before=3, after=5) == [11, 12, 13]


@pytest.mark.parametrize("anchor", [{"anchor_position": 99}, {"anchor_position": 0}, {"anchor_event_id": "nobody"}])
async def test_an_anchor_that_is_not_there(service: Service, anchor: dict[str, Any]) -> None:
    """An anchor that is not in the log is an error."""
    session, _ = await filled(service, [2])
    error = await refusal(service.client.GetEvents(pb.GetEventsRequest(session_id=session, before=1, **anchor)))
    assert (error.code, error.reason) == ("NOT_FOUND", "EVENT_NOT_FOUND")


BAD = [
    {"start_position": -1},
    {"end_position": -5},
    {"page_size": -1},
    {"last": -1},
    {"anchor_position": 1},
    {"anchor_position": 1, "before": -1},
    {"kinds": ["no_such_kind"]},
]


@pytest.mark.parametrize("fields", BAD, ids=[str(number) for number in range(len(BAD))])
async def test_slices_that_mean_nothing(service: Service, fields: dict[str, Any]) -> None:
    """Negative numbers, unknown kinds and anchors without a direction are errors."""
    session = await service.create()
    error = await refusal(service.client.GetEvents(pb.GetEventsRequest(session_id=session, **fields)))
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "ARGUMENT_INVALID")


async def test_only_some_kinds(service: Service) -> None:
    """A filter leaves out the others, keeps positions, and pages through what fits, both ways."""
    session, log = await filled(service, [16, 16, 10])
    wanted = [event.position for event in log if event.HasField("message_received")]
    assert wanted == [5, 10, 15, 20, 25, 30, 35, 40]
    assert await positions(service, session, kinds=["message_received"]) == wanted
    for descending in (False, True):
        seen: list[int] = []
        fields: dict[str, Any] = {}
        while True:
            request = pb.GetEventsRequest(
                session_id=session, kinds=["message_received"], page_size=3, descending=descending, **fields
            )
            answer = await service.client.GetEvents(request)
            seen += [event.position for event in answer.events]
            if not answer.next_position:
                break
            fields = {"end_position" if descending else "start_position": answer.next_position}
        assert seen == (wanted[::-1] if descending else wanted)
    newest = await positions(service, session, kinds=["message_received"], descending=True, page_size=1)
    assert newest == [40]


async def test_pages_are_bounded_in_bytes(service: Service) -> None:
    """A slice of over 10 MB comes in pages that every gRPC client takes, forwards and backwards."""
    session = await service.create()
    await asyncio.gather(*(service.emit(session, note(f"n{number}", 900_000)) for number in range(12)))
    total = 13
    for descending in (False, True):
        seen: list[int] = []
        fields: dict[str, Any] = {}
        while True:
            request = pb.GetEventsRequest(session_id=session, page_size=1000, descending=descending, **fields)
            answer = await service.client.GetEvents(request)
            assert answer.ByteSize() <= PAGE_BYTES + 1_000
            seen += [event.position for event in answer.events]
            if not answer.next_position:
                break
            fields = {"end_position" if descending else "start_position": answer.next_position}
        assert seen == (list(range(total, 0, -1)) if descending else list(range(1, total + 1)))


async def test_pages_are_bounded_in_number(service: Service) -> None:
    """100 events by default, never more than 1,000, whatever is asked."""
    session, log = await filled(service, [16] * 70)
    assert len(log) == 1121
    for asked, wanted in ((0, 100), (1_000, 1_000), (1_000_000, 1_000)):
        answer = await service.client.GetEvents(pb.GetEventsRequest(session_id=session, page_size=asked))
        assert (len(answer.events), answer.next_position) == (wanted, wanted + 1)
    assert await positions(service, session, descending=True, page_size=1000) == list(range(1121, 121, -1))

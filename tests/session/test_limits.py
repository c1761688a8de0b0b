"""Limits of a session, and of who asks for much at once."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from handmesh.session.v1 import session_pb2 as pb
from services.session import admission
from services.session.admission import MAX_EVENTS, RESERVED_EVENTS, admit, check_room
from services.session.core import Fact, WriteState
from services.session.emitters import SESSION
from services.session.settings import Settings
from tests.session.running import Service, make_settings, message, note, refusal, running
from tests.support.nats import NatsServer

WATCHERS = 2_000


async def test_a_session_is_bounded_in_bytes(settings: Settings, identities: Path) -> None:
    """Over its bytes nothing more is taken but what puts it away; the error names the limit; others go on."""
    async with running(dataclasses.replace(settings, session_bytes=100_000), identities) as service:
        session = await service.create()
        for _ in range(10):
            await service.emit(session, note(size=10_000))
        error = await refusal(service.emit(session, message()))
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "SESSION_FULL")
        assert error.metadata == {"limit": "100000"}
        await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session))
        await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session, restore=True))
        await service.client.EndSession(pb.EndSessionRequest(session_id=session))
        assert (await service.emit(await service.create(), message())).position == 2


@pytest.mark.nats
async def test_a_restart_does_not_forget_the_bytes(own_nats_server: NatsServer, identities: Path) -> None:
    """The size is read off the log, whoever appended to it."""
    settings = dataclasses.replace(make_settings(identities, own_nats_server), session_bytes=100_000)
    async with running(settings, identities) as service:
        session = await service.create()
        for _ in range(10):
            await service.emit(session, note(size=10_000))
        size = (await service.parts.sessions._writer.current(session)).size
    async with running(settings, identities) as service:
        assert (await service.parts.sessions._writer.current(session)).size == size > 100_000
        assert (await refusal(service.emit(session, message()))).reason == "SESSION_FULL"


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("message_received", MAX_EVENTS),
        ("session_ended", MAX_EVENTS + RESERVED_EVENTS),
        ("session_archived", MAX_EVENTS + RESERVED_EVENTS),
    ],
)
def test_a_full_session_can_still_be_put_away(kind: str, most: int) -> None:
    """The last events of a log have some room of their own, and that is bounded too."""
    fact = Fact(kind, "e", SESSION)
    check_room(WriteState(head=most - 1), [fact], 10)
    with pytest.raises(admission.Full) as caught:
        check_room(WriteState(head=most), [fact], 10)
    assert caught.value.metadata == {"limit": str(most)}


def test_the_bounds_are_asked_for_with_the_rest() -> None:
    """Admission asks for both."""
    fact = Fact("session_ended", "e", SESSION)
    assert admit(WriteState(head=MAX_EVENTS, size=10**12), [fact]) == MAX_EVENTS + 1


async def test_many_idle_watchers_are_no_burden(service: Service) -> None:
    """2,000 watchers of 20 sessions: each hears what it watches, and a call beside them is answered."""
    sessions = [await service.create() for _ in range(20)]
    watches = []
    while len(watches) < WATCHERS:
        part = [
            service.client.WatchEvents(pb.WatchEventsRequest(session_id=session, start_position=2))
            for session in sessions
        ]
        await asyncio.gather(*(watch.read() for watch in part))
        watches += part
    assert service.parts.watcher.watches == WATCHERS
    await service.emit(sessions[7], note("n"))
    heard = await asyncio.gather(*(watch.read() for watch in watches[7::20]))
    assert all([event.event_id for event in each.events] == ["n"] for each in heard)
    for watch in watches:
        watch.cancel()

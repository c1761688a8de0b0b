"""P38: one caller asks for more than its share, in every way that the wire allows, while a neighbour goes on working.

The neighbour is another tenant's client, or the mesh itself. Speed is measured in `bench`; here its calls are
answered, and what the flood took is bounded and comes back.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.session.v1 import session_pb2 as pb
from services.kit.channels import MESSAGE_BYTES
from tests.session.running import Service, make_settings, note, refusal, running
from tests.support.http2 import PREFACE, SETTINGS, frame, ping

SILENT = 500
WATCHERS = 100
STREAMS = 50
PINGS = 2_000
BACKLOG = 60  # events of 100 kB that nobody reads: 6 MB for each of those who watch


async def neighbour(service: Service) -> None:
    """Works as another tenant: makes a session, says something, reads it."""
    made = await service.other.CreateSession(pb.CreateSessionRequest(initial_events=[note("mine")]), timeout=20)
    asked = pb.GetEventsRequest(session_id=made.session.session_id)
    assert len((await service.other.GetEvents(asked, timeout=20)).events) == 2


@asynccontextmanager
async def connections(service: Service, count: int, said: bytes) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Opens plain connections that say so much, and then nothing."""
    host, _, port = service.served.client_address.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    try:
        for _, writer in opened:
            writer.write(said)
        yield [writer for _, writer in opened]
    finally:
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize(
    "said",
    [b"", PREFACE, PREFACE + frame(SETTINGS), b"GET / HTTP/1.1\r\n"],
    ids=["nothing", "preface", "http2", "http1"],
)
async def test_silent_connections_hold_up_nobody(service: Service, said: bytes) -> None:
    """Five hundred connections that say nothing, or begin to, cost others nothing."""
    async with connections(service, SILENT, said):
        await neighbour(service)


async def test_a_request_that_trickles_in_holds_up_nobody(service: Service) -> None:
    """A request whose bytes come one by one is waited for, beside everybody else's."""
    async with connections(service, 20, b"") as writers:
        for byte in PREFACE + frame(SETTINGS):
            for writer in writers:
                writer.write(bytes([byte]))
                await writer.drain()
        await neighbour(service)


async def test_pings_without_end_are_answered_and_cost_nobody(service: Service) -> None:
    """Thousands of pings without a call: each is answered, none ends a neighbour's call."""
    port = int(service.served.client_address.rpartition(":")[2])
    watch = service.other.WatchEvents(pb.WatchEventsRequest(session_id=await _session(service.other)))
    await watch.read()
    answered, error = await ping(port, PINGS)
    assert (answered, error) == (PINGS, None)
    await neighbour(service)
    assert not watch.done()
    watch.cancel()


async def _session(stub: Any) -> str:
    return str((await stub.CreateSession(pb.CreateSessionRequest())).session.session_id)


def _metadata(service: Service) -> Awaitable[Any]:
    big = tuple((f"x-{number}", "x" * 2_000) for number in range(10))
    return service.client.ListSessions(pb.ListSessionsRequest(), metadata=big)  # type: ignore[no-any-return]


def _message(service: Service) -> Awaitable[Any]:
    request = pb.CreateSessionRequest(request_id="x" * (MESSAGE_BYTES + 1))
    channel = grpc.aio.insecure_channel(
        service.served.client_address, [("grpc.max_send_message_length", 2 * MESSAGE_BYTES)]
    )
    call = channel.unary_unary(
        "/handmesh.session.v1.SessionService/CreateSession",
        request_serializer=pb.CreateSessionRequest.SerializeToString,
        response_deserializer=pb.CreateSessionResponse.FromString,
    )
    return call(request, metadata=(("authorization", f"Bearer {service.served.key}"),))  # type: ignore[no-any-return]


@pytest.mark.parametrize("big", [_metadata, _message])
async def test_what_is_too_big_is_refused(service: Service, big: Callable[[Service], Awaitable[Any]]) -> None:
    """20 kB of metadata, and a message of a byte too many, end as RESOURCE_EXHAUSTED before anybody looks into them."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await big(service)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await neighbour(service)


async def test_uploads_that_never_end_are_counted_as_streams(identities: Path) -> None:
    """A caller has so many streams at once, whichever way they go; the next one is refused and told when to come back.
    A neighbour's are its own, and those that are gone leave room."""
    settings = dataclasses.replace(make_settings(identities, None, "memory"), caller_streams=STREAMS)
    async with running(settings, identities) as service:
        await _fill_streams(service, await _session(service.client))


async def _fill_streams(service: Service, session: str) -> None:

    async def never() -> AsyncIterator[pb.UploadBlobRequest]:
        yield pb.UploadBlobRequest(session_id=session, media_type="text/plain", chunk=b"x")
        await asyncio.Event().wait()

    uploads = [service.client.UploadBlob(never()) for _ in range(STREAMS // 2)]
    watches = [service.client.WatchEvents(pb.WatchEventsRequest(session_id=session)) for _ in range(STREAMS)]
    ended = await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
    refused = [one for one in ended if isinstance(one, grpc.aio.AioRpcError)]
    assert refused and {one.code() for one in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    error = await refusal(service.client.WatchEvents(pb.WatchEventsRequest(session_id=session)))
    assert error.reason == "FULL" and error.retry_after
    await neighbour(service)
    for call in (*uploads, *watches):
        call.cancel()
    async with asyncio.timeout(20):
        while service.parts.watcher.watches:
            await asyncio.sleep(0.01)
    assert (await service.client.WatchEvents(pb.WatchEventsRequest(session_id=session)).read()).events


async def test_watchers_that_never_read_take_no_memory_and_lose_nothing(service: Service) -> None:
    """A hundred watchers, half of which never read: what they have not read is not kept for them, those who read hear
    everything, and one that begins to read at last hears it all, in order."""
    session = await _session(service.client)
    watches = [service.client.WatchEvents(pb.WatchEventsRequest(session_id=session)) for _ in range(WATCHERS)]
    await asyncio.gather(*(watch.read() for watch in watches))
    readers, deaf = watches[:5], watches[50:]

    async def read(watch: Any) -> list[int]:
        seen: list[int] = []
        while len(seen) < BACKLOG:
            seen += [event.position for event in (await watch.read()).events]
        return seen

    reading = [asyncio.create_task(read(watch)) for watch in readers]
    for number in range(BACKLOG):
        await service.emit(session, note(f"n{number}", size=100_000))
    expected = list(range(2, BACKLOG + 2))
    async with asyncio.timeout(60):
        assert [await each for each in reading] == [expected] * len(readers)
        await neighbour(service)
        assert await read(deaf[0]) == expected
    for watch in watches:
        watch.cancel()

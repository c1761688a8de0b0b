"""What one caller may have at once, and that its neighbours do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import (
    SessionServiceServicer,
    SessionServiceStub,
    add_SessionServiceServicer_to_server,
)
from services.kit.errors import Full
from services.kit.identity import Caller
from services.kit.limits import CALL_BYTES, Limits, Shares
from tests.support.mesh_server import Served, served

NAME = "handmesh.session.v1.SessionService"
ID = "sess_" + "0" * 26
ONE, TWO = Caller("client", "default", id="one"), Caller("client", "default", id="two")
HARNESS = Caller("harness")


def test_bytes_are_shared_out_by_caller() -> None:
    """A caller at its limit is refused until something of its own ends, and is told when to come back."""
    shares = Shares(Limits(bytes=3 * CALL_BYTES))
    taken = [shares.take(ONE, 10), shares.take(ONE, 10)]
    with pytest.raises(Full) as caught:
        shares.take(ONE, 10)
    assert caught.value.retry_after and caught.value.metadata == {"limit": str(3 * CALL_BYTES)}
    shares.take(TWO, 10)
    shares.give(ONE, taken.pop())
    shares.take(ONE, 10)


def test_one_request_always_has_room() -> None:
    """A request that is bigger than the limit is worked on when nothing else of its caller is."""
    shares = Shares(Limits(bytes=1))
    taken = shares.take(ONE, 10**6)
    shares.give(ONE, taken)
    shares.take(ONE, 10**6)


def test_streams_are_counted_by_caller() -> None:
    """So many streams and no more; each that ends makes room; the mesh's own services are not counted."""
    shares = Shares(Limits(streams=2))
    shares.open(ONE)
    shares.open(ONE)
    with pytest.raises(Full):
        shares.open(ONE)
    shares.open(TWO)
    shares.close(ONE)
    shares.open(ONE)
    for _ in range(10):
        shares.open(HARNESS)
        shares.take(HARNESS, 10**9)


def test_nothing_is_kept_of_who_has_nothing() -> None:
    """Callers that come and go leave no memory behind."""
    shares = Shares(Limits())
    for number in range(100):
        caller = Caller("client", "default", str(number))
        shares.give(caller, shares.take(caller, number))
        shares.open(caller)
        shares.close(caller)
    assert not shares._bytes and not shares._streams


class Servicer(SessionServiceServicer):
    """Holds calls until it is told to go on."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.at_work = 0

    async def EmitEvent(self, request: pb.EmitEventRequest, context: object) -> pb.EmitEventResponse:
        self.at_work += 1
        await self.gate.wait()
        return pb.EmitEventResponse(position=1)

    async def GetSession(self, request: pb.GetSessionRequest, context: object) -> pb.GetSessionResponse:
        return pb.GetSessionResponse()

    async def ListSessions(self, request: pb.ListSessionsRequest, context: object) -> pb.ListSessionsResponse:
        raise TimeoutError

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: object
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        yield pb.WatchEventsResponse(last_position=1)
        await self.gate.wait()


@pytest.fixture
def servicer() -> Servicer:
    """What is served."""
    return Servicer()


@pytest.fixture
async def server(tmp_path: Path, servicer: Servicer) -> AsyncIterator[Served]:
    """A server with small limits."""
    add = lambda to: add_SessionServiceServicer_to_server(servicer, to)  # noqa: E731
    limits = {"caller_streams": 3, "caller_bytes": 2_000_000, "call_seconds": 1}
    async with served(tmp_path, "session", add, NAME, **limits) as it:
        yield it


def emit(stub: SessionServiceStub, size: int, timeout: float | None = 60) -> grpc.aio.UnaryUnaryCall:
    """Emits an event of about so many bytes."""
    event = ev.Event(custom=ev.Custom(payload_json="x" * size))
    return stub.EmitEvent(pb.EmitEventRequest(session_id=ID, event=event), timeout=timeout)


async def test_a_flood_is_refused_and_neighbours_are_served(server: Served, servicer: Servicer) -> None:
    """Over its bytes a client is told to come back later, with the time; the harness beside it notices nothing."""
    async with server.as_client() as client, server.as_service("harness") as harness:
        stub, neighbour = SessionServiceStub(client), SessionServiceStub(harness)
        flood = [asyncio.ensure_future(emit(stub, 500_000)) for _ in range(20)]
        refused = []
        for done in asyncio.as_completed(flood):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await done
            refused.append(caught.value)
            if len(refused) == 17:
                break
        assert {error.code() for error in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        details = dict(refused[0].trailing_metadata())["grpc-status-details-bin"]
        assert any(detail.Is(RetryInfo.DESCRIPTOR) for detail in Status.FromString(details).details)
        assert servicer.at_work == 3
        for _ in range(50):
            await neighbour.GetSession(pb.GetSessionRequest(session_id=ID))
        servicer.gate.set()
        answers = await asyncio.gather(*flood, return_exceptions=True)
        assert sum(isinstance(answer, pb.EmitEventResponse) for answer in answers) == 3
        assert (await emit(stub, 500_000)).position == 1


async def test_streams_are_limited_and_come_back(server: Served) -> None:
    """The fourth stream is refused; when one ends there is room again. The mesh's own services are not counted."""
    async with server.as_client() as client, server.as_service("harness") as harness:
        stub = SessionServiceStub(client)
        streams = [stub.WatchEvents(pb.WatchEventsRequest(session_id=ID)) for _ in range(3)]
        for stream in streams:
            await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.WatchEvents(pb.WatchEventsRequest(session_id=ID)).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        others = [SessionServiceStub(harness).WatchEvents(pb.WatchEventsRequest(session_id=ID)) for _ in range(6)]
        for stream in others:
            await stream.read()
        streams[0].cancel()
        async with asyncio.timeout(30):
            while True:
                again = stub.WatchEvents(pb.WatchEventsRequest(session_id=ID))
                try:
                    await again.read()
                    break
                except grpc.aio.AioRpcError:
                    continue
        for stream in (*streams, *others, again):
            stream.cancel()


async def test_a_call_without_a_deadline_gets_one(server: Served) -> None:
    """It ends as DEADLINE_EXCEEDED; one that brings its own deadline keeps it; our own timeouts stay our fault."""
    async with server.as_client() as client:
        stub = SessionServiceStub(client)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await emit(stub, 1, timeout=None)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "without a deadline" in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListSessions(pb.ListSessionsRequest())
        assert caught.value.code() is grpc.StatusCode.INTERNAL

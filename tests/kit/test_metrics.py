"""What the metrics promise: bounded, free until asked for, on one page that nobody can lean on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import (
    SessionServiceServicer,
    SessionServiceStub,
    add_SessionServiceServicer_to_server,
)
from services.kit import metrics, metrics_listener
from services.kit.access import ACCESS
from services.kit.errors import Conflict
from services.kit.metered import spelled
from tests.support.counted import counting, exchange, parsed, scrape
from tests.support.mesh_server import Served, served

pytestmark = pytest.mark.metrics

NAME = "handmesh.session.v1.SessionService"
ID = "sess_" + "0" * 26


class Servicer(SessionServiceServicer):
    """Answers, fails, and streams."""

    async def GetSession(self, request: pb.GetSessionRequest, context: object) -> pb.GetSessionResponse:
        return pb.GetSessionResponse()

    async def EmitEvent(self, request: pb.EmitEventRequest, context: object) -> pb.EmitEventResponse:
        raise Conflict("POSITION_CONFLICT", "the log has moved on")

    async def ListSessions(self, request: pb.ListSessionsRequest, context: object) -> pb.ListSessionsResponse:
        raise RuntimeError("a fault of ours")

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: object
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        yield pb.WatchEventsResponse()
        await asyncio.Event().wait()


@pytest.fixture
def counted() -> Iterator[None]:
    with counting():
        yield


@pytest.fixture
async def server(counted: None, tmp_path: Path) -> AsyncIterator[Served]:
    add = lambda to: add_SessionServiceServicer_to_server(Servicer(), to)  # noqa: E731
    async with served(tmp_path, "session", add, NAME, metrics_listen="127.0.0.1:0") as it:
        yield it


async def test_calls_are_counted_by_method_and_status(server: Served) -> None:
    """What was refused by the guard, what failed, and what its caller left count as they ended."""
    async with server.as_client() as channel, server.as_client("hm_wrong") as stranger:
        stub = SessionServiceStub(channel)
        await stub.GetSession(pb.GetSessionRequest(session_id=ID))
        for call, request in ((stub.EmitEvent, pb.EmitEventRequest(session_id=ID)), (stub.ListSessions, None)):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(request or pb.ListSessionsRequest())
        with pytest.raises(grpc.aio.AioRpcError):
            await SessionServiceStub(stranger).GetSession(pb.GetSessionRequest(session_id=ID))
        watch = stub.WatchEvents(pb.WatchEventsRequest(session_id=ID))
        await anext(aiter(watch))
        open_then = await scrape(server.metrics_address)
        watch.cancel()
        while (now := await scrape(server.metrics_address)).of(
            "handmesh_grpc_calls_in_flight", method="SessionService/WatchEvents"
        ):
            await asyncio.sleep(0.01)
    calls = {
        (dict(labels)["method"].partition("/")[2], dict(labels)["code"]): value
        for (name, labels), value in now.samples.items()
        if name == "handmesh_grpc_calls_total"
    }
    assert calls == {
        ("GetSession", "OK"): 1,
        ("GetSession", "UNAUTHENTICATED"): 1,
        ("EmitEvent", "ABORTED"): 1,
        ("ListSessions", "INTERNAL"): 1,
        ("WatchEvents", "CANCELLED"): 1,
    }
    assert open_then.of("handmesh_grpc_calls_in_flight", method="SessionService/WatchEvents") == 1
    assert now.of("handmesh_grpc_calls_in_flight") == 0
    assert now.of("handmesh_grpc_call_seconds_count", method="SessionService/GetSession") == 2
    assert now.of("handmesh_grpc_call_seconds_count", method="SessionService/WatchEvents") == 0
    assert now.of("process_resident_memory_bytes") > 1e6


async def test_a_method_that_callers_make_up_is_no_series(server: Served) -> None:
    """There are as many methods as the descriptors have."""
    async with server.as_client() as channel:
        for at in range(5):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/{NAME}/Made{at}", lambda _: b"", lambda _: None)(b"")
    assert "Made" not in (await scrape(server.metrics_address)).text


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0", b"200 OK"),
        (b"POST /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"HEAD /metrics HTTP/1.1", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1", b"404 Not Found"),
        (b"GET /metrics/../etc HTTP/1.1", b"404 Not Found"),
        (b"\x00\xff", b"404 Not Found"),
    ],
)
async def test_there_is_one_page(server: Served, request_line: bytes, status: bytes) -> None:
    """GET /metrics is answered, and nothing else."""
    answer = await exchange(server.metrics_address, request_line + b"\r\nHost: it\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")


async def test_whoever_leans_on_the_page_is_let_fall(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is too long, one that does not come, and more connections than there may be."""
    assert await exchange(server.metrics_address, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000) == b""
    monkeypatch.setattr(metrics_listener, "ASK_SECONDS", 0.05)
    assert await exchange(server.metrics_address, b"GET /met") == b""
    monkeypatch.setattr(metrics_listener, "MOST_CONNECTIONS", 0)
    assert await exchange(server.metrics_address, b"GET /metrics HTTP/1.1\r\n\r\n") == b""


def test_labels_are_bounded_whatever_is_counted(counted: None) -> None:
    """A value that was not declared is `other`."""
    name = "handmesh_test_bounded_total"
    counter = metrics.Counter(name, "For this test.", metrics.Label("kind", ("bash",)))
    try:
        for value in ("bash", "a tenant's words", *map(str, range(1000))):
            counter.add(value)
        counts = parsed(metrics.text().decode())
    finally:
        del metrics.declared[name]
    assert {labels: value for (its, labels), value in counts.samples.items() if its == name} == {
        frozenset({("kind", "bash")}): 1,
        frozenset({("kind", "other")}): 1001,
    }


def test_methods_are_those_of_the_access_table() -> None:
    """Their names without packages are still different ones."""
    assert len(set(map(spelled, ACCESS))) == len(ACCESS)


def test_nothing_is_imported_before_it_is_wanted() -> None:
    """A service without metrics does not load the library, and counting is nothing there."""
    code = (
        "import sys; from services.kit import serving, metered; metered.CALLS.add('x', 'OK'); "
        "print('prometheus_client' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"

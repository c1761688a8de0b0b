"""What the one interceptor promises to every service, seen over real connections."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import (
    SessionServiceServicer,
    SessionServiceStub,
    add_SessionServiceServicer_to_server,
)
from services.kit import identity
from services.kit.channels import raised
from services.kit.errors import Conflict, Full
from tests.support.mesh_server import Served, served

SECRET = "a-secret-in-an-exception"
ID = "sess_" + "0" * 26
NAME = "handmesh.session.v1.SessionService"


class Servicer(SessionServiceServicer):
    """Fails in all the ways that a method can."""

    async def GetSession(self, request: pb.GetSessionRequest, context: object) -> pb.GetSessionResponse:
        raise RuntimeError(SECRET)

    async def EmitEvent(self, request: pb.EmitEventRequest, context: object) -> pb.EmitEventResponse:
        raise Conflict("POSITION_CONFLICT", "the log has moved on", last_position=7)

    async def CreateSession(self, request: pb.CreateSessionRequest, context: object) -> pb.CreateSessionResponse:
        raise Full("FULL", "no room", retry_after=1.5)

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: object
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        yield pb.WatchEventsResponse(last_position=1)
        raise RuntimeError(SECRET)

    async def ListSessions(self, request: pb.ListSessionsRequest, context: object) -> pb.ListSessionsResponse:
        caller = identity.current()
        return pb.ListSessionsResponse(next_page_token=f"{caller.kind}/{caller.tenant}")

    async def PublishPreviews(
        self, requests: AsyncIterator[pb.PublishPreviewsRequest], context: object
    ) -> pb.PublishPreviewsResponse:
        return pb.PublishPreviewsResponse(dropped=len([request async for request in requests]))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    add = lambda to: add_SessionServiceServicer_to_server(Servicer(), to)  # noqa: E731
    async with served(tmp_path, "session", add, NAME) as it:
        yield it


async def failure(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value


async def test_exceptions_never_cross_the_wire(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an incident's id; the text is in the log only, unary and streamed."""
    async with server.as_client() as channel:
        stub = SessionServiceStub(channel)
        with caplog.at_level(logging.ERROR):
            told = await failure(stub.GetSession(pb.GetSessionRequest(session_id=ID)))
        assert told.code() is grpc.StatusCode.INTERNAL
        assert SECRET not in repr(told)
        assert raised(told).metadata["incident"] in told.details()
        assert SECRET in caplog.text
        watch = stub.WatchEvents(pb.WatchEventsRequest(session_id=ID))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [answer async for answer in watch]
        assert SECRET not in repr(caught.value)


async def test_errors_arrive_as_they_were_raised(server: Served) -> None:
    """Status, reason and metadata are in google.rpc.ErrorInfo, and `raised` gives the same error back."""
    async with server.as_service("harness") as channel:
        told = await failure(SessionServiceStub(channel).EmitEvent(pb.EmitEventRequest(session_id=ID)))
        again = raised(told)
        assert isinstance(again, Conflict)
        assert (again.reason, again.message, again.metadata) == (
            "POSITION_CONFLICT",
            "the log has moved on",
            {"last_position": "7"},
        )
        status = Status.FromString(dict(told.trailing_metadata())["grpc-status-details-bin"])
        info = ErrorInfo()
        assert status.details[0].Unpack(info)
        assert info.domain == "handmesh"
        full = await failure(SessionServiceStub(channel).CreateSession(pb.CreateSessionRequest()))
        assert raised(full).retry_after == 1.5


@pytest.mark.parametrize("hostile", ["*", ">", "a.b", "", "x" * 5000, "$JS.API.>", "sess_é", "SESS_" + "0" * 26])
async def test_hostile_ids_stop_at_the_edge(server: Served, hostile: str) -> None:
    """No method sees an id that is not one; the answer names the field and does not repeat 5 kB."""
    async with server.as_client() as channel:
        told = await failure(SessionServiceStub(channel).GetSession(pb.GetSessionRequest(session_id=hostile)))
        assert told.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert raised(told).reason == "ID_INVALID"
        assert raised(told).metadata == {"field": "session_id"}
        assert len(told.details()) < 300


async def test_ids_in_a_client_stream_are_checked_too(server: Served) -> None:
    """Every message of a stream, not only the first."""

    async def pieces() -> AsyncIterator[pb.PublishPreviewsRequest]:
        yield pb.PublishPreviewsRequest(session_id=ID)
        yield pb.PublishPreviewsRequest(session_id="*")

    async with server.as_service("harness") as channel:
        told = await failure(SessionServiceStub(channel).PublishPreviews(pieces()))
        assert raised(told).reason == "ID_INVALID"


@pytest.mark.parametrize(
    ("who", "key", "reason"),
    [
        ("client", "", "IDENTITY_UNKNOWN"),
        ("client", "hmk_wrong", "IDENTITY_UNKNOWN"),
        ("sandbox", None, "METHOD_DENIED"),
        ("harness", None, "METHOD_DENIED"),
    ],
)
async def test_who_may_not_call_is_told_so(server: Served, who: str, key: str | None, reason: str) -> None:
    """Without a key, with a wrong one, and as a service that has no row."""
    channel = server.as_client(key) if who == "client" else server.as_service(who)
    async with channel:
        told = await failure(SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest()))
        assert raised(told).reason == reason


async def test_a_client_is_known_by_its_key(server: Served) -> None:
    """The method sees the key's tenant."""
    async with server.as_client() as channel:
        answer = await SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest())
        assert answer.next_page_token == "client/default"


async def test_the_mesh_port_wants_a_certificate_of_the_mesh(server: Served) -> None:
    """Neither plain text nor TLS without a certificate gets through."""
    ca = (server.tls / "session" / "ca.pem").read_bytes()
    for channel in (
        grpc.aio.insecure_channel(server.address),
        grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials(ca)),
    ):
        async with channel:
            told = await failure(SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest(), timeout=5))
            assert told.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_is_not_built_says_so(server: Served) -> None:
    """A method of the contract without code is UNIMPLEMENTED with a reason, not a crash."""
    async with server.as_client() as channel:
        told = await failure(SessionServiceStub(channel).DeleteSession(pb.DeleteSessionRequest(session_id=ID)))
        assert told.code() is grpc.StatusCode.UNIMPLEMENTED
        assert raised(told).reason == "UNIMPLEMENTED"


async def test_anyone_may_ask_for_health_and_reflection(server: Served) -> None:
    """Probes and grpcurl need no key to see whether and what a service is."""
    async with server.as_client("") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=NAME))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listed = [answer async for answer in stub.ServerReflectionInfo(iter([ask]))]
        assert NAME in {it.name for it in listed[0].list_services_response.service}

"""The client against a service that breaks off, repeats itself and refuses, over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import lines
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from mesh_client import Mesh, MeshError

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event, ToolConfirmationRequested, ToolConfirmed, TurnEnded
from handmesh.session.v1.session_pb2 import (
    CreateSessionResponse,
    EmitEventResponse,
    Preview,
    Session,
    WatchEventsResponse,
)
from handmesh.session.v1.session_pb2_grpc import SessionServiceServicer, add_SessionServiceServicer_to_server

SESSION = "sess_00000000000000000000000000"


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, **metadata: str) -> None:
    """Ends a call as the mesh does."""
    packed = Packed()
    packed.Pack(ErrorInfo(reason=reason, domain="handmesh", metadata=metadata))
    status = Status(code=code.value[0], message="no", details=[packed]).SerializeToString()
    context.set_trailing_metadata([("grpc-status-details-bin", status)])
    context.abort(code, "no")


class Service(SessionServiceServicer):
    """Plays `streams`, one for each watch: pages, then a status to break off with. Fails `failures` emits first."""

    def __init__(self) -> None:
        self.streams: list[list[Any]] = []
        self.failures: list[tuple[grpc.StatusCode, str]] = []
        self.asked: list[Any] = []
        self.keys: set[Any] = set()

    def CreateSession(self, request: Any, context: Any) -> CreateSessionResponse:
        """Notes what was asked for."""
        self.asked.append(request)
        self.keys.add(dict(context.invocation_metadata()).get("authorization"))
        return CreateSessionResponse(session=Session(session_id=SESSION))

    def EmitEvent(self, request: Any, context: Any) -> EmitEventResponse:
        """Notes what was said, and fails as it is told to."""
        self.asked.append(request)
        if self.failures:
            refuse(context, *self.failures.pop(0), tool_use_id="toolu_1")
        return EmitEventResponse(position=7)

    def WatchEvents(self, request: Any, context: Any) -> Iterator[WatchEventsResponse]:
        """Plays the next stream."""
        self.asked.append(request)
        for it in self.streams.pop(0):
            if isinstance(it, tuple):
                refuse(context, *it)
            yield it


@pytest.fixture
def service() -> Service:
    """What answers."""
    return Service()


@pytest.fixture
def mesh(service: Service) -> Iterator[Mesh]:
    """A client of it, that gives up after two seconds."""
    server = grpc.server(ThreadPoolExecutor(4))
    add_SessionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Mesh(f"127.0.0.1:{port}", "key", patience=2) as connected:
        yield connected
    server.stop(None).wait()


def page(*positions: int, previews: int = 0) -> WatchEventsResponse:
    """Makes a message of events that end a turn, and of previews."""
    events = [Event(position=each, turn_ended=TurnEnded()) for each in positions]
    return WatchEventsResponse(events=events, previews=[Preview(text="x")] * previews)


def test_a_session_is_made_with_the_key(service: Service, mesh: Mesh) -> None:
    """The key, the configuration and the first message go to the service, in one call that may be said again."""
    assert mesh.create(SessionConfig(system="Be brief."), 'say "hi"').id == SESSION
    (asked,) = service.asked
    assert (service.keys, asked.config.system) == ({"Bearer key"}, "Be brief.")
    assert asked.request_id and asked.initial_events[0].event_id
    assert asked.initial_events[0].message_received.content_json == '[{"type": "text", "text": "say \\"hi\\""}]'


def test_a_broken_stream_is_resumed(service: Service, mesh: Mesh) -> None:
    """Behind the last event seen: what comes twice is told once, and a slow reader is let in again."""
    away = (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    slow = (grpc.StatusCode.RESOURCE_EXHAUSTED, "READER_SLOW")
    service.streams = [[page(2, 3, previews=1), away], [page(3, 4), slow], [], [page(5)]]
    watch = mesh.session(SESSION).watch(2, previews=True)
    seen = [next(watch) for _ in range(5)]
    assert [it.position if isinstance(it, Event) else it.text for it in seen] == [2, 3, "x", 4, 5]
    assert [(it.start_position, it.previews) for it in service.asked] == [(2, True), (4, True), (5, True), (5, True)]


def test_a_gap_is_an_error(service: Service, mesh: Mesh) -> None:
    """A log has no gaps, so a missing event is not passed over."""
    service.streams = [[page(1, 3)]]
    watch = mesh.session(SESSION).watch()
    next(watch)
    with pytest.raises(MeshError) as caught:
        next(watch)
    assert (caught.value.reason, caught.value.metadata) == ("LOG_INVALID", {"position": "2"})


def test_a_refusal_is_typed(service: Service, mesh: Mesh) -> None:
    """It has the code, the reason and the reason's metadata, and is not tried again."""
    service.failures = [(grpc.StatusCode.FAILED_PRECONDITION, "TOOL_CALL_SETTLED")]
    with pytest.raises(MeshError) as caught:
        mesh.session(SESSION).decide(ToolConfirmationRequested(tool_use_id="toolu_1", call_hash="h"), allowed=True)
    error = caught.value
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "TOOL_CALL_SETTLED")
    assert error.metadata == {"tool_use_id": "toolu_1"}
    assert service.asked[0].event.tool_confirmed == ToolConfirmed(tool_use_id="toolu_1", allowed=True, call_hash="h")


def test_an_answer_is_said_again(service: Service, mesh: Mesh) -> None:
    """While the service is away, by one event id: so it is in the log once."""
    service.failures = [(grpc.StatusCode.UNAVAILABLE, "DRAINING")] * 2
    assert mesh.session(SESSION).answer("toolu_1", "fine") == 7
    assert len(service.asked) == 3
    assert len({it.event.event_id for it in service.asked}) == 1


def test_patience_ends() -> None:
    """A mesh that stays away is an error in the end."""
    with Mesh("127.0.0.1:1", "key", patience=0.2) as mesh, pytest.raises(MeshError) as caught:
        next(mesh.session(SESSION).watch())
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "")


def test_what_is_printed() -> None:
    """An event of a newer contract stops the reader, unless it may be ignored."""
    ended = Event(position=3, turn_ended=TurnEnded(reason="TURN_END_REASON_DONE"))
    assert lines.of_event(ended) == {"event": "turn_ended", "position": 3, "reason": "DONE"}
    assert lines.of_event(Event(position=4, ignorable=True)) == {"event": "unknown", "position": 4}
    with pytest.raises(MeshError) as caught:
        lines.of_event(Event(position=5))
    assert caught.value.reason == "EVENT_UNKNOWN"
    expected = {"preview": "text", "event_id": "e", "block": 1, "offset": 2, "piece": "hi"}
    assert lines.of_preview(Preview(event_id="e", block_index=1, offset=2, text="hi")) == expected

"""Traces go over calls, whether or not they are recorded, and hold nothing but ids."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import (
    SessionServiceServicer,
    SessionServiceStub,
    add_SessionServiceServicer_to_server,
)
from services.kit import logs, tracing
from services.kit.errors import Conflict, Gone
from services.kit.tracing import Attributes, Recording
from tests.support.mesh_server import Served, served

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
ID = "sess_" + "0" * 26
NAME = "handmesh.session.v1.SessionService"
CANARY = "a-canary-in-a-message"


class Kept:
    """A span that is kept."""

    def __init__(self, name: str, kind: str, parent: str, attributes: Attributes, outside: bool) -> None:
        self.name, self.kind, self.parent, self.attributes, self.outside = name, kind, parent, attributes, outside
        self.failed = self.ended = False

    def set_attributes(self, attributes: Attributes) -> None:
        self.attributes = {**self.attributes, **attributes}

    def end(self) -> None:
        self.ended = True


class Keeping:
    """A recorder that keeps its spans (see `Recorder`)."""

    def __init__(self) -> None:
        self.spans: list[Kept] = []

    def begin(
        self, name: str, kind: str, parent: str, attributes: Attributes, *, outside: bool, since: int = 0
    ) -> tuple[Recording, str]:
        self.spans.append(Kept(name, kind, parent, attributes, outside))
        return self.spans[-1], f"00-{parent[3:35] or TRACE}-{len(self.spans):016x}-01"

    def failed(self, recording: Recording) -> None:
        assert isinstance(recording, Kept)
        recording.failed = True

    def stop(self, seconds: float) -> None:
        pass


@pytest.fixture(autouse=True)
def nothing_at_hand() -> Iterator[None]:
    """Leaves no trace in what is tried next."""
    yield
    tracing.continue_from("")
    tracing.about("")


@pytest.fixture
def kept() -> Iterator[list[Kept]]:
    keeping = Keeping()
    tracing.start(keeping)
    yield keeping.spans
    tracing.start(None)


class Servicer(SessionServiceServicer):
    """Says which trace its calls belong to, or fails."""

    async def ListSessions(self, request: pb.ListSessionsRequest, context: object) -> pb.ListSessionsResponse:
        return pb.ListSessionsResponse(next_page_token=tracing.current())

    async def OfferWork(self, request: pb.OfferWorkRequest, context: object) -> pb.OfferWorkResponse:
        return pb.OfferWorkResponse(harness=f"{tracing.session_id()} {tracing.current()}")

    async def ReleaseWork(self, request: pb.ReleaseWorkRequest, context: object) -> pb.ReleaseWorkResponse:
        raise Gone("CLAIM_UNKNOWN", CANARY)

    async def EmitEvents(self, request: pb.EmitEventsRequest, context: object) -> pb.EmitEventsResponse:
        if request.epoch:
            raise Conflict("EPOCH_STALE", CANARY)
        return pb.EmitEventsResponse()

    async def GetSession(self, request: pb.GetSessionRequest, context: object) -> pb.GetSessionResponse:
        raise RuntimeError(CANARY)

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: object
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        yield pb.WatchEventsResponse(last_position=int(tracing.current() == PARENT))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    add = lambda to: add_SessionServiceServicer_to_server(Servicer(), to)  # noqa: E731
    async with served(tmp_path, "session", add, NAME) as it:
        yield it


async def test_a_trace_goes_on_where_nobody_records_it(server: Served) -> None:
    """Who records nothing hands a traceparent on, in calls and in streams, and knows which session it is about."""
    async with server.as_service("harness") as channel:
        stub = SessionServiceStub(channel)
        before = await stub.OfferWork(pb.OfferWorkRequest(session_id=ID))
        tracing.continue_from(PARENT)
        after = await stub.OfferWork(pb.OfferWorkRequest(session_id=ID))
        seen = [each.last_position async for each in stub.WatchEvents(pb.WatchEventsRequest(session_id=ID))]
    assert (before.harness, after.harness, seen) == (f"{ID} ", f"{ID} {PARENT}", [1])


async def test_a_call_is_a_span_on_both_sides(server: Served, kept: list[Kept]) -> None:
    """A call's span has the caller's work as its parent, the server's that of the call; both name method and ids."""
    async with server.as_service("harness") as channel:
        tracing.continue_from(PARENT)
        with tracing.span("invoke_agent messages", {"gen_ai.operation.name": "invoke_agent"}) as work:
            answer = await SessionServiceStub(channel).OfferWork(pb.OfferWorkRequest(session_id=ID))
    mine, call, answered = kept
    attributes = {
        "rpc.system.name": "grpc",
        "rpc.method": f"{NAME}/OfferWork",
        "handmesh.session.id": ID,
        "rpc.response.status_code": "OK",
    }
    assert isinstance(work, tracing.Live)
    assert (mine.name, mine.kind, mine.parent) == ("invoke_agent messages", "INTERNAL", PARENT)
    assert (call.name, call.kind, call.parent) == (f"{NAME}/OfferWork", "CLIENT", work.traceparent)
    assert (answered.name, answered.kind, answered.parent[36:52]) == (f"{NAME}/OfferWork", "SERVER", f"{2:016x}")
    assert call.attributes == answered.attributes == attributes
    assert answer.harness == f"{ID} 00-{TRACE}-{3:016x}-01"
    assert all(span.ended and not span.failed and not span.outside for span in kept)


async def test_appends_are_a_span_where_they_are_answered(server: Served, kept: list[Kept]) -> None:
    """What is half of all calls is one span while it goes well, and two when it does not."""
    async with server.as_service("harness") as channel:
        stub = SessionServiceStub(channel)
        tracing.continue_from(PARENT)
        await stub.EmitEvents(pb.EmitEventsRequest(session_id=ID))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.EmitEvents(pb.EmitEventsRequest(session_id=ID, epoch=3))
    told = [(span.kind, span.parent, span.failed, span.ended) for span in kept]
    assert told == [("SERVER", PARENT, False, True), ("SERVER", PARENT, False, True), ("CLIENT", PARENT, True, True)]


async def test_failures_are_codes_and_reasons_without_a_word(server: Served, kept: list[Kept]) -> None:
    """A span says how a call failed by its code and reason: never by the message, which may hold anything."""
    async with server.as_service("harness") as channel:
        stub = SessionServiceStub(channel)
        tracing.continue_from(PARENT)
        for call in (
            stub.ReleaseWork(pb.ReleaseWorkRequest(claim_id="claim_" + "0" * 26, session_id=ID)),
            stub.GetSession(pb.GetSessionRequest(session_id=ID)),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await call
    told = [(span.kind, span.failed, span.attributes["rpc.response.status_code"]) for span in kept]
    assert sorted(told) == [
        ("CLIENT", True, "INTERNAL"),
        ("CLIENT", True, "NOT_FOUND"),
        ("SERVER", False, "NOT_FOUND"),
        ("SERVER", True, "INTERNAL"),
    ]
    assert {span.attributes.get("handmesh.reason") for span in kept} == {None, "CLAIM_UNKNOWN"}
    assert CANARY not in repr([span.attributes for span in kept])


async def test_a_trace_begins_with_a_client(server: Served, kept: list[Kept]) -> None:
    """A client's call begins a trace, or goes on with its own; what services do for themselves, and what
    somebody asks whom nobody knows, belongs to none."""
    async with server.as_client() as channel:
        stub = SessionServiceStub(channel)
        begun = await stub.ListSessions(pb.ListSessionsRequest())
        continued = await stub.ListSessions(pb.ListSessionsRequest(), metadata=(("traceparent", PARENT),))
        bad = await stub.ListSessions(pb.ListSessionsRequest(), metadata=(("traceparent", CANARY),))
    async with server.as_client("") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), metadata=(("traceparent", PARENT),))
    async with server.as_service("harness") as channel:
        await SessionServiceStub(channel).OfferWork(pb.OfferWorkRequest(session_id=ID))
    assert [(span.parent, span.outside) for span in kept] == [("", True), (PARENT, True), ("", True)]
    assert [each.next_page_token[36:52] for each in (begun, continued, bad)] == [f"{n:016x}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    "text",
    ["", "x", f"{PARENT} ", PARENT.upper(), PARENT[:-1], f"00-{'0' * 32}-b7ad6b7169203331-01", f"ff{PARENT[2:]}-x"],
)
def test_what_is_no_traceparent_counts_as_none(text: str) -> None:
    """Only W3C's form is taken, so that nothing else gets into logs and other calls."""
    tracing.continue_from(PARENT)
    tracing.continue_from(text)
    assert tracing.current() == tracing.trace_id() == ""


def test_work_that_fails_says_why_in_one_word(kept: list[Kept]) -> None:
    """A span that an error goes through has its reason, or its class's name, and never its text."""
    tracing.continue_from(PARENT)
    for problem in (Conflict("EPOCH_STALE", CANARY), ValueError(CANARY), KeyboardInterrupt()):
        with pytest.raises(type(problem)), tracing.span("work"):
            raise problem
    assert [(span.attributes, span.failed) for span in kept] == [
        ({"error.type": "EPOCH_STALE"}, True),
        ({"error.type": "ValueError"}, True),
        ({"handmesh.cancelled": True}, False),
    ]
    assert tracing.current() == PARENT


def test_log_lines_name_session_and_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """A line has the ids of what is being done, unless it names others itself; without any it has none."""
    before, level = logging.root.handlers[:], logging.root.level
    try:
        logs.set_up("info")
        log = logs.Log("services.kit.try")
        log.info("nothing at hand")
        tracing.continue_from(PARENT)
        tracing.about(ID)
        log.info("at work")
        log.info("about another", session_id="other")
    finally:
        logging.root.handlers[:], logging.root.level = before, level
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line.get("session_id"), line.get("trace_id")) for line in lines] == [
        (None, None),
        (ID, TRACE),
        ("other", TRACE),
    ]


def test_the_file_has_what_a_collector_would_write(tmp_path: Path) -> None:
    """Spans come to the file at the end, in OTLP's JSON: ids in hex, the service's name, one trace through parents."""
    export = pytest.importorskip("services.kit.tracing_export", reason="pip install 'handmesh[telemetry]'")
    file = tmp_path / "folder" / "traces.jsonl"
    recorder = export.SdkRecorder("handmesh.session", [export.JsonLines(file)], 1.0)
    tracing.start(recorder)
    try:
        tracing.continue_from(PARENT)
        with (
            tracing.span("turn", kind=tracing.SERVER) as turn,
            tracing.span("chat", {"gen_ai.usage.input_tokens": 3}),
        ):
            pass
    finally:
        tracing.start(None)
    recorder.stop(2.0)
    (line,) = file.read_text().splitlines()
    (resource,) = json.loads(line)["resourceSpans"]
    names = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
    assert names["service.name"] == {"stringValue": "handmesh.session"}
    chat, whole = resource["scopeSpans"][0]["spans"]
    assert (chat["name"], chat["traceId"], chat["parentSpanId"]) == ("chat", TRACE, turn.traceparent[36:52])
    assert (whole["spanId"], whole["parentSpanId"], whole["kind"]) == (turn.traceparent[36:52], PARENT[36:52], 2)
    assert chat["attributes"] == [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "3"}}]


def test_the_share_is_the_operator_s(tmp_path: Path) -> None:
    """What a client says of recording does not count; what the mesh has decided holds for all services."""
    export = pytest.importorskip("services.kit.tracing_export", reason="pip install 'handmesh[telemetry]'")
    recorder = export.SdkRecorder("handmesh.session", [], 0.0)
    decided = [recorder.begin("a", "SERVER", PARENT, {}, outside=outside)[1][-2:] for outside in (True, False)]
    assert decided == ["00", "01"]


def test_nothing_is_loaded_for_who_records_nothing() -> None:
    """A service that nobody told to record imports nothing of OpenTelemetry."""
    look = "import services.session.__main__, services.sandbox.__main__, sys; print('opentelemetry' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "False\n"

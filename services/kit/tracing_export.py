"""Records spans with OpenTelemetry's SDK and sends them away. The only module that imports it, if traces are wanted.

The SDK's own global state is left alone: libraries such as the model's and MCP's would begin to write spans of their
own into it, with what they please, and to tell trace ids to the servers that they call.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from google.protobuf.json_format import MessageToDict
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from services.kit.logs import Log
from services.kit.tracing import Attributes, Recording

QUEUE_SPANS = 8_192  # that wait to be sent; more are dropped
BATCH_SPANS = 512
DELAY_MILLISECONDS = 1_000  # until what is there is sent: what a process had that is killed is lost
EXPORT_SECONDS = 5.0  # for one batch, with its retries; then it is dropped
COMPLAIN_SECONDS = 60.0  # between two lines about a collector that is away

_log = Log("services.kit.tracing")
_KINDS = {kind.name: kind for kind in SpanKind}
_FAILED = Status(StatusCode.ERROR)


class SdkRecorder:
    """Spans of one service (see `Recorder`). `ratio` is the share of traces that are recorded, from 0 to 1.

    Whether a trace is recorded is decided by its id where it comes into the mesh, whatever the client has said: what is
    decided holds for all services.
    """

    def __init__(self, service: str, exporters: Sequence[SpanExporter], ratio: float) -> None:
        from importlib.metadata import version

        resource = Resource.create(
            {
                "service.name": service,
                "service.namespace": "handmesh",
                "service.version": version("handmesh"),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        share = TraceIdRatioBased(ratio)
        sampler = ParentBased(share, remote_parent_sampled=share, remote_parent_not_sampled=ALWAYS_OFF)
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        for exporter in exporters:
            self._provider.add_span_processor(
                BatchSpanProcessor(
                    exporter,
                    max_queue_size=QUEUE_SPANS,
                    schedule_delay_millis=DELAY_MILLISECONDS,
                    max_export_batch_size=BATCH_SPANS,
                )
            )
        self._tracer = self._provider.get_tracer("handmesh")

    def begin(
        self, name: str, kind: str, parent: str, attributes: Attributes, *, outside: bool, since: int = 0
    ) -> tuple[Recording, str]:
        """Begins a span (see `Recorder.begin`)."""
        span = self._tracer.start_span(
            name, _context(parent, outside), _KINDS[kind], attributes, start_time=since or None
        )
        its = span.get_span_context()
        return span, f"00-{its.trace_id:032x}-{its.span_id:016x}-{its.trace_flags:02x}"

    def failed(self, recording: Recording) -> None:
        """Marks a span as failed."""
        cast(Any, recording).set_status(_FAILED)

    def stop(self, seconds: float) -> None:
        """Sends what is left, for at most so long."""
        stopping = threading.Thread(target=self._provider.shutdown, daemon=True)  # a collector that hangs is left so
        stopping.start()
        stopping.join(seconds)


def _context(parent: str, outside: bool) -> Context:
    if not parent:
        return Context()
    its = SpanContext(int(parent[3:35], 16), int(parent[36:52], 16), outside, TraceFlags(int(parent[53:55], 16) & 1))
    return set_span_in_context(NonRecordingSpan(its), Context())


class Otlp(SpanExporter):
    """Sends spans to an OpenTelemetry collector over gRPC: `http://host:port` in plain text, `https://` over TLS."""

    def __init__(self, endpoint: str) -> None:
        import logging

        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says each retry; `_complain` says enough
        self._sender = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_SECONDS)
        self._lost = 0
        self._said = -COMPLAIN_SECONDS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends a batch, or drops it."""
        result = self._sender.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if time.monotonic() - self._said >= COMPLAIN_SECONDS:
                self._said = time.monotonic()
                _log.warning("spans were lost: the collector does not take them", spans=self._lost)
        return result

    def shutdown(self) -> None:
        """Ends it. A retry that waits is given up."""
        self._sender.shutdown()


class JsonLines(SpanExporter):
    """Writes spans into a file: a line for each batch, in OTLP's JSON, as a collector's file exporter does."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = file.open("a", encoding="utf-8")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Appends a batch."""
        try:
            self._file.write(json.dumps(_as_json(encode_spans(spans)), separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError:
            _log.warning("spans were lost: the file does not take them", spans=len(spans))
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Closes the file."""
        self._file.close()


def _as_json(request: Any) -> dict[str, Any]:
    """Returns OTLP's JSON of a message: ids in hex and enums as numbers, else as protobuf says."""
    whole: dict[str, Any] = MessageToDict(request, use_integers_for_enums=True)
    for resource, made in zip(request.resource_spans, whole["resourceSpans"], strict=True):
        for scope, inner in zip(resource.scope_spans, made["scopeSpans"], strict=True):
            for span, told in zip(scope.spans, inner["spans"], strict=True):
                told["traceId"], told["spanId"] = span.trace_id.hex(), span.span_id.hex()
                if span.parent_span_id:
                    told["parentSpanId"] = span.parent_span_id.hex()
    return whole

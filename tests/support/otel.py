"""A real OpenTelemetry Collector with a file behind it (`ci/otel-collector` builds it), and what its file says."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handmesh.client.health import listens
from handmesh.launcher.ports import HOST, free_ports
from handmesh.launcher.processes import Command, Process

READY_SECONDS = 30.0
LOOK_EVERY = 0.05

_CONFIG = """\
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "{listen}"}}
exporters:
  file: {{path: "{file}", flush_interval: 100ms}}
service:
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
  telemetry:
    metrics: {{level: none}}
"""


def binary() -> Path | None:
    """Returns where the collector is, if it was built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = [path for path in (cache / "handmesh").glob("otelcol-*") if path.is_file() and os.access(path, os.X_OK)]
    return max(built, default=None)


@dataclass(frozen=True)
class Span:
    """A span as it was exported. `attributes` are those of the span alone."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    failed: bool
    attributes: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Collector:
    """A collector that runs. `address` is host:port; `file` is what it writes."""

    address: str
    file: Path

    def spans(self) -> list[Span]:
        """Returns all that has come."""
        lines = self.file.read_text().splitlines(keepends=True) if self.file.exists() else []
        return spans_of(line for line in lines if line.endswith("\n"))  # the last one may still be coming


def spans_of(lines: Iterable[str]) -> list[Span]:
    """Reads spans from OTLP's JSON, in lines."""
    found = []
    for line in lines:
        for resource in json.loads(line)["resourceSpans"]:
            service = _values(resource["resource"]["attributes"])["service.name"]
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    found.append(
                        Span(
                            service.removeprefix("handmesh."),
                            span["name"],
                            span["traceId"],
                            span["spanId"],
                            span.get("parentSpanId", ""),
                            span["kind"],
                            span.get("status", {}).get("code") == 2,
                            _values(span.get("attributes", [])),
                        )
                    )
    return found


def _values(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for each in attributes:
        ((kind, value),) = each["value"].items()
        found[each["key"]] = int(value) if kind == "intValue" else value
    return found


@asynccontextmanager
async def collecting(folder: Path) -> AsyncIterator[Collector]:
    """Runs a collector that writes into `folder`."""
    program = binary()
    assert program is not None, "requirements.py has looked"
    address, file = f"{HOST}:{free_ports(1)[0]}", folder / "traces.jsonl"
    config = folder / "collector.yaml"
    config.write_text(_CONFIG.format(listen=address, file=file))
    command = Command("otelcol", [str(program), "--config", f"file:{config}"], {}, folder / "otelcol.log", folder)
    process = Process.start(command)
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not await listens(address):
                if process.exit_code is not None:
                    raise process.failure("ended while it started")
                await asyncio.sleep(LOOK_EVERY)
        yield Collector(address, file)
    finally:
        await process.stop()

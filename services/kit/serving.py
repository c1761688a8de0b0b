"""A server's life: settings, ports, health, reflection, and a graceful end on SIGTERM."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from handmesh.status.v1.status_pb2_grpc import add_StatusServiceServicer_to_server
from services.kit import certificates, configured, failpoints, logs, metrics, settings, tracing
from services.kit.callers import Callers
from services.kit.channels import SIZE_OPTIONS
from services.kit.guard import Guard
from services.kit.identity import Peers
from services.kit.key_file import KeyFile
from services.kit.limits import Limits
from services.kit.metered import Meter
from services.kit.metrics_listener import Listener
from services.kit.status import NAME as STATUS
from services.kit.status import Status
from services.kit.watched import UnreadableError

FLUSH_SECONDS = 2.0  # that the last traces have to be sent
GRACE_SECONDS = 5.0  # how long running calls may take after SIGTERM
CONNECTION_IDLE_MS = 30 * 60 * 1000

_log = logs.Log("services.kit.serving")
S = TypeVar("S")

# A peer that is silent for 5 s is asked, and after 5 more its calls end: that is how a stopped harness is noticed.
_OPTIONS: list[tuple[str, Any]] = [
    *SIZE_OPTIONS,
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # what gRPC goes by where a ping is under way; else 60 s
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
    ("grpc.so_reuseport", 0),
    # Else the thousandth call of a moment is cancelled, and all watchers come back at once after a restart.
    ("grpc.server.max_pending_requests", 16_384),
    ("grpc.server.max_pending_requests_hard_limit", 32_768),
]


class Server:
    """A gRPC server with the mesh's port, the clients' port, health and reflection."""

    def __init__(
        self,
        mesh: settings.Mesh,
        callers: Callers | None = None,
        *,
        forwards: str = "",
        within: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Without `callers` clients are known by the operator's file of keys alone. `within` wraps methods inside the
        guard; `forwards` is as for that.

        Raises SettingsError for files that say nothing.
        """
        limits = Limits(
            mesh.caller_streams,
            mesh.caller_bytes,
            mesh.call_seconds,
            mesh.caller_calls,
            mesh.caller_calls_per_second,
            mesh.caller_burst,
        )
        try:
            self._callers = callers or Callers(KeyFile(mesh.api_keys_file))
            guard = Guard(self._callers, limits, Peers.of_file(mesh.identities_file), forwards)
        except (OSError, UnreadableError) as problem:
            raise settings.SettingsError(f"HANDMESH_API_KEYS_FILE or HANDMESH_IDENTITIES_FILE: {problem}") from None
        self._following: asyncio.Task[None] | None = None
        meters = [Meter()] if metrics.is_on() else []
        self.grpc = grpc.aio.server(interceptors=[*meters, guard, *within], options=_OPTIONS)
        self._metrics = Listener(mesh.metrics_listen) if mesh.metrics_listen and metrics.is_on() else None
        self._mesh = mesh
        self._health = HealthServicer()
        add_HealthServicer_to_server(self._health, self.grpc)
        self._status = Status()
        self._watching: asyncio.Task[None] | None = None
        add_StatusServiceServicer_to_server(self._status, self.grpc)
        self._names: list[str] = []
        self.metrics_address = ""  # where metrics are read, when somebody may
        self.addresses: tuple[str, str | None] = (mesh.listen, mesh.client_listen)  # with the ports that port 0 became

    async def start(self, *services: str) -> None:
        """Opens the ports and says SERVING for the named services, such as `handmesh.session.v1.SessionService`."""
        self._names = ["", *services]
        reflection.enable_server_reflection(
            (*services, STATUS, reflection.SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name),
            self.grpc,
        )
        mutual = certificates.server_credentials(self._mesh.tls_dir, mutual=True)
        port = self.grpc.add_secure_port(self._mesh.listen, mutual)
        self.addresses = (_with_port(self._mesh.listen, port), None)
        if self._mesh.client_listen:
            if _is_loopback(self._mesh.client_listen):
                port = self.grpc.add_insecure_port(self._mesh.client_listen)
            else:
                simple = certificates.server_credentials(self._mesh.tls_dir, mutual=False)
                port = self.grpc.add_secure_port(self._mesh.client_listen, simple)
            self.addresses = (self.addresses[0], _with_port(self._mesh.client_listen, port))
        self._following = asyncio.create_task(self._callers.follow(), name="callers")
        if self._metrics is not None:
            await self._metrics.start()
            self.metrics_address = self._metrics.address
        await self.grpc.start()
        self._watching = asyncio.create_task(self._status.watch(), name="status")
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        _log.info("serving", listen=self.addresses[0], client_listen=self.addresses[1])

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Says NOT_SERVING, lets running calls finish for the grace in seconds, and closes."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.grpc.stop(grace)
        if self._metrics is not None:
            await self._metrics.stop()
        for task in (self._following, self._watching):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})

    async def _say(self, status: Any) -> None:
        for name in self._names:
            await self._health.set(name, status)


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def until_signal() -> None:
    """Waits for SIGTERM or SIGINT."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()
    _log.info("stopping")


def main(
    name: str, kind: type[S], run: Callable[[S], Coroutine[Any, Any, None]], checks: Sequence[configured.Check[S]] = ()
) -> None:
    """Runs a service: reads its settings, or says what is wrong with them, and runs it to its end.

    `kind` is the service's settings class, which extends `settings.Mesh`. `checks` look, for `--check`, into the files
    that settings name; what they find, `run` says too: both raise SettingsError.
    """
    parser = configured.arguments(name, f"services.{name}", kind, f"The {name} service of a handmesh.")
    if parser.parse_args().check:
        configured.check(name, kind, checks)
        return
    values = configured.read(name, kind)
    logs.set_up(getattr(values, "log_level", "info"))
    configured.warn_of_unread(kind)
    if isinstance(values, settings.Mesh) and values.failpoints is not None:
        _arm(name, values, values.failpoints)
    if isinstance(values, settings.Mesh):
        _trace(name, values)
        if values.metrics_listen is not None:
            _count(name)
    try:
        _loop()(run(values))
    except settings.SettingsError as problems:
        sys.exit(configured.said(name, problems))
    finally:
        if (recorder := tracing.recorder()) is not None:
            recorder.stop(FLUSH_SECONDS)


def _loop() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        import uvloop
    except ImportError:  # not on every platform; asyncio's own loop serves as well
        return asyncio.run
    return uvloop.run


def _trace(name: str, mesh: settings.Mesh) -> None:
    """Begins to record traces, if anybody wants them. What that takes is loaded for nobody else."""
    if mesh.otlp_endpoint is None and mesh.trace_file is None:
        return
    try:
        from services.kit import tracing_export as export
    except ImportError:
        sys.exit(
            f"{name}: traces are to be recorded, and what that takes is missing: pip install 'handmesh[telemetry]'"
        )
    exporters: list[Any] = [export.Otlp(mesh.otlp_endpoint)] if mesh.otlp_endpoint is not None else []
    if mesh.trace_file is not None:
        try:
            exporters.append(export.JsonLines(mesh.trace_file))
        except OSError as problem:
            sys.exit(f"{name}: HANDMESH_TRACE_FILE is {str(mesh.trace_file)!r}: {problem.strerror}")
    tracing.start(export.SdkRecorder(f"handmesh.{name}", exporters, mesh.trace_ratio))


def _count(name: str) -> None:
    """Counts from now on. Whoever asks for metrics and has not what makes them is told, and not served without."""
    try:
        metrics.turn_on(name)
    except ImportError as missing:
        sys.exit(
            f"{name}: HANDMESH_METRICS_LISTEN is set, and the Python package {missing.name} is not there. "
            "Install the extra `telemetry` (pip install 'handmesh[telemetry]'), or unset it."
        )


def _arm(name: str, mesh: settings.Mesh, folder: Path) -> None:
    """Arms the failpoints of a mesh for tests. One that others can reach may serve somebody: it is not started."""
    listens = [mesh.listen, *([mesh.client_listen] if mesh.client_listen else [])]
    if not all(map(_is_loopback, listens)):
        sys.exit(
            f"{name}: HANDMESH_FAILPOINTS is set, and this service listens on {', '.join(listens)}. Failpoints kill "
            "the service on purpose: they are for tests, on loopback addresses only. Unset HANDMESH_FAILPOINTS."
        )
    failpoints.arm(folder)
    _log.warning("failpoints are armed", folder=str(folder))


def read_secret(file: Path) -> str:
    """Reads a secret from its file, without the newline at its end."""
    return file.read_text().strip()

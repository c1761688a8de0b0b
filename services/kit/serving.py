"""A server's life: settings, ports, health, reflection, and a graceful end on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from handmesh.status.v1.status_pb2_grpc import add_StatusServiceServicer_to_server
from services.kit import failpoints, logs, settings
from services.kit.channels import SIZE_OPTIONS
from services.kit.guard import Guard
from services.kit.identity import known_keys
from services.kit.limits import Limits
from services.kit.status import NAME as STATUS
from services.kit.status import Status

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

    def __init__(self, mesh: settings.Mesh) -> None:
        limits = Limits(mesh.caller_streams, mesh.caller_bytes, mesh.call_seconds)
        guard = Guard(known_keys(mesh.api_keys_file), limits)
        self.grpc = grpc.aio.server(interceptors=[guard], options=_OPTIONS)
        self._mesh = mesh
        self._health = HealthServicer()
        add_HealthServicer_to_server(self._health, self.grpc)
        self._status = Status()
        self._watching: asyncio.Task[None] | None = None
        add_StatusServiceServicer_to_server(self._status, self.grpc)
        self._names: list[str] = []
        self.addresses: tuple[str, str | None] = (mesh.listen, mesh.client_listen)  # with the ports that port 0 became

    async def start(self, *services: str) -> None:
        """Opens the ports and says SERVING for the named services, such as `handmesh.session.v1.SessionService`."""
        self._names = ["", *services]
        reflection.enable_server_reflection(
            (*services, STATUS, reflection.SERVICE_NAME, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name),
            self.grpc,
        )
        key, cert, ca = ((self._mesh.tls_dir / name).read_bytes() for name in ("key.pem", "cert.pem", "ca.pem"))
        mutual = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
        port = self.grpc.add_secure_port(self._mesh.listen, mutual)
        self.addresses = (_with_port(self._mesh.listen, port), None)
        if self._mesh.client_listen:
            if _is_loopback(self._mesh.client_listen):
                port = self.grpc.add_insecure_port(self._mesh.client_listen)
            else:
                port = self.grpc.add_secure_port(self._mesh.client_listen, grpc.ssl_server_credentials([(key, cert)]))
            self.addresses = (self.addresses[0], _with_port(self._mesh.client_listen, port))
        await self.grpc.start()
        self._watching = asyncio.create_task(self._status.watch(), name="status")
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        _log.info("serving", listen=self.addresses[0], client_listen=self.addresses[1])

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Says NOT_SERVING, lets running calls finish for the grace in seconds, and closes."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.grpc.stop(grace)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

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


def main(name: str, kind: type[S], run: Callable[[S], Coroutine[Any, Any, None]]) -> None:
    """Runs a service: reads its settings, or says what is wrong with them, and runs it to its end.

    `kind` is the service's settings class, which extends `settings.Mesh`.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m services.{name}",
        description=f"The {name} service of a handmesh.",
        epilog="Settings, from the environment:\n" + settings.describe(kind),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="import everything, show the settings' names, and exit")
    if parser.parse_args().check:
        sys.stdout.write(f"{name}: ok\n{settings.describe(kind)}\n")
        return
    try:
        values = settings.read(kind)
    except settings.SettingsError as problems:
        sys.exit(f"{name}: {str(problems).replace(chr(10), chr(10) + name + ': ')}")
    logs.set_up(getattr(values, "log_level", "info"))
    if isinstance(values, settings.Mesh) and values.failpoints is not None:
        _arm(name, values, values.failpoints)
    try:
        import uvloop
    except ImportError:  # not on every platform; asyncio's own loop serves as well
        asyncio.run(run(values))
    else:
        uvloop.run(run(values))


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

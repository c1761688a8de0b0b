"""A real gRPC server of the kit in this process, with certificates of a development CA and one API key."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES
from services.kit import settings
from services.kit.channels import connect
from services.kit.serving import Server


@dataclass(frozen=True)
class Served:
    """Where a server listens, and who can call it."""

    address: str
    client_address: str
    tls: Path
    key: str
    metrics_address: str = ""

    def as_service(self, name: str) -> grpc.aio.Channel:
        """Opens a channel as a service of the mesh, with its certificate."""
        return connect(self.address, self.tls / name)

    def as_client(self, key: str | None = None) -> grpc.aio.Channel:
        """Opens a plain channel with an API key in every call; `key=""` shows none."""
        shown = self.key if key is None else key
        interceptors = [_WithKey(shown), _StreamWithKey(shown), _UploadWithKey(shown)] if shown else []
        return grpc.aio.insecure_channel(self.client_address, interceptors=interceptors)


class _WithKey(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, key: str) -> None:
        self._pair = ("authorization", f"Bearer {key}")

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), self._pair)
        return await continuation(details._replace(metadata=grpc.aio.Metadata(*metadata)), request)


class _StreamWithKey(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, key: str) -> None:
        self._pair = ("authorization", f"Bearer {key}")

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), self._pair)
        return await continuation(details._replace(metadata=grpc.aio.Metadata(*metadata)), request)


class _UploadWithKey(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, key: str) -> None:
        self._pair = ("authorization", f"Bearer {key}")

    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        metadata = (*(details.metadata or ()), self._pair)
        return await continuation(details._replace(metadata=grpc.aio.Metadata(*metadata)), requests)


@asynccontextmanager
async def served(
    data: Path, identity: str, add: Callable[[grpc.aio.Server], None], *names: str, **limits: Any
) -> AsyncIterator[Served]:
    """Serves what `add` adds, as the service `identity`, on free loopback ports."""
    ensure_certificates(data / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    key_file = ensure_api_key(data)
    keys = data / "api_keys.json"
    mesh = settings.Mesh("127.0.0.1:0", "127.0.0.1:0", data / "tls" / identity, keys, "info", **limits)
    server = Server(mesh)
    add(server.grpc)
    await server.start(*names)
    address, client_address = server.addresses
    try:
        yield Served(address, client_address or "", data / "tls", key_file.read_text().strip(), server.metrics_address)
    finally:
        await server.stop(grace=0)

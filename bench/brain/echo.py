"""An EmitEvent that a bare server answers at once: what any call of this size costs on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from bench.brain.world import READY_SECONDS, ROOT, World
from bench.log.world import emit, session_name
from handmesh.launcher.ports import free_ports
from handmesh.launcher.processes import Command, Process
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub


@asynccontextmanager
async def echo(world: World) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Starts the echo server of `bench.log`; gives a call of it, of one event of 1 KB."""
    (port,) = free_ports(1)
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "HANDMESH_CLIENT_LISTEN": f"127.0.0.1:{port}"}
    command = Command(
        "echo", [sys.executable, "-m", "bench.log.peer", "echo"], environment, world.folder / "echo.log", ROOT
    )
    process = Process.start(command)

    async def listens() -> bool:
        return process.listens(port)

    try:
        await process.ready(listens, within=READY_SECONDS)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = SessionServiceStub(channel)
            request = emit(session_name(1))
            await stub.EmitEvent(request)
            yield lambda: stub.EmitEvent(request)
    finally:
        await process.stop()

"""Servers to compare with, as processes: `python -m bench.log.peer echo|floor|postgres`.

echo      answers each EmitEvent at once, on a server with the session service's options and nothing around it
floor     the same, after one acknowledged publish of the event by the session service's own client: no caller is
          identified, no rule asked, no chain kept, so nothing that appends by a unary call can be faster
postgres  INSERTs each event into PostgreSQL, behind the kit's whole server, as the session service has it
"""

from __future__ import annotations

import os
import sys
from typing import Any

import grpc

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceServicer, add_SessionServiceServicer_to_server
from services.kit import ids, settings
from services.kit.serving import _OPTIONS, Server, until_signal
from services.session.log import StoredBatch
from services.session.logs.jetstream.connection import connect
from services.session.logs.jetstream.events import JetStreamLog
from services.session.settings import Settings

CONNECTIONS = 16


class Echo(SessionServiceServicer):
    """Answers with what it was sent."""

    async def EmitEvent(self, request: Any, context: Any) -> Any:
        return request


class Floor(SessionServiceServicer):
    """Publishes events, each to a subject of its own."""

    def __init__(self, log: JetStreamLog) -> None:
        self._log = log
        self._heads: dict[str, tuple[str, int]] = {}

    async def EmitEvent(self, request: pb.EmitEventRequest, context: Any) -> pb.EmitEventResponse:
        session_id, position = self._heads.get(request.session_id) or (ids.mint("sess"), 0)
        position += 1
        self._heads[request.session_id] = session_id, position
        await self._log.append(session_id, StoredBatch(position, 1, "0" * 64, request.event.SerializeToString()))
        return pb.EmitEventResponse(position=position)


class Postgres(SessionServiceServicer):
    """Keeps events in a table."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._heads: dict[str, int] = {}

    async def EmitEvent(self, request: pb.EmitEventRequest, context: Any) -> pb.EmitEventResponse:
        position = self._heads[request.session_id] = self._heads.get(request.session_id, 0) + 1
        await self._pool.execute(
            "INSERT INTO events (session_id, position, event_id, event) VALUES ($1, $2, $3, $4)",
            request.session_id,
            position,
            request.event.event_id,
            request.event.SerializeToString(),
        )
        return pb.EmitEventResponse(position=position)


async def echo() -> None:
    await _bare(Echo(), pb.EmitEventRequest)


async def floor() -> None:
    async with connect(settings.read(Settings)) as connection:
        await _bare(Floor(JetStreamLog(connection)), pb.EmitEventResponse)


async def _bare(servicer: SessionServiceServicer, answer: Any) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.EmitEvent, pb.EmitEventRequest.FromString, answer.SerializeToString
    )
    service = grpc.method_handlers_generic_handler("handmesh.session.v1.SessionService", {"EmitEvent": handler})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(os.environ["HANDMESH_CLIENT_LISTEN"])
    await server.start()
    await until_signal()
    await server.stop(None)


async def postgres() -> None:
    import asyncpg  # type: ignore[import-not-found, import-untyped, unused-ignore]

    pool = await asyncpg.create_pool(os.environ["HANDMESH_BENCH_POSTGRES"], min_size=CONNECTIONS, max_size=CONNECTIONS)
    await pool.execute(
        "CREATE TABLE IF NOT EXISTS events (session_id text, position bigint, event_id text, event bytea, "
        "PRIMARY KEY (session_id, position))"
    )
    server = Server(settings.read(Settings))
    add_SessionServiceServicer_to_server(Postgres(pool), server.grpc)  # type: ignore[abstract]
    await server.start("handmesh.session.v1.SessionService")
    await until_signal()
    await server.stop(0)
    await pool.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run({"echo": echo, "floor": floor, "postgres": postgres}[sys.argv[1]]())

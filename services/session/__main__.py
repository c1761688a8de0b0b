"""Wires the session service and runs it."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time

from handmesh.session.v1.memory_pb2_grpc import add_MemoryServiceServicer_to_server
from handmesh.session.v1.session_pb2_grpc import add_SessionServiceServicer_to_server
from services.kit.logs import Log as Journal
from services.kit.serving import Server, main, until_signal
from services.session.blobs import Blobs
from services.session.blobs_core import DEFAULT_LIMITS, Limits
from services.session.claims import Claims
from services.session.grants import Grants
from services.session.index import Index
from services.session.log import Store, UnusableStoreError
from services.session.memories import Memories
from services.session.memories_server import MemoryServicer
from services.session.previews import Previews
from services.session.reader import Reader
from services.session.server import Parts, SessionServicer
from services.session.sessions import Sessions
from services.session.settings import Settings
from services.session.watcher import Watcher
from services.session.writer import Writer

SERVICES = ("handmesh.session.v1.SessionService", "handmesh.session.v1.MemoryService")

_journal = Journal("services.session")


def parts(store: Store, limits: Limits = DEFAULT_LIMITS) -> Parts:
    """Puts the service's parts together over a store."""
    now = time.time_ns
    writer = Writer(store.log, store.wire, now)
    reader = Reader(store.log, writer)
    index = Index(store.registry, writer)
    claims = Claims(store.queue, store.wire, writer, now)
    grants = Grants(store.registry, store.wire, writer, reader, now)
    watcher = Watcher(store.log, store.wire)
    sessions = Sessions(writer, reader, store.registry, index, claims, grants, now)
    blobs = Blobs(store.objects, store.registry, writer, reader, limits)
    memories = Memories(store.objects, store.registry, now)
    return Parts(sessions, reader, watcher, Previews(writer, watcher), claims, grants, blobs, memories)


async def run(settings: Settings) -> None:
    """Serves until SIGTERM, or until the store is gone for good: then the process ends with an error."""
    logs = importlib.import_module(f"services.session.logs.{settings.log}")
    try:
        async with logs.make(settings) as store:
            why = await serve(settings, store)
    except UnusableStoreError as problem:
        sys.exit(f"session: {problem}")
    if why:
        sys.exit(f"session: {why}")


async def serve(settings: Settings, store: Store) -> str:
    """Serves a store until the end, and says why it came; nothing when it was asked for."""
    whole = parts(store, Limits(settings.blob_quota_bytes, settings.max_blob_bytes))
    server = Server(settings)
    add_SessionServiceServicer_to_server(SessionServicer(whole), server.grpc)  # type: ignore[abstract]  # see its docstring
    add_MemoryServiceServicer_to_server(MemoryServicer(whole.memories, whole.grants), server.grpc)
    keeping = asyncio.create_task(whole.claims.run())
    ends = {
        asyncio.create_task(until_signal()),
        lost := asyncio.create_task(store.lost()),
        keeping,
    }
    try:
        await server.start(*SERVICES)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        return lost.result() if lost.done() else ""
    finally:
        for part in (whole.claims, whole.watcher, whole.grants):
            part.drain()
        await server.stop()
        await whole.sessions.finish()
        await whole.blobs.finish()
        for task in ends:
            task.cancel()
        await asyncio.wait(ends)


if __name__ == "__main__":
    main("session", Settings, run)

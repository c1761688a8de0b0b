"""The store on NATS JetStream: what `docs/log.md` describes. `make(settings)` opens it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.session.log import Store
from services.session.logs.jetstream.connection import connect
from services.session.logs.jetstream.events import JetStreamLog
from services.session.logs.jetstream.objects import JetStreamObjects
from services.session.logs.jetstream.queue import JetStreamQueue
from services.session.logs.jetstream.registry import JetStreamRegistry
from services.session.logs.jetstream.streams import check_streams, check_sync
from services.session.logs.jetstream.wire import NatsWire
from services.session.settings import Settings


@asynccontextmanager
async def make(settings: Settings) -> AsyncIterator[Store]:
    """Connects, checks that NATS keeps what it acknowledges, waits for its streams, and gives the store.

    Raises UnusableStoreError when this NATS must not be used.
    """
    async with connect(settings) as connection:
        await check_sync(settings)
        await check_streams(connection)
        yield Store(
            JetStreamLog(connection),
            JetStreamRegistry(connection),
            JetStreamQueue(connection),
            NatsWire(connection),
            JetStreamObjects(connection),
            lost=connection.lost,
        )

"""Imports: a session made from events that were exported, with their positions, times and emitters.

Every event passes the rules that it passed when it was emitted, in order, so what is imported is a log that could
have come about here. Only the tenant is set anew. What was stored before a wrong event is deleted with the session's
id; what a broken stream left is gone on with by the same request, or deleted within an hour (`Upkeep`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from handmesh.session.v1.event_pb2 import Event
from handmesh.session.v1.session_pb2 import GetEventsResponse, ImportSessionRequest, Session
from services.kit import ids
from services.kit.errors import Exists, Full, Invalid, ServiceError
from services.session import codec, configs
from services.session.admission import MAX_SESSION_BYTES, admit
from services.session.blobs import Blobs
from services.session.blobs_import import Arriving
from services.session.claims import Claims
from services.session.core import WriteState, fold
from services.session.emitters import HARNESS, SESSION
from services.session.framing import Frame, Packer, frames
from services.session.index import Index
from services.session.lifecycle import Lifecycle
from services.session.log import Log, StoredBatch, TakenError
from services.session.reader import Reader
from services.session.refusing import drain
from services.session.requests import Requests
from services.session.sessions import Sessions
from services.session.writer import Writer

SKEW = 60 * 1_000_000_000  # nanoseconds that another machine's clock may be ahead


class Imports:
    """Makes sessions from events."""

    def __init__(
        self,
        log: Log,
        writer: Writer,
        reader: Reader,
        sessions: Sessions,
        lifecycle: Lifecycle,
        requests: Requests,
        index: Index,
        claims: Claims,
        blobs: Blobs,
        now: Callable[[], int],
        max_session_bytes: int = MAX_SESSION_BYTES,
    ) -> None:
        self._log = log
        self._writer = writer
        self._reader = reader
        self._sessions = sessions
        self._lifecycle = lifecycle
        self._requests = requests
        self._index = index
        self._claims = claims
        self._blobs = blobs
        self._now = now
        self._max_session_bytes = max_session_bytes

    async def take(self, requests: AsyncIterator[ImportSessionRequest], tenant: str) -> Session:
        """Makes a session from a stream of events (see `ImportSession`)."""
        session_id, made = "", False
        state, packer = WriteState(), Packer()
        try:
            async for request in requests:
                if not session_id:
                    session_id, made = await self._begin(request.request_id, tenant)
                    blobs = Arriving(self._blobs, session_id)
                for event in request.events:
                    full = packer.add(self._checked(event, state, tenant))
                    await self._store(session_id, full, made)
                if not made:
                    await blobs.take(request)
            if not state.head:
                raise _invalid(1, "there is no event")
            await self._store(session_id, packer.rest(), made)
            await blobs.end()
        except (Invalid, Exists, Full):
            if session_id and not made:
                await self._lifecycle.discard(session_id, tenant)
            await drain(requests)
            raise
        if not made:
            await self._sessions.carry(self._show(session_id))
        return await self._sessions.get(session_id, tenant)

    async def _begin(self, request_id: str, tenant: str) -> tuple[str, bool]:
        """Says which session it becomes, and whether it has become that already."""
        claimed = await self._requests.claim(tenant, request_id, "import", "import")
        if not claimed.fresh and await self._lifecycle.was_deleted(claimed.session_id):
            raise Exists("REQUEST_ID_REUSED", "what this request made is deleted", request_id=request_id)
        made = not claimed.fresh and await self._index.is_made(claimed.session_id, tenant)
        if not made:
            await self._index.announce(claimed.session_id, tenant, self._now(), claimed.key)
        return claimed.session_id, made

    def _checked(self, event: Event, state: WriteState, tenant: str) -> Frame:
        """Checks the next event, takes it into the state, and returns it as it is stored."""
        position, time = state.head + 1, codec.nanoseconds(event.emit_time)
        if event.position != position:
            raise _invalid(position, f"position {event.position} comes instead")
        if not event.event_id:
            raise _invalid(position, "it has no event_id")
        if not state.update_time <= time <= self._now() + SKEW:
            raise _invalid(position, "its emit_time is before the last one's, or has not come yet")
        owned = _config_of(event)
        if owned is not None:
            owned.tenant = tenant
            owned.ClearField("parent_session_id")
        if event.HasField("message_received") and event.emitter != SESSION:
            event.message_received.ClearField("from_session_id")
        try:
            _admit(event, state, self._max_session_bytes)
        except ServiceError as problem:
            raise _invalid(position, problem.message) from None
        data = GetEventsResponse(events=[event]).SerializeToString()
        fold(state, codec.stored_fact(event), time)
        state.size += len(data)
        return Frame(position, data)

    async def _store(self, session_id: str, batch: StoredBatch | None, made: bool) -> None:
        """Stores a batch, unless the same is there. Raises Exists for something else."""
        if batch is None:
            return
        if not made:
            try:
                await self._log.append(session_id, batch)
                return
            except TakenError:
                pass  # from an earlier try
        there = [
            frame.data
            for stored in await self._log.read(session_id, batch.first_position, batch.last_position + 1, 2**24)
            for frame in frames(stored)
            if batch.first_position <= frame.position <= batch.last_position
        ]
        if b"".join(there) != batch.data:
            raise Exists("REQUEST_ID_REUSED", "the request id was used for another import")

    async def _show(self, session_id: str) -> None:
        state = await self._writer.current(session_id)
        config = await self._reader.config(session_id, state.config_position)
        await self._index.put(session_id, config, state.create_time, state.config_position)
        self._index.note(session_id, state)
        await self._claims.want(session_id, state)


def _admit(event: Event, state: WriteState, max_bytes: int) -> None:
    """Raises a ServiceError unless the event could have been appended at that point by the emitter that it names."""
    if event.HasField("session_deleted"):
        raise Invalid("EVENT_INVALID", "a deleted session has no log", field="kind")
    config = _config_of(event)
    if config is not None:
        configs.check(config)
    asked = Event()
    asked.CopyFrom(event)
    for name in ("position", "emit_time", "emitter", "epoch"):
        asked.ClearField(name)
    ids.check("event_id", asked.event_id)
    fact = codec.fact_of(asked, event.emitter)
    woke = fact.kind == "harness_woke"
    wanted = state.head + 1 if woke else state.epoch if event.emitter == HARNESS else 0
    if event.epoch != wanted:
        raise Invalid("EVENT_INVALID", f"its epoch is {event.epoch}, not {wanted}", field="epoch")
    admit(
        state,
        [fact],
        epoch=event.epoch,
        expected_position=state.head if woke else None,
        max_bytes=max_bytes,
    )


def _config_of(event: Event) -> Any:
    match event.WhichOneof("kind"):
        case "session_started":
            return event.session_started.config
        case "config_changed":
            return event.config_changed.config
        case _:
            return None


def _invalid(position: int, what: str) -> Invalid:
    return Invalid("LOG_INVALID", f"event {position}: {what}", position=position)

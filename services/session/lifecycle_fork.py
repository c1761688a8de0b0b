"""Forks: a new session whose log begins with another one's (see docs/adr/0011).

The prefix is copied, packed as tightly as batches may be, and the new session is shown to nobody before it is whole:
its entry in the index is marked as not made yet, and its id is told last. A fork that broke off is gone on with by
the same request; without one `survey` finds it and deletes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable

from handmesh.session.v1.event_pb2 import ConfigChanged, Event, HandDetached, SessionForked
from handmesh.session.v1.session_pb2 import ForkSessionRequest, Session
from services.kit.errors import Conflict, Full, Invalid, OutOfRange, Refused, Unavailable
from services.session import codec, configs
from services.session.admission import MAX_BATCH_EVENTS, MAX_EVENTS
from services.session.blobs import Blobs
from services.session.claims import Claims
from services.session.core import WriteState
from services.session.emitters import SESSION
from services.session.framing import Packer, frames
from services.session.index import Index
from services.session.log import Log, StoredBatch, TakenError
from services.session.reader import Reader
from services.session.requests import Claimed, Requests
from services.session.sessions import Sessions
from services.session.writer import Draft, Writer

READ_SPAN = 512
READ_BYTES = 4 * 1024 * 1024
MAX_TRIES = 8  # of one fork, while the same request is at work elsewhere
ROOM = 1_024  # positions that a fork has left at least


class Forks:
    """Makes sessions from other sessions' logs."""

    def __init__(
        self,
        log: Log,
        writer: Writer,
        reader: Reader,
        sessions: Sessions,
        requests: Requests,
        index: Index,
        claims: Claims,
        blobs: Blobs,
        now: Callable[[], int],
    ) -> None:
        self._log = log
        self._writer = writer
        self._reader = reader
        self._sessions = sessions
        self._requests = requests
        self._index = index
        self._claims = claims
        self._blobs = blobs
        self._now = now

    async def fork(self, request: ForkSessionRequest, tenant: str | None) -> Session:
        """Forks a session (see `ForkSession`)."""
        source = await self._writer.current(request.session_id, tenant)
        position = fork_position(source, request.position)
        digest = hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
        if source.parent and not request.HasField("config"):  # nobody has started the fork
            request.config.CopyFrom(await self._reader.config(request.session_id, source.config_position))
        if request.HasField("config"):
            old = await self._reader.config(request.session_id, source.config_position)
            configs.keep_identity(request.config, old)
            request.config.ClearField("parent_session_id")
            configs.check(request.config)
        claimed = await self._requests.claim(source.tenant, request.request_id, digest, "fork")
        await self._sessions.carry(self._make(request, claimed, position, source.tenant))
        return await self._sessions.get(claimed.session_id, tenant)

    async def _make(self, request: ForkSessionRequest, claimed: Claimed, position: int, tenant: str) -> None:
        session_id = claimed.session_id
        await self._index.announce(session_id, tenant, self._now(), claimed.key)
        await self._blobs.copy(request.session_id, session_id)
        for _ in range(MAX_TRIES):
            try:
                state = await self._state(session_id)
                if not await self._is_finished(request, session_id, state):
                    whole = max(position, state.head)
                    hands = await self._copy(request.session_id, session_id, whole, state.head, state.digest)
                    state = await self._finish(request, session_id, whole, hands)
                break
            except (TakenError, Conflict):
                continue  # the same request, at another replica
        else:
            raise Unavailable("LOG_UNAVAILABLE", "the same request is at work elsewhere", retry_after=1.0)
        config = await self._reader.config(session_id, state.config_position)
        await self._index.put(session_id, config, state.create_time, state.config_position)
        self._index.note(session_id, state)
        await self._claims.want(session_id, state)

    async def _state(self, session_id: str) -> WriteState:
        """Returns what is in the new log so far."""
        if await self._log.head(session_id) is None:
            return WriteState()
        return await self._writer.current(session_id)

    async def _is_finished(self, request: ForkSessionRequest, session_id: str, state: WriteState) -> bool:
        """Says whether the new log has all that it should have: its latest fork is this one."""
        for batch in await self._log.read(session_id, state.forked, state.forked + 1, 1) if state.forked else ():
            forked = codec.unseal(batch.data)[state.forked - batch.first_position].session_forked
            return forked.from_session_id == request.session_id
        return False

    async def _copy(self, source_id: str, session_id: str, position: int, there: int, digest: str) -> dict[str, str]:
        """Copies what is not there yet, and returns the hands that the original had at that position."""
        hands: dict[str, str] = {}
        packer = Packer(digest)
        async for batch in self._prefix(source_id, position):
            for event in codec.unseal(batch.data):
                follow_hand(hands, event)
            for frame in frames(batch):
                full = packer.add(frame) if frame.position > there else None
                if full is not None:
                    await self._log.append(session_id, full)
        rest = packer.rest()
        if rest is not None:
            await self._log.append(session_id, rest)
        return hands

    async def _prefix(self, session_id: str, position: int) -> AsyncIterator[StoredBatch]:
        """Yields the batches up to a position, the last one cut there."""
        start = 1
        while start <= position:
            batches = await self._log.read(session_id, start, min(start + READ_SPAN, position + 1), READ_BYTES)
            if not batches or batches[0].first_position != start:
                raise Refused("SESSION_DAMAGED", f"the session's log has lost position {start}")
            for batch in batches:
                yield cut(batch, position)
            start = batches[-1].last_position + 1

    async def _finish(
        self, request: ForkSessionRequest, session_id: str, position: int, hands: dict[str, str]
    ) -> WriteState:
        """Appends what makes the copy a session of its own. Said again, it is there already."""
        forked = SessionForked(from_session_id=request.session_id, position=position)
        events = [Event(event_id=f"session_forked_{position}", session_forked=forked)]
        if request.HasField("config"):
            changed = ConfigChanged(config=request.config)
            events.append(Event(event_id=f"config_changed_{position}", config_changed=changed))
        for hand, sandbox_id in hands.items():
            left = HandDetached(hand=hand, sandbox_id=sandbox_id, reason="the session is a fork")
            events.append(Event(event_id=f"hand_detached_{position}_{hand}", hand_detached=left))
        for start in range(0, len(events), MAX_BATCH_EVENTS):
            part = events[start : start + MAX_BATCH_EVENTS]
            facts = [codec.fact_of(event, SESSION) for event in part]
            draft = Draft(part, facts, expected_position=None if start else position)
            state = (await self._writer.append(session_id, draft)).state
        return state


def fork_position(source: WriteState, asked: int) -> int:
    """Says up to which position a session is forked. 0 asks for the last that can be."""
    if asked < 0:
        raise Invalid("ARGUMENT_INVALID", f"position is negative: {asked}", field="position")
    if source.damaged:
        raise Refused("SESSION_DAMAGED", "the session's log is damaged")
    if asked > source.head:
        message = f"the log's last position is {source.head}"
        raise OutOfRange("POSITION_OUT_OF_RANGE", message, last_position=source.head)
    last = source.end - 1 if source.end else source.head
    if asked > last:
        raise Refused("SESSION_ENDED", f"the session has ended: fork it at {last} or before")
    position = asked or last
    if position > MAX_EVENTS - ROOM:
        raise Full("SESSION_FULL", f"a fork shares at most {MAX_EVENTS - ROOM} events", limit=MAX_EVENTS - ROOM)
    return position


def follow_hand(hands: dict[str, str], event: Event) -> None:
    """Keeps which hands a session has, by name, with their sandboxes."""
    match event.WhichOneof("kind"):
        case "sandbox_provisioned":
            hands[event.sandbox_provisioned.hand] = event.sandbox_provisioned.sandbox_id
        case "hand_attached":
            hands[event.hand_attached.hand] = event.hand_attached.sandbox_id
        case "hand_detached":
            hands.pop(event.hand_detached.hand, None)
        case "hand_transferred":
            hands.pop(event.hand_transferred.hand, None)


def cut(batch: StoredBatch, position: int) -> StoredBatch:
    """Returns a batch without the events after a position."""
    if batch.last_position <= position:
        return batch
    kept = [frame.data for frame in frames(batch) if frame.position <= position]
    return StoredBatch(batch.first_position, len(kept), batch.prev_digest, b"".join(kept))

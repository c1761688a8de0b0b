"""Sessions as callers see them: made, looked at, listed, changed, appended to and ended.

What was begun here is carried through, whether or not its caller still waits: an event that is in the log without the
work that it calls for would leave a session asleep.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import ConfigChanged, Event, SessionStarted
from handmesh.session.v1.session_pb2 import CreateSessionRequest, Session
from services.kit import failpoints
from services.kit.errors import Conflict, Gone, Invalid
from services.kit.identity import Caller
from services.session import codec, configs
from services.session.admission import MAX_BATCH_EVENTS, check_emitters
from services.session.audit import Audit
from services.session.claims import Claims
from services.session.core import Fact, WriteState
from services.session.emitters import CLIENT, HARNESS, SESSION, VAULT_PROXY
from services.session.families import Families, interrupt_id, rests
from services.session.grants import Grants
from services.session.index import Index
from services.session.log import DeletedError, Registry
from services.session.memories import Memories
from services.session.reader import Reader
from services.session.requests import Requests
from services.session.writer import Appended, Draft, Writer

MAX_REASON = 1_024  # characters

# Kinds that call for nothing once they are stored: no harness is woken for them, no mark settled, no grant minted.
_WITHOUT_SEQUEL = frozenset({"custom", "tools_offered", "model_replied", "tool_started", "tool_finished"})

T = TypeVar("T")


@dataclass(frozen=True)
class Emitted:
    """Where events are, and the grant that came with them."""

    appended: Appended
    grant: str = ""


class Sessions:
    """What can be done with sessions."""

    def __init__(
        self,
        writer: Writer,
        reader: Reader,
        registry: Registry,
        index: Index,
        claims: Claims,
        grants: Grants,
        audit: Audit,
        memories: Memories,
        families: Families,
        now: Callable[[], int],
    ) -> None:
        self._memories = memories
        self._writer = writer
        self._reader = reader
        self._audit = audit
        self._requests = Requests(registry)
        self._index = index
        self._claims = claims
        self._grants = grants
        self._families = families
        self._now = now
        self._running: set[asyncio.Task[Any]] = set()

    async def create(self, caller: Caller, request: CreateSessionRequest) -> Session:
        """Starts a session (see `CreateSession`)."""
        if len(request.initial_events) >= MAX_BATCH_EVENTS:
            raise Invalid("ARGUMENT_INVALID", f"at most {MAX_BATCH_EVENTS - 1} events", field="initial_events")
        asked = request.SerializeToString(deterministic=True)
        facts = [codec.fact_of(event, CLIENT) for event in request.initial_events]
        check_emitters(facts)
        request.config.tenant = caller.tenant or ""
        request.config.ClearField("parent_session_id")
        configs.check(request.config)
        await self.check_stores(request.config)
        return await self.carry(self._create(request, facts, hashlib.sha256(asked).hexdigest()))

    async def get(self, session_id: str, tenant: str | None) -> Session:
        """Returns what the log says of a session."""
        state = await self._writer.current(session_id, tenant)
        if not state.config_position:  # a damaged log has lost even its first event
            return codec.session(session_id, state, SessionConfig(tenant=state.tenant))
        return codec.session(session_id, state, await self._reader.config(session_id, state.config_position))

    async def emit(
        self, caller: Caller, session_id: str, events: Sequence[Event], expected_position: int | None, epoch: int
    ) -> Emitted:
        """Appends events (see `EmitEvent` and `EmitEvents`)."""
        if not events:
            raise Invalid("ARGUMENT_INVALID", "there is no event to append", field="events")
        if expected_position is not None and expected_position < 0:
            raise Invalid("ARGUMENT_INVALID", "expected_position is negative", field="expected_position")
        if len(events) > MAX_BATCH_EVENTS:
            raise Invalid("ARGUMENT_INVALID", f"a batch has at most {MAX_BATCH_EVENTS} events", field="events")
        for event in events:
            if event.HasField("harness_woke"):
                event.harness_woke.cause = self._claims.cause(session_id)
        facts = [codec.fact_of(event, caller.kind) for event in events]
        if caller.kind == VAULT_PROXY:
            check_emitters(facts)
            await self._audit.keep(session_id, events)  # first: the log may not take it any more
        epoch = epoch if caller.kind == HARNESS else 0
        work = self._emit(session_id, Draft(events, facts, epoch, expected_position, caller.tenant), caller.kind)
        if all(fact.kind in _WITHOUT_SEQUEL for fact in facts):
            return await work  # the append itself is carried through by the log, and a task is not to be had for free
        return await self.carry(work)

    async def update(
        self, session_id: str, config: SessionConfig, expected_position: int | None, tenant: str | None
    ) -> Session:
        """Changes a session's configuration (see `UpdateSession`)."""
        state = await self._writer.current(session_id, tenant)
        old = await self._reader.config(session_id, state.config_position)
        configs.keep_identity(config, old)
        configs.check(config)
        await self.check_stores(config)
        event = Event(config_changed=ConfigChanged(config=config))
        await self.carry(self._change(session_id, event, expected_position, tenant))
        return await self.get(session_id, tenant)

    async def end(self, session_id: str, reason: str, tenant: str | None) -> Session:
        """Ends a session for good (see `EndSession`)."""
        if len(reason) > MAX_REASON:
            raise Invalid("ARGUMENT_INVALID", f"reason has at most {MAX_REASON} characters", field="reason")
        await self.carry(self._families.end(session_id, reason, tenant))
        return await self.get(session_id, tenant)

    # --- carried through ---

    async def carry(self, work: Coroutine[Any, Any, T]) -> T:
        """Does a piece of work to its end, even when whoever waits for it goes away."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._carried)
        return await asyncio.shield(task)

    def _behind(self, work: Coroutine[Any, Any, None]) -> None:
        """Does a piece of work for which nobody waits."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._carried)

    def _carried(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # heard here, for a caller that has gone

    async def finish(self) -> None:
        """Waits for what was begun."""
        if self._running:
            await asyncio.wait(self._running)
        await self._index.finish()

    async def _create(self, request: CreateSessionRequest, facts: list[Fact], digest: str) -> Session:
        config = request.config
        now = self._now()
        claimed = await self._requests.claim(config.tenant, request.request_id, digest)
        session_id = claimed.session_id
        if not claimed.fresh:
            await self._check_living(session_id)
        started = Event(event_id="session_started", session_started=SessionStarted(config=config))
        draft = Draft([started, *request.initial_events], [codec.fact_of(started, SESSION), *facts])
        await self._index.put(session_id, config, now, request=claimed.key)
        await self.begin(session_id, draft)
        return await self.get(session_id, config.tenant)

    async def begin(self, session_id: str, draft: Draft) -> WriteState:
        """Appends a session's first events, and sees to it that it is known and worked on."""
        appended = await self._writer.append(session_id, draft)
        failpoints.hit("session.session_stored")
        self._index.note(session_id, appended.state)
        await self._claims.want(session_id, appended.state, appended)
        return appended.state

    async def _check_living(self, session_id: str) -> None:
        """Raises Gone for a session that was made by a request and deleted since: it gets no entry again."""
        try:
            await self._writer.current(session_id)
        except DeletedError:
            raise
        except Gone:
            return  # the request broke off before its first event

    async def check_stores(self, config: SessionConfig) -> None:
        """Raises Invalid unless the memory stores are there, and the tenant's."""
        for at, store in enumerate(config.memory_stores):
            try:
                await self._memories.check_tenant(store.memory_store_id, config.tenant)
            except Gone:
                field = f"memory_stores[{at}].memory_store_id"
                raise Invalid("CONFIG_INVALID", f"config.{field} is no memory store", field=field) from None

    async def _emit(self, session_id: str, draft: Draft, emitter: str) -> Emitted:
        if draft.facts[0].kind == "harness_woke":
            return await self._wake(session_id, draft)
        appended = await self.append(session_id, draft)
        if emitter != HARNESS:
            await self._claims.want(session_id, appended.state, appended)
        elif rests(appended.state, draft.facts[-1].kind):
            last = appended.first_position + len(draft.facts) - 1
            self._behind(self._families.rested(session_id, appended.state.parent, draft.facts[-1].kind, last))
        if appended.state.children and any(fact.kind == "interrupt_requested" for fact in draft.facts):
            await self._families.interrupt(session_id, appended.state, interrupt_id(session_id, appended.time))
        return Emitted(appended)

    async def append(self, session_id: str, draft: Draft) -> Appended:
        """Appends, and lets the index know."""
        appended = await self._writer.append(session_id, draft)
        failpoints.hit("session.event_stored")
        self._index.note(session_id, appended.state)
        return appended

    async def _wake(self, session_id: str, draft: Draft) -> Emitted:
        """Begins an epoch. Said again after a lost answer, its grant is another one for the same epoch.

        The grant is minted beside the append, for the epoch that it makes if it is accepted. If not, nobody gets it.
        """
        expected = 0 if draft.expected_position is None else draft.expected_position + 1
        minting = asyncio.create_task(self._grants.mint(session_id, expected), name="mint")
        minting.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, if the append fails
        try:
            appended = await self.append(session_id, draft)
            epoch, newest = appended.first_position, appended.state.epoch
            if epoch != newest:
                raise Conflict("EPOCH_STALE", f"the session's epoch is {newest} by now", epoch=newest)
            grant = await (minting if epoch == expected else self._grants.mint(session_id, epoch))
        finally:
            minting.cancel()
        await self._grants.revoke(session_id, below_epoch=epoch)
        return Emitted(appended, grant)

    async def _change(
        self, session_id: str, event: Event, expected_position: int | None, tenant: str | None
    ) -> WriteState:
        draft = Draft([event], [codec.fact_of(event, SESSION)], 0, expected_position, tenant)
        state = (await self._writer.append(session_id, draft)).state
        await self._index.put(session_id, event.config_changed.config, state.create_time, event.position)
        self._index.note(session_id, state)
        await self._claims.want(session_id, state)
        return state

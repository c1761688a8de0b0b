"""What a session is told: uses of credentials, changes of servers' tools, what doors refused. Behind the answer."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import grpc

from handmesh.session.v1 import event_pb2, session_pb2
from services.kit import channels, ids, tracing
from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.vault_proxy.core.catalog import Change

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

MOST_WAITING = 10_000  # events; past that the oldest is dropped, and the log says so
ID_CHARACTERS = 100  # of an execution's id, for an event's id of at most 128
EMIT_SECONDS = 5.0
RETRY_SECONDS = 0.5
FLUSH_SECONDS = 1.5  # with the grace for calls, less than what the launcher waits for

_log = Log("services.vault_proxy.audit")


class Bound(Protocol):
    """What is told of a credential that was used."""

    @property
    def credential_id(self) -> str: ...

    @property
    def vault_id(self) -> str: ...


@dataclass(frozen=True)
class Told:
    """An event that a session is told of. Its `event_id` makes telling it idempotent."""

    session_id: str
    event: event_pb2.Event


def _event_id(name: str) -> str:
    return f"credential-{name if len(name) <= ID_CHARACTERS else hashlib.sha256(name.encode()).hexdigest()}"


class Audit:
    """Tells events in the order in which they came."""

    def __init__(self, stub: SessionServiceAsyncStub) -> None:
        self._stub = stub
        self._waiting: deque[Told] = deque()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()

    def used(
        self, session_id: str, server: str, execution_id: str, credential: Bound, result: str, times: int = 1
    ) -> None:
        """Takes note of a use, at once. `execution_id` is the call's, or empty when there is none.

        `result` is `ok` or an ErrorReason by name, `times` how many uses this is. Without a session there is no log to
        tell: ours has it.
        """
        if not session_id:
            _log.info("a credential was used", credential_id=credential.credential_id, server=server, result=result)
            return
        use = event_pb2.CredentialUsed(
            credential_id=credential.credential_id,
            vault_id=credential.vault_id,
            server=server,
            execution_id=execution_id,
            result=result,
            times=times if times > 1 else 0,
        )
        event_id = _event_id(execution_id or ids.mint("tools"))
        self._take(session_id, event_pb2.Event(event_id=event_id, ignorable=True, credential_used=use))

    def changed(self, session_id: str, server: str, change: Change, since: str = "") -> None:
        """Takes note that a server offers other tools than before, at once.

        `since` is the digest of what the log says was offered: a process that finds the same says it not again.
        """
        change_of = event_pb2.ToolsChanged(
            server=server, added=change.added, removed=change.removed, changed=change.changed
        )
        event_id = ids.mint("tools")
        if since:
            what = f"{since} {server} {change}"
            event_id = f"tools-{hashlib.sha256(what.encode()).hexdigest()}"
        self._take(session_id, event_pb2.Event(event_id=event_id, ignorable=True, tools_changed=change_of))

    def refused(self, session_id: str, refusal: event_pb2.DoorRefused) -> None:
        """Takes note that a door refused something, at once. `Refusals` sees to it that these are few."""
        self._take(session_id, event_pb2.Event(event_id=ids.mint("door"), ignorable=True, door_refused=refusal))

    def _take(self, session_id: str, event: event_pb2.Event) -> None:
        event.traceparent = tracing.current()  # of the call that is told of; it is told behind that
        if len(self._waiting) >= MOST_WAITING:
            dropped = self._waiting.popleft()
            _log.error("an event was dropped", session_id=dropped.session_id, event_id=dropped.event.event_id)
        self._waiting.append(Told(session_id, event))
        self._none.clear()
        self._some.set()

    async def tell(self) -> None:
        """Tells what comes, for ever. What the session service refuses is dropped, and the log says so."""
        while True:
            await self._some.wait()
            while self._waiting:
                told = self._waiting[0]
                try:
                    await self._emit(told)
                except grpc.aio.AioRpcError as error:
                    problem = channels.raised(error)
                    if isinstance(problem, Unavailable):
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    _log.warning("an event was refused", event_id=told.event.event_id, reason=problem.reason)
                if self._waiting and self._waiting[0] is told:
                    self._waiting.popleft()
            self._some.clear()
            self._none.set()

    async def _emit(self, told: Told) -> None:
        request = session_pb2.EmitEventRequest(session_id=told.session_id, event=told.event)
        await self._stub.EmitEvent(request, timeout=EMIT_SECONDS)

    async def flush(self) -> None:
        """Waits until all is told, for a few seconds at most."""
        try:
            await asyncio.wait_for(self._none.wait(), FLUSH_SECONDS)
        except TimeoutError:
            _log.error("events were not told", count=len(self._waiting))

"""The owner records of hands, changed step by step, and the logs that are told of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.kit.errors import Conflict, Gone, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox import owners_core as core
from services.sandbox.backends import Backends
from services.sandbox.hand import Hand, Labels, SandboxInfo
from services.sandbox.owners_core import Goal, SessionSeen
from services.sandbox.owners_log import Logs, Said

CHANGES = 5  # attempts at a change of a record that others change too
_log = Log("services.sandbox.owners_records")


class OwnerRecords:
    """What transfers and shares have in common. Without a session service no session can be given a hand."""

    def __init__(self, backends: Backends, logs: Logs | None = None) -> None:
        """Changes nothing yet."""
        self.backends = backends
        self._logs = logs
        self.naming = asyncio.Lock()  # of two hands that want one name, one looks and takes it before the other looks

    @property
    def logs(self) -> Logs:
        """The session service. Raises Unavailable (`SESSION_UNAVAILABLE`) when there is none."""
        if self._logs is None:
            raise Unavailable("SESSION_UNAVAILABLE", "this sandbox service was not told where the session service is")
        return self._logs

    async def check_goal(self, labels: Labels, goal: Goal) -> str:
        """Returns whose a hand is. Raises what stands in its way, before anything has happened."""
        seen: SessionSeen | None = None
        tenant = await self.tenant_of(labels)
        if goal.session_id:
            seen = await self.logs.seen(goal.session_id)
            if seen.tenant != tenant:
                raise Gone("SESSION_NOT_FOUND", "there is no such session", session_id=goal.session_id)
            core.check_session(goal.session_id, seen)
        others = [info.labels for _, info in await self.backends.listed()]
        others = [other for other in others if other.sandbox_id != labels.sandbox_id]
        core.check_free(labels, goal, tenant, seen, others)
        return tenant

    async def check_kin(self, session_id: str, to_session_id: str) -> None:
        """Raises Denied (`HAND_OVER_DENIED`) unless a session's harness may give its hands to another one."""
        try:
            to = await self.logs.seen(to_session_id)
        except Gone:
            to = SessionSeen("")  # one that is not there is told like one that may not be
        core.check_kin(session_id, await self.logs.seen(session_id), to_session_id, to)

    async def tenant_of(self, labels: Labels) -> str:
        """Returns whose a hand is. A session that was deleted meanwhile cannot say: the next one is asked."""
        if labels.move is not None and labels.move.tenant:
            return labels.move.tenant
        to = labels.move.to_session_id if labels.move is not None else ""
        for session_id in filter(None, (labels.session_id, to)):
            try:
                return (await self.logs.seen(session_id)).tenant
            except Gone:
                continue
        return labels.tenant

    async def say(self, session_id: str, event_id: str, said: Said) -> None:
        """Appends to a log. One that takes nothing any more is not told. Raises Unavailable while none can be asked."""
        try:
            tenant = (await self.logs.seen(session_id)).tenant
            await self.logs.say(session_id, tenant, event_id, said)
        except Unavailable:
            raise
        except ServiceError as error:
            _log.warning("hand's event not taken", session_id=session_id, event_id=event_id, reason=error.reason)

    async def relabel(self, hand: Hand, before: Labels, after: Labels) -> SandboxInfo:
        """Changes a record as it was seen. Raises Conflict (`GENERATION_CONFLICT`)."""
        info = await hand.relabel(before.sandbox_id, before, after)
        self.backends.remember(hand, info)
        return info

    async def change(self, hand: Hand, sandbox_id: str, change: Callable[[Labels], Labels]) -> SandboxInfo:
        """Changes a record as it is by now."""
        for attempt in range(1, CHANGES + 1):
            info = await hand.find(sandbox_id)
            if info is None:
                self.backends.forget(sandbox_id)
                raise Gone("SANDBOX_GONE", "there is no such sandbox (any more)", sandbox_id=sandbox_id)
            try:
                return await self.relabel(hand, info.labels, change(info.labels))
            except Conflict:
                if attempt == CHANGES:
                    raise
        raise AssertionError("it has returned or raised")

"""Gives hands from one owner to another, a step at a time; each step is in the hand's own record before the next.

So whoever comes after a crash goes on where it was: `resume`. Nothing is in a log before it is sure that it will be
done, and what a log says is named by sandbox and generation: said again it is there once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from dataclasses import replace

from services.kit import failpoints
from services.kit.errors import Conflict, Denied, Gone, Invalid, Refused, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox import owners_core as core
from services.sandbox.doorman import Doorman
from services.sandbox.hand import Hand, Labels, SandboxInfo
from services.sandbox.owners_core import Goal
from services.sandbox.owners_log import Attached, Detached, Said, Transferred
from services.sandbox.owners_records import OwnerRecords
from services.sandbox.owners_shares import Shares
from services.sandbox.resources import Resources

ROUND_SECONDS = 10.0
CANCEL_SECONDS = 15.0  # that cancelled executions may take to end
_log = Log("services.sandbox.owners")


class Owners:
    """Whose the hands of all backends are."""

    def __init__(self, records: OwnerRecords, resources: Resources, doorman: Doorman) -> None:
        """Begins nothing."""
        self._records = records
        self._backends = records.backends
        self._resources = resources
        self._doorman = doorman
        self.shares = Shares(records)
        self._moving: dict[str, asyncio.Task[None]] = {}  # by sandbox; whoever asks meanwhile waits with it

    async def transfer(
        self, sandbox_id: str, goal: Goal, expected: int, seconds: float, by_session: str = ""
    ) -> SandboxInfo:
        """Gives a hand to a session or to nobody (see `SandboxService.Transfer`). `seconds` are for what runs.

        `by_session` is whose harness asks; empty for others. A goal without a name means the one that the hand has.
        A caller that goes away ends nothing that was begun.
        """
        _, info = await self._backends.find(sandbox_id)
        goal = goal if goal.hand else replace(goal, hand=info.labels.standing or info.labels.hand)
        core.check_name(goal.hand)
        if by_session and goal.session_id:
            await self._records.check_kin(by_session, goal.session_id)
        if info.labels.move is not None and not core.is_leaving(info.labels):
            await self._carried(sandbox_id)  # it has just come: only its log is to be told
        async with self._records.naming:
            hand, info = await self._backends.find(sandbox_id)
            if not core.is_there(info.labels, goal, expected):
                if goal.session_id == info.labels.session_id:
                    where = "in that session" if goal.session_id else "outside of sessions"
                    raise Invalid("ARGUMENT_INVALID", f"the hand is {where} already", field="to_session_id")
                tenant = await self._records.check_goal(info.labels, goal)
                leaving = core.leaving(info.labels, goal, time.time() + seconds, tenant)
                await self._records.relabel(hand, info.labels, leaving)
                failpoints.hit("sandbox.hand_leaving")
        await self._carried(sandbox_id)
        return (await self._backends.find(sandbox_id))[1]

    async def transferred(self, sandbox_id: str, goal: Goal, past: Collection[int]) -> SandboxInfo:
        """Returns a hand that is where its last owner, of one of these generations, has given it.

        Raises Refused (`HAND_TRANSFERRED`) when it is not.
        """
        _, info = await self._backends.find(sandbox_id)
        labels = info.labels
        name = goal.hand or labels.hand
        if labels.generation - 1 not in past or (labels.session_id, labels.hand) != (goal.session_id, name):
            raise core.transferred(labels)
        await self._carried(sandbox_id)
        return info

    async def attach(
        self, session_id: str, hand_name: str, reference: str, read_only: bool, by_harness: bool
    ) -> SandboxInfo:
        """Gives a standing hand, by its name or id, to a session that has asked for it. Idempotent.

        A harness gets what the session's configuration names. Raises as `transfer`, Gone (`HAND_UNKNOWN`), Refused
        (`HAND_TAKEN`), Denied (`HAND_READ_ONLY`), Invalid.
        """
        seen = await self._records.logs.seen(session_id)
        if by_harness and seen.hands.get(hand_name) != reference:
            what = f"the session's configuration names no standing hand {hand_name!r}"
            raise Invalid("ARGUMENT_INVALID", what, field="standing_hand")
        if by_harness and hand_name in seen.reading and not read_only:
            raise Denied("HAND_READ_ONLY", "the session's configuration only lets it read this hand", name=hand_name)
        labels = await self.standing(reference, seen.tenant)
        if read_only:
            return await self.shares.share(labels.sandbox_id, session_id, hand_name)
        move = labels.move
        coming = move is not None and move.to_session_id == session_id and move.to_hand == hand_name
        if labels.session_id not in ("", session_id) and not coming:
            what = f"the hand {reference} is session {labels.session_id}'s now"
            raise Refused("HAND_TAKEN", what, session_id=labels.session_id)
        try:
            return await self.transfer(labels.sandbox_id, Goal(session_id, hand_name), 0, core.SETTLE_SECONDS)
        except Conflict:  # somebody else was faster
            raise Refused("HAND_TAKEN", f"the hand {reference} is on its way to another owner", session_id="") from None

    async def standing(self, reference: str, tenant: str) -> Labels:
        """Finds a tenant's standing hand by its name or id. Raises Gone (`HAND_UNKNOWN`)."""
        for _, info in await self._backends.listed():
            labels = info.labels
            if labels.standing and labels.tenant == tenant and reference in (labels.standing, labels.sandbox_id):
                return labels
        raise Gone("HAND_UNKNOWN", f"there is no standing hand {reference[:100]!r}", hand=reference[:100])

    async def _carried(self, sandbox_id: str) -> None:
        """Brings a hand's way to its end. Whoever goes away does not end it."""
        task = self._moving.get(sandbox_id)
        if task is None or task.done():
            task = asyncio.create_task(self._carry(sandbox_id), name=f"move {sandbox_id}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, if nobody waits
            self._moving[sandbox_id] = task
        try:
            await asyncio.shield(task)
        finally:
            if task.done() and self._moving.get(sandbox_id) is task:
                del self._moving[sandbox_id]

    async def _carry(self, sandbox_id: str) -> None:
        hand, info = await self._backends.find(sandbox_id)
        if info.labels.move is not None and info.labels.move.stage == "LEAVING":
            info = await self._settled(hand, info)
        if info.labels.move is not None and info.labels.move.stage == "DECIDED":
            info = await self._left(hand, info)
        if info.labels.move is not None:
            await self._arrived(hand, info)

    async def _settled(self, hand: Hand, info: SandboxInfo) -> SandboxInfo:
        """Waits until nothing runs for the old owner, and decides whether the hand goes. Raises what it stays for."""
        labels, move = info.labels, info.labels.move
        assert move is not None
        await hand.fence(labels.sandbox_id, labels.generation + 1)
        failpoints.hit("sandbox.hand_fenced")
        await self._resources.quiet(labels.sandbox_id)
        await self._settle(hand, labels, move.until)
        await self._resources.part(hand, labels.sandbox_id)
        await self._doorman.forget(labels.sandbox_id)
        try:
            if move.to_session_id:
                core.check_session(move.to_session_id, await self._records.logs.seen(move.to_session_id))
        except (Gone, Refused):
            await self._records.change(hand, labels.sandbox_id, core.stayed)
            _log.info("hand stays", sandbox_id=labels.sandbox_id, session_id=labels.session_id)
            raise
        info = await self._records.change(hand, labels.sandbox_id, core.decided)
        failpoints.hit("sandbox.hand_decided")
        return info

    async def _settle(self, hand: Hand, labels: Labels, until: float) -> None:
        """Lets what runs end by itself for a while, then cancels it."""
        running = await self._running(hand, labels)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.time())):
                await asyncio.gather(*(_ended(hand, labels.sandbox_id, it) for it in running))
        running = await self._running(hand, labels)
        for it in running:
            await hand.cancel(labels.sandbox_id, it)
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await asyncio.gather(*(_ended(hand, labels.sandbox_id, it) for it in running))
        except TimeoutError:
            raise Unavailable("BACKEND_UNAVAILABLE", "what runs in the hand does not end") from None

    async def _running(self, hand: Hand, labels: Labels) -> list[str]:
        known = await hand.executions(labels.sandbox_id)
        return [it.execution_id for it in known if it.outcome is None]

    async def _left(self, hand: Hand, info: SandboxInfo) -> SandboxInfo:
        """Lets the old owner's log say that the hand goes, and changes the owner."""
        labels, move = info.labels, info.labels.move
        assert move is not None
        tenant = await self._records.tenant_of(labels)
        if labels.session_id:
            said: Said = Detached(labels.hand, labels.sandbox_id, "it stands outside of sessions now")
            if move.to_session_id:
                said = Transferred(labels.hand, labels.sandbox_id, move.to_session_id, labels.generation)
            await self._records.say(labels.session_id, f"transfer-{labels.sandbox_id}-{labels.generation}", said)
        failpoints.hit("sandbox.hand_left")
        info = await self._records.change(hand, labels.sandbox_id, lambda now: core.owned(now, tenant))
        failpoints.hit("sandbox.hand_owned")
        return info

    async def _arrived(self, hand: Hand, info: SandboxInfo) -> None:
        """Lets the readers' logs and the new owner's say what has become of the hand."""
        labels, move = info.labels, info.labels.move
        assert move is not None
        await self.shares.tell(hand, info)
        if labels.session_id:
            said = Attached(
                labels.hand,
                labels.sandbox_id,
                labels.generation,
                move.from_session_id,
                description=labels.description,
            )
            await self._records.say(labels.session_id, f"attach-{labels.sandbox_id}-{labels.generation}", said)
        failpoints.hit("sandbox.hand_arrived")
        await self._records.change(hand, labels.sandbox_id, core.arrived)
        _log.info(
            "hand transferred",
            sandbox_id=labels.sandbox_id,
            session_id=labels.session_id,
            from_session_id=move.from_session_id,
            generation=labels.generation,
        )

    async def run(self) -> None:
        """Goes on with what services before this one have begun, and with what could not be done. For ever."""
        while True:
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ROUND_SECONDS):  # what takes longer goes on by itself
                        await self.resume()
            except Exception:  # the top of a task: there will be another round
                _log.error("hand-overs not resumed", exc_info=True)
            await asyncio.sleep(ROUND_SECONDS)

    async def resume(self) -> None:
        """Goes on with what was begun and is not done, by this service or one before it."""
        await asyncio.gather(*(self._resumed(hand, info) for hand, info in await self._backends.listed()))

    async def _resumed(self, hand: Hand, info: SandboxInfo) -> None:
        labels = info.labels
        try:
            if labels.move is not None:
                await self._carried(labels.sandbox_id)
            elif any(reader.leaving or not reader.told for reader in labels.readers):
                await self.shares.tell(hand, info)
        except ServiceError as error:
            _log.warning("hand-over not done", sandbox_id=labels.sandbox_id, reason=error.reason)

    async def close(self) -> None:
        """Lets go of what is under way: the service that comes after goes on with it."""
        for task in self._moving.values():
            task.cancel()
        await asyncio.gather(*self._moving.values(), return_exceptions=True)


async def _ended(hand: Hand, sandbox_id: str, execution_id: str) -> None:
    with contextlib.suppress(Gone):  # its result is not kept: it has ended
        async for _ in hand.follow(sandbox_id, execution_id):
            pass

"""Lets sessions read hands that are others', and takes that back (see `owners`)."""

from __future__ import annotations

from dataclasses import replace

from services.kit import failpoints
from services.kit.errors import Conflict, Exists, Invalid
from services.sandbox import owners_core as core
from services.sandbox.hand import Hand, Labels, Reader, SandboxInfo
from services.sandbox.owners_core import Goal
from services.sandbox.owners_log import Attached, Detached
from services.sandbox.owners_records import OwnerRecords


class Shares:
    """Who reads the hands of all backends."""

    def __init__(self, records: OwnerRecords) -> None:
        """Shares nothing yet."""
        self._records = records

    async def share(self, sandbox_id: str, session_id: str, hand_name: str, by_session: str = "") -> SandboxInfo:
        """Lets a session read a hand (see `SandboxService.ShareHand`). `by_session` as in `Owners.transfer`."""
        if by_session:
            await self._records.check_kin(by_session, session_id)
        async with self._records.naming:
            hand, info = await self._records.backends.find(sandbox_id)
            labels = info.labels
            goal = Goal(session_id, hand_name or labels.standing or labels.hand)
            reader = _checked(labels, goal)
            if reader is None:
                await self._records.check_goal(labels, goal)
                info = await self._records.relabel(hand, labels, core.shared(labels, goal.session_id, goal.hand))
                failpoints.hit("sandbox.hand_shared")
        await self.tell(hand, info)
        return (await self._records.backends.find(sandbox_id))[1]

    async def unshare(self, sandbox_id: str, session_id: str) -> SandboxInfo:
        """Takes back what `share` gave. Idempotent."""
        hand, info = await self._records.backends.find(sandbox_id)
        reader = core.reader_of(info.labels, session_id)
        if reader is not None:
            gone = replace(reader, leaving=True)
            info = await self._records.change(hand, sandbox_id, lambda now: core.with_reader(now, gone))
            await self.tell(hand, info)
        return (await self._records.backends.find(sandbox_id))[1]

    async def tell(self, hand: Hand, info: SandboxInfo) -> None:
        """Lets logs say what they do not say yet of who reads a hand."""
        labels = info.labels
        for reader in labels.readers:
            if reader.leaving:
                await self._told_end(hand, labels, reader)
            elif not reader.told:
                await self._told_begin(hand, labels, reader)

    async def _told_begin(self, hand: Hand, labels: Labels, reader: Reader) -> None:
        said = Attached(
            reader.hand,
            labels.sandbox_id,
            labels.generation,
            labels.session_id,
            read_only=True,
            description=labels.description,
        )
        await self._records.say(reader.session_id, f"share-{labels.sandbox_id}-{reader.number}", said)
        told = replace(reader, told=True)
        await self._records.change(hand, labels.sandbox_id, lambda now: _with_told(now, told))

    async def _told_end(self, hand: Hand, labels: Labels, reader: Reader) -> None:
        said = Detached(reader.hand, labels.sandbox_id, "it is not shared with this session any more")
        await self._records.say(reader.session_id, f"unshare-{labels.sandbox_id}-{reader.number}", said)
        await self._records.change(hand, labels.sandbox_id, lambda now: core.without_reader(now, reader.number))


def _checked(labels: Labels, goal: Goal) -> Reader | None:
    """Returns the reader that a session is already. Raises what it cannot be one for."""
    core.check_name(goal.hand)
    reader = core.reader_of(labels, goal.session_id)
    if labels.move is not None or (reader is not None and reader.leaving):
        raise Conflict("GENERATION_CONFLICT", "the hand is on its way", generation=labels.generation)
    if goal.session_id == labels.session_id:
        raise Invalid("ARGUMENT_INVALID", "the session owns the hand", field="session_id")
    if reader is not None and reader.hand != goal.hand:
        raise Exists("HAND_NAME_TAKEN", f"the session has the hand as {reader.hand}", hand=reader.hand)
    return reader


def _with_told(labels: Labels, told: Reader) -> Labels:
    """Returns labels in which a reader's log says so; one that is being taken back meanwhile stays so."""
    now = core.reader_of(labels, told.session_id)
    return labels if now is None or now.leaving else core.with_reader(labels, told)

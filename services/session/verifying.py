"""Reads a whole log and asks `verify` what is wrong with it: the body of `VerifySession`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from services.session import codec
from services.session.integrity import Marks
from services.session.log import Log, StoredBatch
from services.session.verify import Link, Seen, Violation, check, check_chain
from services.session.writer import Writer

READ_BYTES = 4 * 1024 * 1024
HOLE_STEP = 256  # positions
MAX_VIOLATIONS = 1_000  # in one report


@dataclass(frozen=True)
class Report:
    """What was found. `high_water_position` is how far a loss would have been noticed."""

    violations: list[Violation]
    last_position: int
    high_water_position: int


class Verifier:
    """Verifies sessions. Reads the store itself, and trusts nothing that is remembered."""

    def __init__(self, log: Log, marks: Marks, writer: Writer) -> None:
        self._log = log
        self._marks = marks
        self._writer = writer

    async def verify(self, session_id: str, tenant: str | None) -> Report:
        """Checks one session. Raises Gone (`SESSION_NOT_FOUND`) when there is none, or it is another tenant's."""
        state = await self._writer.current(session_id, tenant)
        mark = await self._marks.read(session_id)  # before the log: others append meanwhile
        links: list[Link] = []
        events: list[Seen] = []
        found: list[Violation] = []
        async for batch in self._batches(session_id):
            links.append(Link(batch.first_position, batch.count, batch.prev_digest, batch.digest))
            stored = codec.unsealed(batch.data)
            if len(stored) != batch.count:
                text = f"the batch holds {len(stored)} events that can be read, and should {batch.count}"
                found.append(Violation("I2", batch.first_position, text))
            for event in stored:
                fact, time = codec.stored_fact(event), codec.nanoseconds(event.emit_time)
                events.append(Seen(event.position, fact, event.epoch, time))
        found += check_chain(links, mark.position, mark.digest)
        found += check(events)
        if state.damaged and not found:
            found.append(Violation("I2", state.head + 1, "the log was found damaged when it was last read"))
        last = links[-1].first_position + links[-1].count - 1 if links else 0
        return Report(found[:MAX_VIOLATIONS], last, mark.position)

    async def _batches(self, session_id: str) -> AsyncIterator[StoredBatch]:
        """Yields the batches that are there, over holes too, up to the last."""
        last = await self._log.head(session_id)
        end = last.last_position + 1 if last else 1
        start = 1
        while start < end:
            batches = await self._log.read(session_id, start, end, READ_BYTES)
            while not batches and start < end:  # a hole: what lies behind it is looked for
                start += HOLE_STEP
                batches = await self._log.read(session_id, start, min(end, start + HOLE_STEP), READ_BYTES)
            if not batches:
                return
            for batch in batches:
                yield batch
            start = batches[-1].last_position + 1

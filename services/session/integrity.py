"""High-water marks: how far a log had come, kept in another store, because nats-server cuts a damaged log silently.

A mark is written behind: at most `LAG_EVENTS` events or `LAG_SECONDS` after the append, and before the end of a turn
is acknowledged. A log that is shorter than its mark, or has another batch where the mark points, is damaged. What is
younger than its mark is not covered by it.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass

from services.kit.errors import Unavailable
from services.session.log import Registry

BUCKET = "marks"
LAG_EVENTS = 64
LAG_SECONDS = 1.0
AT_ONCE = 32  # marks that are written at once
MAX_WRITTEN = 4_096  # marks of which the revision is remembered
MAX_TRIES = 16  # swaps of one mark that lose against another replica

SETTLING = frozenset({"turn_ended", "session_ended"})  # kinds that are acknowledged with their mark


@dataclass(frozen=True)
class Mark:
    """That a stored batch ended at this position with this digest. Position 0 says nothing."""

    position: int = 0
    digest: str = ""
    tenant: str = ""

    def pack(self) -> bytes:
        """Returns the registry's value."""
        return json.dumps({"position": self.position, "digest": self.digest, "tenant": self.tenant}).encode()

    @classmethod
    def unpack(cls, value: bytes) -> Mark:
        """Reads the registry's value."""
        kept = json.loads(value)
        return cls(int(kept["position"]), str(kept["digest"]), str(kept["tenant"]))


class Marks:
    """The marks of all sessions. They only ever rise, whichever replica writes them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._pending: dict[str, tuple[Mark, int]] = {}  # what is to be written, and the first position without a mark
        self._written: OrderedDict[str, tuple[int, int]] = OrderedDict()  # revision and position of the newest
        self._due = asyncio.Event()

    async def read(self, session_id: str) -> Mark:
        """Returns a session's mark; the empty one when there is none."""
        entry = await self._registry.get(BUCKET, session_id)
        return Mark() if entry is None else Mark.unpack(entry.value)

    def note(self, session_id: str, mark: Mark) -> None:
        """Takes a batch that is stored; its mark is written soon."""
        _, since = self._pending.get(session_id, (mark, mark.position))
        self._pending[session_id] = mark, since
        if mark.position - since >= LAG_EVENTS - 1:
            self._due.set()

    async def settle(self, session_id: str) -> None:
        """Writes what is pending of a session. On return its mark is durable."""
        if session_id in self._pending:
            await self._write(session_id, self._pending[session_id][0])

    async def run(self) -> None:
        """Writes marks behind, for ever."""
        while True:
            try:
                async with asyncio.timeout(LAG_SECONDS):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            await self.flush()

    async def flush(self) -> None:
        """Writes all that is pending, as far as the registry answers. What is left stays pending."""
        pending = [(session_id, mark) for session_id, (mark, _) in self._pending.items()]
        for start in range(0, len(pending), AT_ONCE):
            part = pending[start : start + AT_ONCE]
            if not all(await asyncio.gather(*(self._try(*each) for each in part))):
                return

    def _remember(self, session_id: str, revision: int, position: int) -> None:
        self._written[session_id] = revision, position
        if len(self._written) > MAX_WRITTEN:
            self._written.popitem(last=False)

    async def _there(self, session_id: str) -> tuple[int, int]:
        """Returns the revision and the position of the mark in the store; zeros when there is none."""
        entry = await self._registry.get(BUCKET, session_id)
        return (0, 0) if entry is None else (entry.revision, Mark.unpack(entry.value).position)

    async def _try(self, session_id: str, mark: Mark) -> bool:
        try:
            await self._write(session_id, mark)
        except Unavailable:
            return False
        return True

    async def _write(self, session_id: str, mark: Mark) -> None:
        """Raises a mark, unless it is higher already: another replica may know of more."""
        there = self._written.pop(session_id, None)  # what another replica writes meanwhile makes the swap fail
        for _ in range(MAX_TRIES):
            revision, position = there or await self._there(session_id)
            if position >= mark.position:
                self._remember(session_id, revision, position)
                break
            raised = await self._registry.swap(BUCKET, session_id, mark.pack(), revision)
            if raised:
                self._remember(session_id, raised, mark.position)
                break
            there = None
        else:
            raise Unavailable("LOG_UNAVAILABLE", "too many others write the session's mark", retry_after=0.1)
        newest, _ = self._pending.get(session_id, (Mark(), 0))
        if newest.position <= mark.position:
            self._pending.pop(session_id, None)
        else:
            self._pending[session_id] = newest, mark.position + 1


def fits(mark: Mark, head: int, digest: str) -> bool:
    """Says whether a log that was read so far may be the marked one: it has not passed the mark, or meets it there.

    Asked after each batch; a log that jumps over its mark does not have the marked batch.
    """
    return head < mark.position or (head == mark.position and digest == mark.digest)

"""A harness's open `ClaimWork`: what it has claimed, whether it has room, and how fast it may be offered more."""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.kit import ids
from services.kit.errors import Invalid
from services.session.bounded import Bounded
from services.session.configs import HARNESS_TYPE
from services.session.core import WriteState, may_be_timed, needs_harness
from services.session.log import WorkItem
from services.session.writer import Appended

MAX_CAPACITY = 1_000
LIFE_SECONDS = 5.0  # between two signs of life
BURST = 32  # offers that come at once
NEWEST_BYTES = 16 * 1024  # of a session's events that are offered with it
MAX_NEWEST = 500  # sessions of which they are remembered
OFFERS_PER_SECOND = 100.0  # after that: a thousand sessions that wake together do not all ask the model together


class Offered(enum.IntEnum):
    """What offering a session found. The numbers are those of `OfferOutcome`; a test compares them."""

    OFFERED = 1
    CLAIMED = 2
    NOT_NEEDED = 3


@dataclass(eq=False)
class Claim:
    """A session that a harness has. Without an item it was claimed in a process that is no more."""

    session_id: str
    harness: str
    head: int  # the log's last position when it was offered
    item: WorkItem | None
    stream: Stream
    events: bytes = field(default=b"", repr=False)  # the log's last ones, as they are stored
    due: int | None = (
        None  # by when its harness has to have taken the session up; none when it was at work on it before
    )
    claim_id: str = field(default_factory=lambda: ids.mint("claim"))


def check(capacity: int, harnesses: Sequence[str]) -> None:
    """Raises Invalid for what no stream can be asked for."""
    if not 0 <= capacity <= MAX_CAPACITY:
        raise Invalid("ARGUMENT_INVALID", f"capacity must be 0 to {MAX_CAPACITY}, not {capacity}", field="capacity")
    for harness in harnesses:
        if not HARNESS_TYPE.fullmatch(harness):
            raise Invalid("ARGUMENT_INVALID", f"a type matches ^{HARNESS_TYPE.pattern}$", field="harness_types")


class Newest:
    """Sessions' last events, as they are stored, which are offered with the session: the harness need not read them.

    Nothing depends on it: what is big, or of which there is much, is not remembered.
    """

    def __init__(self) -> None:
        self._found: Bounded[Appended] = Bounded(MAX_NEWEST)

    def note(self, session_id: str, appended: Appended | None) -> None:
        """Remembers what was appended last, if anything was."""
        if appended is not None and len(appended.data) <= NEWEST_BYTES:
            self._found[session_id] = appended

    def take(self, session_id: str, head: int) -> bytes:
        """Returns the last events of a log that ends with `head`, as far as they are remembered, and forgets them."""
        found = self._found.pop(session_id, None)
        return found.data if found is not None and found.last_position == head else b""


def wants(state: WriteState, item: WorkItem) -> bool:
    """Says whether a session is to be offered.

    A harness that did not leave by itself may have owed it a time, so another one is asked for it.
    """
    return needs_harness(state) or ((item.timed or item.again) and may_be_timed(state))


class Stream:
    """One stream of offers, for the harness `instance`. `harnesses` are the types that it takes new sessions of."""

    def __init__(self, capacity: int, instance: str, harnesses: Sequence[str] = ()) -> None:
        self.instance = instance
        self.harnesses = frozenset(harnesses)
        self.claims: set[Claim] = set()
        self.idled: set[str] = set()  # claims that were taken from it, for it did nothing, until it gives them back
        self.closed = False
        self._capacity = capacity
        self._offers: asyncio.Queue[Claim | Exception] = asyncio.Queue()
        self._room = asyncio.Event()
        self._burst = float(BURST)
        self._offered_at = 0.0

    @property
    def full(self) -> bool:
        """Whether nothing more may be offered."""
        return not self.room

    @property
    def room(self) -> int:
        """How many more may be offered."""
        return 0 if self.closed or self.idled else max(0, self._capacity - len(self.claims))

    async def has_room(self) -> None:
        """Waits until it is not full."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def pace(self) -> None:
        """Counts an offer, and waits when there were too many in a short time."""
        now = asyncio.get_running_loop().time()
        self._burst = min(BURST, self._burst + (now - self._offered_at) * OFFERS_PER_SECOND) - 1
        self._offered_at = now
        if self._burst < 0:
            await asyncio.sleep(random.uniform(0.5, 1.5) / OFFERS_PER_SECOND)

    def take(self, claim: Claim) -> None:
        """Offers a claim."""
        self.claims.add(claim)
        self._offers.put_nowait(claim)

    def drop(self, claim: Claim) -> None:
        """Makes room: a claim has ended."""
        self.claims.discard(claim)
        self._room.set()

    def idle(self, claim: Claim) -> None:
        """Notes that a claim was taken away. Nothing new is offered until the harness shows life, by giving it back."""
        self.idled.add(claim.claim_id)

    def forgive(self, claim_id: str) -> None:
        """The harness has given back what was taken away."""
        self.idled.discard(claim_id)
        self._room.set()

    def end(self, problem: Exception) -> None:
        """Ends the stream with an error."""
        self._offers.put_nowait(problem)

    async def next_offer(self) -> Claim | None:
        """Waits for a claim; None is a sign of life. Raises what ended the stream."""
        while True:
            try:
                async with asyncio.timeout(LIFE_SECONDS):
                    offer = await self._offers.get()
            except TimeoutError:
                return None
            if isinstance(offer, Exception):
                raise offer
            if offer in self.claims or offer.claim_id in self.idled:  # else it was dropped before it was offered
                return offer

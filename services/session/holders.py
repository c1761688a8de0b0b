"""Which replica's harness has a session: asked on the wire, for a claim is kept in one process only.

    who has it?     whoever's harness is at work on the session says so, and takes the queue's item, if one was found
    it is mine      a harness has come to another replica: whoever has its claim lets go of it; whoever has another
                    harness's says so
    it is free      whoever takes the item need not ask
    it is done      a harness gave a claim back to another replica: whoever has that claim ends it

Nobody waits longer than `ANSWER_SECONDS`: a replica that is stopped or cut off has nothing. A field that replicas of
version 0.1 do not know breaks their line to NATS: what everybody hears has none, and `done` goes to those who know it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, fields

from services.kit import ids
from services.session.bounded import Bounded
from services.session.log import Stop, Wire

TOPIC, EVERYBODY = "holders", "all"
LATER = "done"  # key that replicas of later versions than 0.1 listen to, too
ANSWER_SECONDS = 0.1


@dataclass(frozen=True)
class Word:
    """What a replica says. `handle` names the queue's item; `instance` the harness whose claim it is."""

    kind: str  # `who`, `mine`, `free`, `done` or `answer`
    session_id: str
    replica: str = ""  # who says it
    handle: str = ""
    instance: str = ""
    claim_id: str = ""
    wake_time: int | None = None
    refused: bool = False

    def to_bytes(self) -> bytes:
        """Writes what is not as it is by itself."""
        said = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        return json.dumps(said, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Word:
        """Reads what a replica has said, which may be a newer one and say more."""
        said = json.loads(data)
        return cls(**{each.name: said[each.name] for each in fields(cls) if each.name in said})


class Holders:
    """This replica's ear and mouth. `answer` is asked what others ask: which harness is at work here, or None."""

    def __init__(self, wire: Wire, answer: Callable[[Word], str | None]) -> None:
        self._wire = wire
        self._answer = answer
        self._me = ids.mint("replica")
        self._waiting: dict[tuple[str, str], asyncio.Future[str]] = {}  # by session, and claim if it is about one
        self._free: Bounded[None] = Bounded()
        self._telling: set[asyncio.Task[None]] = set()

    async def listen(self, gap: Callable[[], None]) -> Stop:
        """Hears and answers until stopped. `gap` is called when something may have been missed."""
        stops = [
            await self._wire.listen(TOPIC, EVERYBODY, self._hear, gap),
            await self._wire.listen(TOPIC, LATER, self._hear),
            await self._wire.listen(TOPIC, self._me, self._hear),
        ]

        async def stop() -> None:
            for each in stops:
                await each()

        return stop

    async def has(self, session_id: str, handle: str = "") -> bool:
        """Asks whether a harness at another replica is at work on a session. That replica then has the item."""
        return await self._ask(Word("who", session_id, self._me, handle)) is not None

    async def claim(self, session_id: str, instance: str) -> str | None:
        """Says that a harness is here now. Returns the harness whose claim another replica had: this one, which then is
        no more, or one that has the session meanwhile."""
        return await self._ask(Word("mine", session_id, self._me, instance=instance))

    async def done(self, session_id: str, claim_id: str, wake_time: int | None, refused: bool) -> bool:
        """Says that a harness has given a claim back. Tells whether a replica had it, which then ends it."""
        word = Word("done", session_id, self._me, claim_id=claim_id, wake_time=wake_time, refused=refused)
        return await self._ask(word, LATER) is not None

    async def free(self, session_id: str) -> None:
        """Says that nobody has the session any more."""
        await self._say(EVERYBODY, Word("free", session_id, self._me))

    def is_free(self, session_id: str) -> bool:
        """Tells whether somebody has said so, once."""
        return self._free.pop(session_id, self) is None

    async def _ask(self, word: Word, key: str = EVERYBODY) -> str | None:
        about = word.session_id, word.claim_id
        answer = self._waiting.get(about)
        if answer is None:
            answer = self._waiting[about] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(lambda _: self._waiting.pop(about, None))
        await self._say(key, word)
        await asyncio.wait({answer}, timeout=ANSWER_SECONDS)
        if not answer.done():
            answer.cancel()
        return None if answer.cancelled() else answer.result()

    async def _say(self, key: str, word: Word) -> None:
        await self._wire.send(TOPIC, key, word.to_bytes())

    def _hear(self, data: bytes) -> None:
        word = Word.from_bytes(data)
        waiting = self._waiting.get((word.session_id, word.claim_id))
        if word.kind == "free":
            self._free[word.session_id] = None
        elif word.kind == "answer":
            if waiting is not None and not waiting.done():
                waiting.set_result(word.instance)
        elif word.replica != self._me and (instance := self._answer(word)) is not None:
            answer = Word("answer", word.session_id, self._me, instance=instance, claim_id=word.claim_id)
            task = asyncio.create_task(self._say(word.replica, answer))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

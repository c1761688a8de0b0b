"""Which harness types somebody serves: asked on the wire, for an open `ClaimWork` is known to one replica only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.kit import ids
from services.session.log import Stop, Wire

TOPIC, EVERYBODY = "served", "all"
ANSWER_SECONDS = 0.15  # a replica that is stopped or cut off serves nobody


@dataclass(frozen=True)
class Room:
    """How many harnesses serve a type, and how many more sessions they take at this moment."""

    harnesses: int = 0
    sessions: int = 0

    def __add__(self, other: Room) -> Room:
        return Room(self.harnesses + other.harnesses, self.sessions + other.sessions)


class Served:
    """This replica's ear and mouth. `mine` says what the harnesses serve that have come here."""

    def __init__(self, wire: Wire, mine: Callable[[], Mapping[str, Room]]) -> None:
        self._wire = wire
        self._mine = mine
        self._me = ids.mint("replica")
        self._asked: dict[str, dict[str, Room]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def listen(self) -> Stop:
        """Hears and answers until stopped."""
        stops = [
            await self._wire.listen(TOPIC, EVERYBODY, self._hear_question),
            await self._wire.listen(TOPIC, self._me, self._hear_answer),
        ]

        async def stop() -> None:
            for each in stops:
                await each()

        return stop

    async def everywhere(self) -> dict[str, Room]:
        """Asks all replicas, this one included, and returns what comes within `ANSWER_SECONDS`."""
        question = ids.mint("ask")
        found = self._asked[question] = dict(self._mine())
        try:
            await self._say(EVERYBODY, {"question": question, "replica": self._me})
            await asyncio.sleep(ANSWER_SECONDS)
        finally:
            del self._asked[question]
        return found

    async def _say(self, key: str, word: Mapping[str, object]) -> None:
        await self._wire.send(TOPIC, key, json.dumps(word, separators=(",", ":")).encode())

    def _hear_question(self, data: bytes) -> None:
        word = json.loads(data)
        if word["replica"] == self._me:
            return
        served = {name: [room.harnesses, room.sessions] for name, room in self._mine().items()}
        task = asyncio.create_task(self._say(word["replica"], {"question": word["question"], "served": served}))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _hear_answer(self, data: bytes) -> None:
        word = json.loads(data)
        found = self._asked.get(word["question"])
        for name, room in word["served"].items() if found is not None else ():
            assert found is not None
            found[name] = found.get(name, Room()) + Room(*room)

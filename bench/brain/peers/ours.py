"""This mesh as one of the systems: with a second harness running, or with its only one started again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.brain.watch import Watch
from bench.brain.world import Brain, World


class Handmesh:
    """A mesh with so many harnesses. Each input is a session's first message."""

    def __init__(self, world: World, harnesses: int) -> None:
        self.name = f"handmesh, {harnesses} harness{'es' if harnesses > 1 else ''}"
        self._world, self._harnesses = world, harnesses
        self._brains: list[Brain] = []
        self._watches: dict[int, Watch] = {}
        self.ran = Path("ran")  # in each session's own workspace

    async def start(self) -> None:
        """See `System.start`."""
        while len(self._brains) < self._harnesses:
            self._brains.append(await self._world.brain())

    async def ask(self, number: int, text: str) -> None:
        """See `System.ask`."""
        session = await self._world.client.create_session(None, text)
        self._watches[number] = Watch(session)
        self._world.watches.append(self._watches[number])

    async def kill(self) -> None:
        """See `System.kill`. It is the harness that has the first input's session."""
        watch = self._watches[min(self._watches)]
        woke = [event.harness_woke for event in watch.events() if event.WhichOneof("kind") == "harness_woke"]
        pid = int(woke[-1].instance.rpartition(":")[2])
        victim = next(brain for brain in self._brains if brain.process.pid == pid)
        self._brains.remove(victim)
        await victim.process.kill()

    async def answers(self) -> Mapping[int, int]:
        """See `System.answers`."""
        ended: dict[int, int] = {}
        for number, watch in self._watches.items():
            first = next((came for came, kind, _ in watch.seen if kind == "turn_ended"), None)
            if first is not None:
                ended[number] = first
        return ended

    async def stop(self) -> None:
        """See `System.stop`."""
        for brain in self._brains:
            await brain.process.stop()
        self._brains, self._watches = [], {}

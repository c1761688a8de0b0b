"""A worker at each replica of the sandbox service: a sandbox is one replica's, and so is what runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from handmesh.hand.answers import Answer
from handmesh.hand.call import Call
from handmesh.hand.place import Place
from handmesh.hand.schemas import Tool
from handmesh.hand.tools import Hand
from handmesh.hand.worker import Worker
from handmesh.replicas.channel import split


class Crew:
    """A hand's workers, one for each address of its place. Together they run as many calls as one would."""

    def __init__(self, hand: Hand, place: Place) -> None:
        """Connects to nothing yet."""
        addresses = split(place.address)
        self._hand = hand
        shared = _Shared(hand) if len(addresses) > 1 else hand
        self._shared = shared is not hand
        self._workers = [Worker(shared, replace(place, address=address)) for address in addresses]

    @property
    def draining(self) -> bool:
        """Whether it goes away."""
        return self._workers[0].draining

    def drain(self) -> None:
        """Takes no more work: `run` returns when all that was begun has ended and is said."""
        for worker in self._workers:
            worker.drain()

    async def run(self) -> None:
        """Serves until it is drained. Raises HandRefused once a replica refuses the hand."""
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(worker.run())
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None

    async def close(self) -> None:
        """Ends what still runs, and the links."""
        await asyncio.gather(*(worker.close() for worker in self._workers))
        if self._shared:
            await self._hand.stopped()


async def serve(hand: Hand, place: Place) -> None:
    """Serves a hand until the task is cancelled. Raises HandRefused."""
    crew = Crew(hand, place)
    try:
        await crew.run()
    finally:
        await crew.close()


class _Shared(Hand):
    """A hand that several workers have: what is more than it takes at once waits."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self._room = asyncio.Semaphore(max(1, hand.capacity))
        self.capacity = hand.capacity

    @property
    def description(self) -> str:
        """What the hand is."""
        return self._hand.description

    def tools(self) -> Sequence[Tool]:
        """Lists its tools."""
        return self._hand.tools()

    async def execute(self, call: Call) -> Answer:
        """Runs a tool when there is room."""
        async with self._room:
            return await self._hand.execute(call)

    async def released(self, sandbox_id: str) -> None:
        """Says that a sandbox is no more."""
        await self._hand.released(sandbox_id)

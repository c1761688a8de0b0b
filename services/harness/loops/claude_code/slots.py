"""How many processes of Claude Code run at once. Who only waits for calls gives way to who wants to ask the model."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class Held(Protocol):
    """What holds a slot."""

    def give_way(self) -> None:
        """Ends at once: the slot is another one's from now on."""


class Slots:
    """So many slots. Taken in the order in which they were asked for."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._holders: set[Held] = set()
        self._waiting: dict[Held, None] = {}  # those that could give way, the longest waiting first
        self._asking: deque[asyncio.Future[None]] = deque()

    async def take(self, held: Held) -> None:
        """Waits for a slot. One that waits for calls is taken away from its holder."""
        if self._free == 0 and self._waiting:
            self._evict()
        if self._free == 0 or self._asking:
            turn = asyncio.get_running_loop().create_future()
            self._asking.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._free += 1
                    self._next()
                raise
        else:
            self._free -= 1
        self._holders.add(held)

    def waits(self, held: Held) -> None:
        """Says that a holder waits for calls, however long they take."""
        self._waiting[held] = None
        if any(not turn.done() for turn in self._asking):
            self._evict()

    def works(self, held: Held) -> None:
        """Says that a holder goes on."""
        self._waiting.pop(held, None)

    def leave(self, held: Held) -> None:
        """Gives a slot back, if it is still held."""
        self._waiting.pop(held, None)
        if held in self._holders:
            self._holders.discard(held)
            self._free += 1
            self._next()

    def _evict(self) -> None:
        held = next(iter(self._waiting))
        held.give_way()
        self.leave(held)

    def _next(self) -> None:
        while self._free and self._asking:
            turn = self._asking.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

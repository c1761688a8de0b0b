"""The deadline of calls that bring none: one timer for all of them, as one for each costs more than a small call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


class OverdueError(Exception):
    """The work took longer than it may."""


class Overdue:
    """Ends what takes longer than so many seconds. All have the same time, so the oldest is the first to be late."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends: dict[asyncio.Task[Any], float] = {}  # on the loop's clock, the oldest first
        self._late: set[asyncio.Task[Any]] = set()
        self._looking: asyncio.TimerHandle | None = None

    async def within(self, work: Awaitable[Any]) -> Any:
        """Awaits the work in this task. Raises OverdueError when its time is over; the work is cancelled then."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        self._ends[task] = loop.time() + self.seconds
        if self._looking is None:
            self._looking = loop.call_later(self.seconds, self._look)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._late and task.uncancel() == 0:
                raise OverdueError from None
            raise
        finally:
            del self._ends[task]
            self._late.discard(task)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._looking = None
        for task, end in self._ends.items():
            if end > now:
                self._looking = loop.call_at(end, self._look)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()

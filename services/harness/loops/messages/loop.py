"""How the `messages` type answers: with what Claude says to the session's conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from services.harness.journal import Journal
from services.harness.loops.messages.asking import Asking
from services.harness.loops.messages.told import Told
from services.harness.ports import Ports
from services.harness.turn import lately
from services.harness.turn.state import State


class Messages:
    """One run's questions to the model (see `Answering`)."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], told: lately.Told | None) -> None:
        assert told is None or isinstance(told, Told)
        self._ports = ports
        self._asking = Asking(journal, ports, state, told)
        self._newest: asyncio.Task[str] | None = None

    @property
    def told(self) -> Told | None:
        """What the model was told."""
        return self._asking.told

    def prepare(self) -> None:
        """Loads the model's library."""
        if self._newest is None:
            self._newest = asyncio.create_task(self._ports.model.newest(), name="newest model")

    async def answer(self) -> None:
        """Asks the model and says what it answered, or that it did not."""
        assert self._newest is not None
        await self._asking.ask(await asyncio.shield(self._newest))

    async def close(self) -> None:
        """Stops the loading."""
        if self._newest is not None:
            self._newest.cancel()
            await asyncio.wait({self._newest})

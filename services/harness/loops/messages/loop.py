"""How the `messages` type answers: with what Claude says to the session's conversation."""

from __future__ import annotations

from collections.abc import Callable

from services.harness.journal import Journal
from services.harness.loops.messages.asking import Asking
from services.harness.loops.messages.told import Told
from services.harness.ports import Ports
from services.harness.turn import lately
from services.harness.turn.replies import Replies
from services.harness.turn.state import State
from services.harness.turn.traits import Traits

TRAITS = Traits("messages")


class Messages:
    """One run's questions to the model (see `Answering`)."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], told: lately.Told | None) -> None:
        assert told is None or isinstance(told, Told)
        self._replies = Replies(journal, ports, state, TRAITS)
        self._asking = Asking(journal, ports, state, told, self._replies)

    @property
    def told(self) -> Told | None:
        """What the model was told."""
        return self._asking.told

    def prepare(self) -> None:
        """Loads the model's library."""
        self._replies.prepare()

    async def answer(self) -> None:
        """Asks the model and says what it answered, or that it did not."""
        await self._asking.ask(await self._replies.newest())

    async def rest(self) -> None:
        """Keeps nothing between two answers."""

    async def close(self) -> None:
        """Stops the loading."""
        await self._replies.close()

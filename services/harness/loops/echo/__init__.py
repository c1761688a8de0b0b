"""The `echo` harness type: answers with what was said to it. The smallest one; docs/harness.md goes through it."""

from __future__ import annotations

from collections.abc import Callable

from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.journal import Journal
from services.harness.ports import Answer, Ports
from services.harness.settings import Settings
from services.harness.turn.lately import Told
from services.harness.turn.loop import Answering, TurnType
from services.harness.turn.reading import content_of, text_of, unanswered
from services.harness.turn.replies import Replies
from services.harness.turn.state import State
from services.harness.turn.traits import Traits

DESCRIPTION = (
    "Answers each message with its own text. Asks no model and has no tools: to try a mesh, and to begin from."
)
TRAITS = Traits("echo", tools=False)
EMPTY = "(nothing was said)"  # the model's API, which may see it later, takes no empty text


class Echo(Answering):
    """One run over one session (see `Answering`)."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], told: Told | None) -> None:
        self._state = state
        self._replies = Replies(journal, ports, state, TRAITS)

    async def answer(self) -> None:
        """Says the messages' text, once for whatever is in the log now."""
        state = self._state()
        said = "\n\n".join(text_of(message.content) for message in unanswered(state))
        answer = Answer(content_of(said.strip() or EMPTY), "end_turn", TokenUsage(), message_id="", model="")
        await self._replies.say(answer, read=state.head)


def make(settings: Settings | None = None) -> TurnType:
    """Makes the type."""
    return TurnType(TRAITS, DESCRIPTION, Echo)

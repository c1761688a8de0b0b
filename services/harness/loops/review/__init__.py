"""The `review` harness type: a fixed pipeline of three calls of the model, for one purpose. An example to copy.

What was answered so far is in the log, so that the log alone says which stage comes next (`stage`): whoever takes the
session up after a crash goes on there, and no stage that has an answer is asked again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from services.harness.journal import Journal
from services.harness.ports import ModelFailure, Ports
from services.harness.settings import Settings
from services.harness.turn.lately import Told
from services.harness.turn.loop import Answering, TurnType
from services.harness.turn.reading import answers, asked, text_of
from services.harness.turn.replies import Replies
from services.harness.turn.state import State
from services.harness.turn.traits import Traits

DESCRIPTION = (
    "Reviews what a message holds in three calls of the model: finds problems, checks each, writes the review."
)
MAX_OUTPUT_TOKENS = 8_192  # when the session's configuration names no other number
STAGES = (
    "Find what may be wrong in the text that the user gives you. List each problem with the words that it is about.",
    "You are given a text and a list of problems that somebody found in it. Check each of them against the text. "
    "Say which are real, and why the others are not.",
    "You are given a text, problems that were found in it, and what a check of them said. Write a short review for the "
    "author, with the real problems only, the worst one first.",
)
HEADINGS = ("The text", "Problems that were found", "What the check said")


def stage(state: State) -> int:
    """Returns how many stages are done for the messages at hand; a new message begins them anew."""
    return len(answers(state))


def goes_on(state: State) -> bool:
    """Tells whether the last answer is to be followed by another one. A refused or cut one ends the turn."""
    return stage(state) < len(STAGES) and state.reply is not None and state.reply.stop_reason == "end_turn"


TRAITS = Traits("review", tools=False, goes_on=goes_on)


class Review(Answering):
    """One run over one session (see `Answering`)."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], told: Told | None) -> None:
        self._journal = journal
        self._state = state
        self._replies = Replies(journal, ports, state, TRAITS)

    def prepare(self) -> None:
        """Loads the model's library."""
        self._replies.prepare()

    async def answer(self) -> None:
        """Asks the stage that comes next, and says what it answered."""
        state = self._state()
        model = state.config.model or await self._replies.newest()
        if not await self._replies.afford(model):
            return
        messages = asked(state)
        blobs = await self._journal.shelf.opened(messages)
        text = "\n\n".join(text_of(message.content, blobs) for message in messages)
        body = request(state, model, [text, *(text_of(reply.content) for reply in answers(state))])
        try:
            answer = await self._replies.ask(body, state.head)
        except ModelFailure as failure:
            await self._replies.missed(failure, state, failure.retryable)
            return
        await self._replies.say(answer, state.head, (hashlib.sha256(body).hexdigest(), "", ""))

    async def close(self) -> None:
        """Stops the loading."""
        await self._replies.close()


def request(state: State, model: str, parts: list[str]) -> bytes:
    """Writes a stage's request: the text and the earlier stages' answers. The same log gives the same bytes."""
    told = "\n\n".join(f"# {heading}\n\n{part}" for heading, part in zip(HEADINGS, parts, strict=False))
    system = "\n\n".join(part for part in (state.config.system, STAGES[len(parts) - 1]) if part)
    body = {
        "model": model,
        "max_tokens": state.config.max_output_tokens or MAX_OUTPUT_TOKENS,
        "system": system,
        "stream": True,
        "messages": [{"role": "user", "content": told}],
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def make(settings: Settings | None = None) -> TurnType:
    """Makes the type. It needs no setting of its own."""
    return TurnType(TRAITS, DESCRIPTION, Review)

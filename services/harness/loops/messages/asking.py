"""Asks Claude with the session's conversation. What comes of it `turn.replies` says."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from services.harness.adapters import codec
from services.harness.core import Retry
from services.harness.journal import Journal
from services.harness.loops.messages.renditions import render
from services.harness.loops.messages.request import written
from services.harness.loops.messages.told import Told, conversation, since
from services.harness.loops.messages.view import view
from services.harness.ports import Answer, ModelFailure, Ports
from services.harness.turn.replies import Replies
from services.harness.turn.state import State, retried

MAX_CALLS = 1_000  # of one reply: with more, the reply does not fit into the log
PLAINER = frozenset({"MODEL_REQUEST_REFUSED", "CONTEXT_FULL"})  # a plainer request may be taken
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}")  # what the API takes back


class Asking:
    """What a turn does with the model. `state` returns the state as it is now; `told` is what it was told before."""

    def __init__(
        self, journal: Journal, ports: Ports, state: Callable[[], State], told: Told | None, replies: Replies
    ) -> None:
        self._journal = journal
        self._ports = ports
        self._state = state
        self._replies = replies
        self.told = told

    async def ask(self, newest_model: str) -> None:
        """Asks once, with everything that is in the log now."""
        fresh = since(self._state(), self.told)
        facts = conversation(self._state()) if fresh is None else fresh  # what was told before has no images
        await render(self._journal, self._ports.pictures, facts, self._state)
        state = self._state()
        blobs = await self._journal.shelf.opened(facts, state.renditions.values())
        request = written(view(state, newest_model, blobs, self.told))
        self.told = request.told
        if not await self._replies.afford(state.config.model or newest_model):
            return
        try:
            answer = await self._replies.ask(request.body, state.head)
            _check(answer, state)
        except ModelFailure as failure:
            again = failure.retryable
            if failure.reason in PLAINER:
                plainer = retried(state, Retry(state.head, 0, 0.0, failure.reason))
                again = written(view(plainer, newest_model, blobs)).body != request.body
            await self._replies.missed(failure, state, again)
            return
        hashes = (request.request_hash, request.prompt_hash, request.prefix_hash)
        await self._replies.say(answer, state.head, hashes)


def _check(answer: Answer, state: State) -> None:
    """Raises ModelFailure for an answer whose calls the log, or later the API, would refuse."""
    ids = [call.id for call in codec.calls_of(answer.content, answer.stop_reason)]
    known = {call.id for fact in conversation(state) for call in _calls(fact)} if ids else frozenset()
    said = ""
    if len(ids) > MAX_CALLS:
        said = f"the model called {len(ids)} tools in one answer; at most {MAX_CALLS} are possible"
    elif len(set(ids)) < len(ids) or known & set(ids):
        said = "the model gave a tool call an id that another one has"
    elif not all(_CALL_ID.fullmatch(id) for id in ids):
        said = "the model gave a tool call an id that cannot be one"
    if said:
        raise ModelFailure("MODEL_ANSWER_INVALID", said, retryable=False)


def _calls(fact: Any) -> Sequence[Any]:
    return getattr(fact, "calls", ())

"""Asks Claude with the session's conversation, or for a summary of it. What comes of it `turn.replies` says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.harness.adapters import codec
from services.harness.core import Retry
from services.harness.journal import Journal
from services.harness.loops.messages import compaction
from services.harness.loops.messages.compaction import FULL
from services.harness.loops.messages.policy import Policy, policy_of
from services.harness.loops.messages.renditions import render
from services.harness.loops.messages.request import Request, written
from services.harness.loops.messages.told import Block, Told, conversation, since, start_of
from services.harness.loops.messages.view import Summary, fetchable, view
from services.harness.ports import Answer, ModelFailure, Ports
from services.harness.turn.replies import Replies
from services.harness.turn.state import State, retried
from services.harness.turn.traced import chat
from services.kit import failpoints
from services.kit.errors import Full, Invalid, Refused

MAX_CALLS = 1_000  # of one reply: with more, the reply does not fit into the log
BROKE_OFF = "model_context_window_exceeded"  # a stop reason
PLAINER = frozenset({"MODEL_REQUEST_REFUSED", FULL})  # a plainer request may be taken
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}")  # what the API takes back


@dataclass(frozen=True)
class Question:
    """What a request is made from."""

    state: State
    newest_model: str
    blobs: Mapping[str, Sequence[Block]]
    policy: Policy

    def request(self, told: Told | None) -> Request:
        """Writes the request that goes on with the conversation."""
        return written(view(self.state, self.newest_model, self.blobs, told, self.policy))

    def plainer(self, reason: str, end: int = 0) -> Request:
        """Writes it, or the one for a summary, as it would be after a failure."""
        question = replace(self, state=retried(self.state, Retry(self.state.head, 0, 0.0, reason)))
        return question.summary(end) if end else question.request(None)

    def summary(self, end: int) -> Request:
        """Writes the request for a summary of what is before a position."""
        asked = Summary(end, compaction.asked(self.policy))
        return written(view(self.state, self.newest_model, self.blobs, None, self.policy, asked))


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
        """Asks once, with everything that is in the log now; for a summary of it first when there is too much."""
        state = self._state()
        model = state.config.model or newest_model
        try:
            policy = policy_of(state.config.context_policy, self._ports.prices.context_of(model))
        except Invalid as problem:
            await self._journal.owned()
            await self._replies.fail("harness", problem.reason, problem.message, False)
            return
        if not await self._replies.afford(model):
            return
        summarised = compaction.due(state, policy)
        fresh = since(state, None if summarised else self.told, policy, fetchable(state, policy))
        facts = conversation(state, start=start_of(state, policy)) if fresh is None else fresh
        await render(self._journal, self._ports.pictures, facts, self._state)  # what was told before has no images
        state = self._state()
        blobs = await self._journal.shelf.opened(facts, state.renditions.values())
        question = Question(state, newest_model, blobs, policy)
        if summarised:
            await self._summarise(question)
        else:
            await self._converse(question)

    async def _converse(self, question: Question) -> None:
        request, state, policy = question.request(self.told), question.state, question.policy
        self.told = request.told
        try:
            answer = await self._replies.ask(request.body, state.head, policy.betas)
            _check(answer, state)
        except ModelFailure as failure:
            again = failure.retryable
            if failure.reason == FULL and compaction.possible(state, policy):
                again = True  # with a summary in the place of what is too much
            elif failure.reason in PLAINER:
                again = question.plainer(failure.reason).body != request.body
            said = compaction.FRESH if failure.reason == FULL and compaction.is_fresh(state) else ""
            await self._replies.missed(failure, state, again, said)
            return
        hashes = (request.request_hash, request.prompt_hash, request.prefix_hash)
        goes_on = answer.stop_reason == BROKE_OFF and compaction.possible(state, policy)
        await self._replies.say(answer, state.head, hashes, retried_as=FULL if goes_on else "")

    async def _summarise(self, question: Question) -> None:
        """Has the model write a summary of the conversation, once: it is an event from then on."""
        state, policy = question.state, question.policy
        end = compaction.end_of(state)
        request = question.summary(end)
        try:
            asking = self._ports.model.ask(request.body, _unseen, policy.betas)
            answer = await chat(self._replies.model(), asking)
            failpoints.hit("harness.summary_answered")
            said = compaction.summary_in(answer.content)
            if not said or answer.stop_reason == "refusal":
                raise ModelFailure("MODEL_ANSWER_INVALID", "the model wrote no summary", retryable=True)
        except ModelFailure as failure:
            plainer = failure.reason in PLAINER and question.plainer(failure.reason, end).body != request.body
            await self._replies.missed(failure, state, failure.retryable or plainer)
            return
        await self._journal.owned()
        content = compaction.content_of(said, state, end, policy)
        name, cost = ("reset" if policy.mode == "reset" else "compaction"), self._replies.cost(answer)
        where = (self._journal.epoch, state.head)
        self.told = None
        event = codec.compacted(*where, end, content, name, answer, request.request_hash, cost)
        try:
            await self._journal.say(event)
            self._replies.count(answer, cost)
        except (Full, Refused, Invalid) as problem:
            await self._replies.fail("session", problem.reason, problem.message, False)
        failpoints.hit("harness.summary_stored")


def _unseen(block: int, kind: str, piece: str) -> None:
    """Shows nothing: nobody waits for the words of a summary."""


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

"""Asks the model and says what it answered, that it is asked again later, or that it is not.

What the log shows of a failure: `RetryScheduled` while it is retried; an `ErrorRaised` with `retryable` when the tries
are used up; one without when asking again would not help. Either way the turn ends as FAILED, and the next message
begins another one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handmesh.session.v1.event_pb2 import Event, ModelReplied
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
from services.harness.turn.ahead import with_what_follows
from services.harness.turn.failure import Exhausted, Later, after_failure
from services.harness.turn.showing import Showing
from services.harness.turn.state import State, retried
from services.kit import failpoints
from services.kit.errors import Full, Invalid, Refused
from services.kit.logs import Log

MAX_CALLS = 1_000  # of one reply: with more, the reply does not fit into the log
BROKE_OFF = "model_context_window_exceeded"  # a stop reason
PLAINER = frozenset({"MODEL_REQUEST_REFUSED", FULL})  # a plainer request may be taken
UNPRICED = (
    "the session has a limit of cost, and the price of {model} is not known: nothing was asked. Name another model, "
    "take the limit away, or add the price to the harness's HANDMESH_MODEL_PRICES_FILE"
)
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}")  # what the API takes back

_log = Log("services.harness.loops.messages.asking")


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

    def plainer(self, reason: str) -> Request:
        """Writes it as it would be after a failure."""
        state = retried(self.state, Retry(self.state.head, 0, 0.0, reason))
        return written(view(state, self.newest_model, self.blobs, None, self.policy))

    def summary(self, end: int) -> Request:
        """Writes the request for a summary of what is before a position."""
        asked = Summary(end, compaction.asked(self.policy))
        return written(view(self.state, self.newest_model, self.blobs, None, self.policy, asked))


class Asking:
    """What a turn does with the model. `state` returns the state as it is now; `told` is what it was told before."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], told: Told | None) -> None:
        self._journal = journal
        self._ports = ports
        self._state = state
        self.told = told

    async def ask(self, newest_model: str) -> None:
        """Asks once, with everything that is in the log now; for a summary of it first when there is too much."""
        state = self._state()
        model = state.config.model or newest_model
        try:
            policy = policy_of(state.config.context_policy, self._ports.prices.context_of(model))
        except Invalid as problem:
            await self._journal.owned()
            await self._end("harness", problem.reason, problem.message, False, state)
            return
        if state.config.budgets.max_cost_micros and self._ports.prices.profile_of(model) is None:
            await self._journal.owned()
            await self._end("model", "MODEL_PRICE_UNKNOWN", UNPRICED.format(model=model[:100]), False, state)
            return
        summary = compaction.due(state, policy)
        told = None if summary else self.told
        fresh = since(state, told, policy, fetchable(state, policy))
        facts = conversation(state, start=start_of(state, policy)) if fresh is None else fresh
        await render(self._journal, self._ports.pictures, facts, self._state)  # what was told before has no images
        state = self._state()
        blobs = await self._journal.shelf.opened(facts, state.renditions.values())
        question = Question(state, newest_model, blobs, policy)
        if summary:
            await self._summarise(question)
        else:
            await self._converse(question)

    async def _converse(self, question: Question) -> None:
        request, state, policy = question.request(self.told), question.state, question.policy
        self.told = request.told
        try:
            answer = await self._stream(request.body, policy, state.head)
            _check(answer, state)
        except ModelFailure as failure:
            await self._journal.owned()
            again = failure.retryable
            if failure.reason == FULL and compaction.possible(state, policy):
                again = True  # with a summary in the place of what is too much
            elif failure.reason in PLAINER:
                again = question.plainer(failure.reason).body != request.body
            await self._failed(state, failure, again)
            return
        await self._journal.owned()  # the session may still be being taken up
        try:
            await self._replied(answer, request, state.head, policy)
        except (Full, Refused, Invalid) as problem:
            await self._end("session", problem.reason, problem.message, False, state)

    async def _summarise(self, question: Question) -> None:
        """Has the model write a summary of the conversation, once: it is an event from then on."""
        state, policy = question.state, question.policy
        end = compaction.end_of(state)
        request = question.summary(end)
        try:
            answer = await self._ports.model.ask(request.body, _unseen, policy.betas)
            failpoints.hit("harness.summary_answered")
            said = compaction.summary_in(answer.content)
            if not said or answer.stop_reason == "refusal":
                raise ModelFailure("MODEL_ANSWER_INVALID", "the model wrote no summary", retryable=True)
        except ModelFailure as failure:
            await self._journal.owned()
            first = failure.reason == FULL and not state.plainness.try_short  # then it is tried in short
            await self._failed(state, failure, failure.retryable or first)
            return
        await self._journal.owned()
        content = compaction.content_of(said, state, end, policy)
        policy_name = "reset" if policy.mode == "reset" else "compaction"
        epoch, cost = self._journal.epoch, self._cost(answer)
        event = codec.compacted(epoch, state.head, end, content, policy_name, answer, request.request_hash, cost)
        self.told = None
        await self._journal.say(event)
        failpoints.hit("harness.summary_stored")

    async def _replied(self, answer: Answer, request: Request, read: int, policy: Policy) -> None:
        content = await self._journal.shelf.fitted_reply(answer.content)
        replied = ModelReplied(
            content_json=content,
            stop_reason=answer.stop_reason,
            usage=answer.usage,
            cost_micros=self._cost(answer),
            message_id=answer.message_id,
            request_hash=request.request_hash,
            prompt_hash=request.prompt_hash,
            prefix_hash=request.prefix_hash,
            read_position=read,
            model=answer.model,
            stop_sequence=answer.stop_sequence,
            stop_details_json=answer.stop_details,
            context_edits_json=answer.edits,
        )
        event = Event(event_id=self._event_id(read), model_replied=replied)
        epoch, now = self._journal.epoch, self._ports.now()
        if answer.stop_reason == BROKE_OFF and compaction.possible(self._state(), policy):
            again = codec.retry_scheduled(epoch, self._state().head, FULL, 1, now)
            await self._journal.say_with(event, again)  # the turn goes on behind a summary
        elif content is answer.content:
            await self._journal.say_with(*with_what_follows(self._state(), event, epoch, now))
        else:
            await self._journal.say(event)  # its calls are known when it was read back
        failpoints.hit("harness.reply_stored")

    def _cost(self, answer: Answer) -> int | None:
        """Prices an answer: by the model that gave it, or else by the one that was asked."""
        prices, usage = self._ports.prices, codec.usage_of(answer.usage)
        cost = prices.cost_micros(answer.model, usage)
        return prices.cost_micros(self._state().config.model, usage) if cost is None else cost

    async def _stream(self, body: bytes, policy: Policy, read: int) -> Answer:
        """Asks and shows what comes, once the session is this harness's: the question does not wait for that."""
        showing = Showing()
        beginning = asyncio.create_task(self._begin(showing, read), name="begin previews")
        try:
            answer = await self._ports.model.ask(body, showing.show, policy.betas)
            await beginning
        except BaseException:
            beginning.cancel()
            showing.discard()
            raise
        showing.drop()
        return answer

    async def _begin(self, showing: Showing, read: int) -> None:
        previews = await self._journal.previews()
        showing.begin(previews, self._event_id(read))

    def _event_id(self, read: int) -> str:
        return f"reply-{self._journal.epoch}-{read}"

    async def _failed(self, state: State, failure: ModelFailure, again: bool) -> None:
        epoch, head, now = self._journal.epoch, state.head, self._ports.now()
        _log.info(
            "model failed", session_id=self._journal.log.session_id, reason=failure.reason, retryable=failure.retryable
        )
        match after_failure(state.retry, again, failure.retry_after, now, self._ports.jitter()):
            case Later(attempt=attempt, at=at):
                await self._journal.say(codec.retry_scheduled(epoch, head, failure.reason, attempt, at))
            case Exhausted():
                said = failure.message
                if failure.reason == FULL and compaction.is_fresh(state):
                    said = f"{said}; what was said before is in a summary already"
                await self._end("model", failure.reason, said, failure.retryable, state)

    async def _end(self, part: str, reason: str, message: str, retryable: bool, state: State) -> None:
        epoch, head = self._journal.epoch, self._state().head
        raised, used = codec.error_raised(epoch, head, part, reason, message, retryable), state.used.in_turn
        await self._journal.say(raised, codec.turn_ended(epoch, head, "FAILED", state.head, "", used))


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

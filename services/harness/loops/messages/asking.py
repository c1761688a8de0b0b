"""Asks the model and says what it answered, that it is asked again later, or that it is not.

What the log shows of a failure: `RetryScheduled` while it is retried; an `ErrorRaised` with `retryable` when the tries
are used up; one without when asking again would not help. Either way the turn ends as FAILED, and the next message
begins another one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from handmesh.session.v1.event_pb2 import Event, ModelReplied
from services.harness.adapters import codec
from services.harness.core import Retry
from services.harness.journal import Journal
from services.harness.loops.messages.renditions import render
from services.harness.loops.messages.request import Request, written
from services.harness.loops.messages.told import Block, Told, conversation, since
from services.harness.loops.messages.view import view
from services.harness.ports import Answer, ModelFailure, Ports
from services.harness.turn.ahead import with_what_follows
from services.harness.turn.failure import Exhausted, Later, after_failure
from services.harness.turn.showing import Showing
from services.harness.turn.state import State, retried
from services.harness.turn.traits import Traits
from services.kit import failpoints
from services.kit.errors import Full, Invalid, Refused
from services.kit.logs import Log

TRAITS = Traits("messages")
MAX_CALLS = 1_000  # of one reply: with more, the reply does not fit into the log
PLAINER = frozenset({"MODEL_REQUEST_REFUSED", "CONTEXT_FULL"})  # a plainer request may be taken
UNPRICED = (
    "the session has a limit of cost, and the price of {model} is not known: nothing was asked. Name another model, "
    "take the limit away, or add the price to the harness's HANDMESH_MODEL_PRICES_FILE"
)
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,100}")  # what the API takes back

_log = Log("services.harness.loops.messages.asking")


class Asking:
    """What a turn does with the model. `state` returns the state as it is now; `told` is what it was told before."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], told: Told | None) -> None:
        self._journal = journal
        self._ports = ports
        self._state = state
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
        model = state.config.model or newest_model
        if state.config.budgets.max_cost_micros and self._ports.prices.profile_of(model) is None:
            await self._journal.owned()
            await self._end("model", "MODEL_PRICE_UNKNOWN", UNPRICED.format(model=model[:100]), False, state)
            return
        try:
            answer = await self._stream(request.body, state.head)
            _check(answer, state)
        except ModelFailure as failure:
            await self._journal.owned()
            await self._failed(state, failure, request.body, newest_model, blobs)
            return
        await self._journal.owned()  # the session may still be being taken up
        try:
            await self._replied(answer, request, state.head)
        except (Full, Refused, Invalid) as problem:
            await self._end("session", problem.reason, problem.message, False, state)

    async def _replied(self, answer: Answer, request: Request, read: int) -> None:
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
        )
        event = Event(event_id=self._event_id(read), model_replied=replied)
        if content is answer.content:
            epoch, now = self._journal.epoch, self._ports.now()
            await self._journal.say_with(*with_what_follows(self._state(), event, epoch, now, TRAITS))
        else:
            await self._journal.say(event)  # its calls are known when it was read back
        failpoints.hit("harness.reply_stored")

    def _cost(self, answer: Answer) -> int | None:
        """Prices an answer: by the model that gave it, or else by the one that was asked."""
        prices, usage = self._ports.prices, codec.usage_of(answer.usage)
        cost = prices.cost_micros(answer.model, usage)
        return prices.cost_micros(self._state().config.model, usage) if cost is None else cost

    async def _stream(self, body: bytes, read: int) -> Answer:
        """Asks and shows what comes, once the session is this harness's: the question does not wait for that."""
        showing = Showing()
        beginning = asyncio.create_task(self._begin(showing, read), name="begin previews")
        try:
            answer = await self._ports.model.ask(body, showing.show)
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

    async def _failed(
        self,
        state: State,
        failure: ModelFailure,
        sent: bytes,
        newest_model: str,
        blobs: Mapping[str, Sequence[Block]],
    ) -> None:
        again = failure.retryable
        if failure.reason in PLAINER:
            plainer = retried(state, Retry(state.head, 0, 0.0, failure.reason))
            again = written(view(plainer, newest_model, blobs)).body != sent
        epoch, head, now = self._journal.epoch, state.head, self._ports.now()
        _log.info(
            "model failed", session_id=self._journal.log.session_id, reason=failure.reason, retryable=failure.retryable
        )
        match after_failure(state.retry, again, failure.retry_after, now, self._ports.jitter()):
            case Later(attempt=attempt, at=at):
                await self._journal.say(codec.retry_scheduled(epoch, head, failure.reason, attempt, at))
            case Exhausted():
                await self._end("model", failure.reason, failure.message, failure.retryable, state)

    async def _end(self, part: str, reason: str, message: str, retryable: bool, state: State) -> None:
        epoch, head = self._journal.epoch, self._state().head
        raised, used = codec.error_raised(epoch, head, part, reason, message, retryable), state.used.in_turn
        await self._journal.say(raised, codec.turn_ended(epoch, head, "FAILED", state.head, "", used))


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

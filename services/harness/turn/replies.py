"""Asks the model on a turn's behalf, and says what it answered, that it is asked again later, or that it is not.

What the log shows of a failure: `RetryScheduled` while it is retried; an `ErrorRaised` with `retryable` when the tries
are used up; one without when asking again would not help. Either way the turn ends as FAILED, and the next message
begins another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from handmesh.session.v1.event_pb2 import Event, ModelReplied
from services.harness import counting
from services.harness.adapters import codec
from services.harness.answer import Show
from services.harness.journal import Journal
from services.harness.ports import Answer, ModelFailure, Ports
from services.harness.turn.ahead import with_what_follows
from services.harness.turn.failure import Exhausted, Later, after_failure
from services.harness.turn.showing import Showing
from services.harness.turn.state import State
from services.harness.turn.timed import Timed
from services.harness.turn.traced import chat
from services.harness.turn.traits import Traits
from services.kit import failpoints
from services.kit.errors import Full, Invalid, Refused
from services.kit.logs import Log

UNPRICED = (
    "the session has a limit of cost, and the price of {model} is not known: nothing was asked. Name another model, "
    "take the limit away, or add the price to the harness's HANDMESH_MODEL_PRICES_FILE"
)

_log = Log("services.harness.turn.replies")


class Replies:
    """What a turn does with the model. `state` returns the state as it is now."""

    def __init__(self, journal: Journal, ports: Ports, state: Callable[[], State], traits: Traits) -> None:
        self._journal = journal
        self._ports = ports
        self._state = state
        self._traits = traits
        self._newest: asyncio.Task[str] | None = None
        self._timed: Timed | None = None
        self._showing = Showing()  # of the answer that is asked for, or is being said

    def prepare(self) -> None:
        """Loads the model's library. At once."""
        if self._newest is None:
            self._newest = asyncio.create_task(self._ports.model.newest(), name="newest model")

    async def newest(self) -> str:
        """Names the newest model that is known. Only after `prepare`."""
        assert self._newest is not None
        return await asyncio.shield(self._newest)

    async def close(self) -> None:
        """Stops the loading."""
        if self._newest is not None:
            self._newest.cancel()
            await asyncio.wait({self._newest})

    async def afford(self, model: str) -> bool:
        """Tells whether a model's price is known, if the session's budgets need it. Ends the turn when not."""
        state = self._state()
        if not state.config.budgets.max_cost_micros or self._ports.prices.profile_of(model) is not None:
            return True
        await self._journal.owned()
        await self.fail("model", "MODEL_PRICE_UNKNOWN", UNPRICED.format(model=model[:100]), False)
        return False

    async def ask(self, body: bytes, read: int, betas: Sequence[str] = ()) -> Answer:
        """Asks the model (see `shown`), with features of its API that the request needs."""
        return await self.shown(partial(self._ports.model.ask, body, betas=betas), read)

    async def shown(self, ask: Callable[[Show], Awaitable[Answer]], read: int) -> Answer:
        """Asks and shows what comes, once the session is this harness's: the question does not wait for that.

        `read` is the position up to which the request was made. Raises ModelFailure.
        """
        showing = self._showing = Showing()
        beginning = asyncio.create_task(self._begin(showing, read), name="begin previews")
        timed = self._timed = Timed(showing.show, self._ports.now, self._journal.condition)
        try:
            asked = counting.asked(ask, timed.show, lambda it: counting.model_of(self._ports.prices, it.model))
            answer = await chat(self.model(), asked)
            timed.ends()
            await beginning
        except BaseException:
            beginning.cancel()
            showing.discard()
            raise
        showing.drop()
        return answer

    def model(self) -> str:
        """Names the model that is asked: the session's, or the newest that is known."""
        named, newest = self._state().config.model, self._newest
        if named or newest is None or not newest.done() or newest.cancelled() or newest.exception() is not None:
            return named
        return newest.result()

    async def _begin(self, showing: Showing, read: int) -> None:
        previews = await self._journal.previews()
        showing.begin(previews, self._event_id(read))

    def _event_id(self, read: int) -> str:
        return f"reply-{self._journal.epoch}-{read}"

    async def say(
        self, answer: Answer, read: int, hashes: tuple[str, str, str] = ("", "", ""), retried_as: str = ""
    ) -> None:
        """Says an answer, with what follows from it. `hashes` are the request's, the prompt's and the prefix's.

        `retried_as` is an ErrorReason for which the model is asked again, though it has answered. An answer that the
        log does not take ends the turn; one that comes when the session has moved on is dropped.
        """
        await self._journal.owned()  # the session may still be being taken up
        try:
            await self._say(answer, read, hashes, retried_as)
        except (Full, Refused, Invalid) as problem:
            self._showing.discard()
            await self.fail("session", problem.reason, problem.message, False)
        except BaseException:
            self._showing.discard()  # an interrupt came before it was in the log
            raise

    async def _say(self, answer: Answer, read: int, hashes: tuple[str, str, str], retried_as: str) -> None:
        content = await self._journal.shelf.fitted_reply(answer.content)
        timed, self._timed = self._timed, None
        request_hash, prompt_hash, prefix_hash = hashes
        replied = ModelReplied(
            content_json=content,
            stop_reason=answer.stop_reason,
            usage=answer.usage,
            cost_micros=self.cost(answer),
            message_id=answer.message_id,
            request_hash=request_hash,
            prompt_hash=prompt_hash,
            prefix_hash=prefix_hash,
            read_position=read,
            model=answer.model,
            stop_sequence=answer.stop_sequence,
            stop_details_json=answer.stop_details,
            context_edits_json=answer.edits,
            times=timed.times if timed is not None else None,
        )
        event = Event(event_id=self._event_id(read), model_replied=replied)
        epoch, now = self._journal.epoch, self._ports.now()
        if retried_as:
            events = [event, codec.retry_scheduled(epoch, self._state().head, retried_as, 1, now)]
        elif content is answer.content:
            events = with_what_follows(self._state(), event, epoch, now, self._traits)
        else:
            events = [event]  # its calls are known when it was read back
        try:
            if not await self._journal.say_while(self._is_mine, *events):
                self._showing.discard()
        finally:  # an answer that ends the turn may be read before the log's word is here, and this task ended with it
            reply = self._state().reply
            if reply is not None and reply.read == read and reply.position > epoch:
                self.count(answer, replied.cost_micros)
                failpoints.hit("harness.reply_stored")

    def count(self, answer: Answer, cost_micros: int | None) -> None:
        """Counts an answer that is in the log."""
        counting.answered(counting.model_of(self._ports.prices, answer.model), answer.usage, cost_micros)

    def _is_mine(self) -> bool:
        """Tells whether the session is still of this type. An answer to one that has moved on is dropped."""
        return self._state().config.harness == self._traits.name

    def cost(self, answer: Answer) -> int | None:
        """Prices an answer: by the model that gave it, or else by the one that was asked."""
        prices, usage = self._ports.prices, codec.usage_of(answer.usage)
        cost = prices.cost_micros(answer.model, usage)
        return prices.cost_micros(self._state().config.model, usage) if cost is None else cost

    async def missed(self, failure: ModelFailure, state: State, again: bool, more: str = "") -> None:
        """Says that the model did not answer a request made from `state`: it is asked again later, if `again` and
        there are tries left; else the turn ends, with `more` to be said of it."""
        await self._journal.owned()
        epoch, head, now = self._journal.epoch, state.head, self._ports.now()
        _log.info(
            "model failed", session_id=self._journal.log.session_id, reason=failure.reason, retryable=failure.retryable
        )
        match after_failure(state.retry, again, failure.retry_after, now, self._ports.jitter()):
            case Later(attempt=attempt, at=at):
                counting.RETRIES.add(failure.reason)
                retry = codec.retry_scheduled(epoch, head, failure.reason, attempt, at, failure.http_status)
                await self._journal.say(retry)
            case Exhausted():
                said = failure.message + more
                await self.fail("model", failure.reason, said, failure.retryable, failure.http_status)

    async def fail(self, part: str, reason: str, message: str, retryable: bool, http_status: int | None = None) -> None:
        """Says what went wrong, and that the turn ends as FAILED."""
        state, epoch = self._state(), self._journal.epoch
        raised = codec.error_raised(epoch, state.head, part, reason, message, retryable, http_status=http_status)
        ended = codec.turn_ended(epoch, state.head, "FAILED", state.head, "", state.used.in_turn)
        await self._journal.say(raised, ended)

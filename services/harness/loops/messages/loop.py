"""The shell around `decide`: read, decide, do, say what happened, again.

Whatever takes time runs as a task under a key: `model`, `tools`, `hand <name>` or a call's id. After every event the
state is asked what to do; what runs already goes on, what is no longer decided is cancelled. So an interrupt, a
message or another harness takes hold at once, and calls run side by side.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine
from typing import Any

from handmesh.session.v1.event_pb2 import Event, ModelReplied
from handmesh.session.v1.session_pb2 import Preview
from services.harness.adapters import codec
from services.harness.core import Fact
from services.harness.journal import Fenced, Journal
from services.harness.loops.messages import core
from services.harness.loops.messages.calls import Calls
from services.harness.loops.messages.failure import Exhausted, Later, after_failure
from services.harness.loops.messages.state import State, fold
from services.harness.loops.messages.view import conversation, view
from services.harness.ports import Answer, ModelFailure, Ports, Progress, SessionLog
from services.kit import failpoints, ids
from services.kit.errors import Full, Refused
from services.kit.logs import Log

_log = Log("services.harness.loops.messages")


class MessagesType:
    """Claude's Messages API as the brain: the default type."""

    description = "Claude through the Messages API, with the session's hands, servers and custom tools."

    async def run(self, log: SessionLog, ports: Ports, instance: str, progress: Progress) -> None:
        """Takes the session up and works until there is nothing to do (see `HarnessType.run`)."""
        turn = Turn(log, ports, progress)
        try:
            await turn.journal.open()
            if isinstance(core.decide(turn.state), core.Rest):
                return
            await turn.journal.take_up(codec.woke(ids.mint("woke"), "messages", instance))
            progress.took_up(turn.journal.epoch)
            await turn.work()
        except Fenced:
            _log.info("another harness owns the session", session_id=log.session_id, epoch=turn.journal.epoch)
        finally:
            await turn.close()


class Turn:
    """One run over one session: the state as it was read, and what is being done."""

    def __init__(self, log: SessionLog, ports: Ports, progress: Progress) -> None:
        self.state = State()
        self.journal = Journal(log, self._apply)
        self._ports = ports
        self._progress = progress
        self._calls = Calls(self.journal, ports, lambda: self.state)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._newest: asyncio.Task[str] | None = None

    def _apply(self, fact: Fact) -> None:
        self.state = fold(self.state, fact)

    async def work(self) -> None:
        """Works until the state says to rest. The model's library loads while tools are looked up or run."""
        self._newest = asyncio.create_task(self._ports.model.newest(), name="newest model")
        while True:
            self.journal.check()
            head, action = self.state.head, core.decide(self.state)
            if isinstance(action, core.Rest):
                await self.cancel()
                _log.info("resting", session_id=self.journal.log.session_id, why=action.why)
                return
            if await self._act(action):
                continue
            await self._wait(head)

    async def _act(self, action: core.Action) -> bool:
        """Does or starts what was decided. Tells whether it was done at once."""
        match action:
            case core.EndTurn(reason=reason, read=read):
                await self.cancel()
                stop = self.state.reply.stop_reason if self.state.reply and reason != "INTERRUPTED" else ""
                ended = codec.turn_ended(self.journal.epoch, self.state.head, reason, read, stop)
                await self.journal.propose(ended)
            case core.FinishCall(call=call, result=result):
                await self.journal.say(codec.call_finished(call.id, *await self.journal.shelf.fitted(result)))
            case core.AskConfirmation(call=call):
                position = self.state.reply.position if self.state.reply else 0
                await self.journal.propose(codec.confirmation_asked(self.journal.log.session_id, position, call))
            case core.AskClient(call=call):
                await self.journal.propose(codec.custom_asked(call))
            case core.Settle(calls=calls):
                await self.cancel()
                await self._calls.settle(calls)
            case core.LookUpTools():
                self._start("tools", self._calls.look_up(action))
                return False
            case core.RunCalls(calls=calls, provision=hands):
                for hand in hands:
                    self._start(f"hand {hand}", self._calls.provision(hand))
                for run in calls:
                    self._start(run.call.id, self._calls.run(run))
                return False
            case core.AskModel():
                self._start("model", self._ask(action))
                return False
        return True

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        if key in self._tasks:
            work.close()
            return
        self._progress.step(key)
        self._tasks[key] = asyncio.create_task(work, name=key)

    async def _wait(self, head: int) -> None:
        """Waits until an event came or a task ended. Raises what a task raised."""
        news = asyncio.create_task(self.journal.wait(head))
        try:
            await asyncio.wait({news, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        stopped = news.exception() if news.done() and not news.cancelled() else None
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                task.result()
        if stopped is not None:
            raise stopped

    async def cancel(self) -> None:
        """Stops everything that is being done. What hands do goes on: they are asked by their ids."""
        running = [task for task in self._tasks.values() if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for task in self._tasks.values():
            if not task.cancelled():
                task.exception()  # what one of them raised has ended the run; the others' say the same
        self._tasks.clear()

    async def close(self) -> None:
        """Ends the run: nothing of it goes on in this process."""
        await self.cancel()
        if self._newest is not None:
            self._newest.cancel()
            await asyncio.wait({self._newest})
        await self.journal.close()

    async def _ask(self, action: core.AskModel) -> None:
        """Asks the model and says what it answered, or that it did not."""
        await asyncio.sleep(max(0.0, action.not_before - self._ports.now()))
        assert self._newest is not None
        newest = await asyncio.shield(self._newest)
        state = self.state  # a message that landed while waiting is read too
        request = view(state, newest, await self.journal.shelf.opened(conversation(state)))
        body = json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        event_id = f"reply-{self.journal.epoch}-{state.head}"
        try:
            answer = await self._stream(request, event_id)
        except ModelFailure as failure:
            await self._failed(state, failure)
            return
        try:
            content = await self.journal.shelf.fitted_reply(answer.content)
        except (Full, Refused) as problem:
            await self._end_failed("session", problem.reason, problem.message, False, state)
            return
        replied = ModelReplied(
            content_json=content,
            stop_reason=answer.stop_reason,
            usage=answer.usage,
            message_id=answer.message_id,
            request_hash=hashlib.sha256(body).hexdigest(),
            read_position=state.head,
            model=answer.model,
        )
        await self.journal.say(Event(event_id=event_id, model_replied=replied))
        failpoints.hit("harness.reply_stored")

    async def _stream(self, request: dict[str, Any], event_id: str) -> Answer:
        previews = self.journal.log.previews(self.journal.epoch)
        offsets: dict[int, int] = {}

        def show(block: int, kind: str, piece: str) -> None:
            preview = Preview(event_id=event_id, block_index=block, offset=offsets.get(block, 0))
            setattr(preview, kind, piece)
            offsets[block] = offsets.get(block, 0) + len(piece)
            previews.show(preview)

        try:
            return await self._ports.model.ask(request, show)
        except (ModelFailure, asyncio.CancelledError):
            if offsets:
                previews.show(Preview(event_id=event_id, discarded=True))
            raise
        finally:
            await previews.close()

    async def _failed(self, state: State, failure: ModelFailure) -> None:
        epoch, head = self.journal.epoch, self.state.head
        match after_failure(
            state.retry, failure.retryable, failure.retry_after, self._ports.now(), self._ports.jitter()
        ):
            case Later(attempt=attempt, at=at):
                await self.journal.say(codec.retry_scheduled(epoch, head, failure.reason, attempt, at))
            case Exhausted():
                await self._end_failed("model", failure.reason, failure.message, failure.retryable, state)

    async def _end_failed(self, part: str, reason: str, message: str, retryable: bool, state: State) -> None:
        epoch, head = self.journal.epoch, self.state.head
        raised = codec.error_raised(epoch, head, part, reason, message, retryable)
        await self.journal.say(raised, codec.turn_ended(epoch, head, "FAILED", state.head, ""))

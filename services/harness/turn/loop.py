"""The shell around `decide`: read, decide, do, say what happened, again.

Whatever takes time runs as a task under a key: `model`, `tools`, `hand <name>` or a call's id. After every event the
state is asked what to do; what runs already goes on, what is no longer decided is cancelled. So an interrupt, a
message or another harness takes hold at once, and calls run side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from services.harness.adapters import codec
from services.harness.core import Fact
from services.harness.journal import Changed, Fenced, Journal
from services.harness.ports import ASKING, LINGERING, Ports, Progress, SessionLog
from services.harness.turn import core
from services.harness.turn.ahead import turn_ended
from services.harness.turn.calls import Calls
from services.harness.turn.lately import Known, Lately, Told
from services.harness.turn.state import State, fold
from services.harness.turn.traced import TurnSpan
from services.harness.turn.traits import Traits
from services.kit import ids
from services.kit.errors import Conflict
from services.kit.logs import Log

LINGER_SECONDS = 10.0  # a rest that is shorter is spent here: being woken again costs more

_log = Log("services.harness.turn")


class Answering(Protocol):
    """How a type answers what was said: what it does where `decide` says to ask the model. One for each run.

    A type that inherits from this one writes `answer`, and of the rest only what it needs: by itself it does nothing.
    """

    @property
    def told(self) -> Told | None:
        """Returns what is to be remembered for the session's next run here, if anything."""

    def prepare(self) -> None:
        """Begins what an answer will need, while the session is being taken up and tools are looked up. At once."""

    async def answer(self) -> None:
        """Says what is answered to everything that is in the log now, or why nothing is.

        The last thing that it says is a `ModelReplied` that has read up to there, a `RetryScheduled`, or an
        `ErrorRaised` with the `TurnEnded` behind it. It may begin before the session is this harness's
        (`Journal.owned`), and may be cancelled at any await: by an interrupt, by a message, or for good.
        """

    async def rest(self) -> None:
        """Ends what was kept for the next answer: for now none is wanted, or everything begins anew."""

    async def close(self) -> None:
        """Ends what `prepare` began."""


MakeAnswering = Callable[[Journal, Ports, Callable[[], State], Told | None], Answering]


class TurnType:
    """A harness type whose turns go as `turn.core` decides (see `HarnessType`).

    `answering` makes what is the type's own, from the journal, the ports, what returns the state as it is now, and what
    was remembered.
    """

    def __init__(self, traits: Traits, description: str, answering: MakeAnswering) -> None:
        self.description = description
        self._traits = traits
        self._answering = answering
        self._lately = Lately()

    async def run(self, log: SessionLog, ports: Ports, instance: str, progress: Progress) -> float | None:
        """Takes the session up and works until there is nothing to do (see `HarnessType.run`)."""
        known = self._lately.take(log.session_id)
        turn = Turn(log, ports, progress, known, self._traits, self._answering)
        try:
            await turn.journal.open()
            action = await self._take_up(turn, instance)
            if isinstance(action, core.Rest):
                return action.until
            return await turn.work()
        except Fenced:
            _log.info("another harness owns the session", session_id=log.session_id, epoch=turn.journal.epoch)
            return None
        except Changed:
            _log.warning("the log is another one than before", session_id=log.session_id)
            turn.journal.last = None
            return ports.now()  # it is read anew
        finally:
            await turn.close()
            if turn.journal.last is not None:
                self._lately.keep(log.session_id, turn.state, turn.journal.last, turn.answering.told, known)

    async def _take_up(self, turn: Turn, instance: str) -> core.Action:
        """Takes the session up and returns what is to be done. Raises Conflict when another harness was faster."""
        epoch = turn.state.epoch
        while True:
            turn.span.follow(turn.state)
            action, head = turn.decide(), turn.state.head
            if isinstance(action, core.Rest):
                return action
            turn.begin(action)
            try:
                await turn.journal.take_up(codec.woke(ids.mint("woke"), self._traits.name, instance))
            except Conflict as conflict:
                await turn.cancel()
                await turn.journal.reach_conflict(conflict)
                if turn.state.epoch != epoch or turn.state.head == head:
                    raise
            else:
                turn.took_up()
                return action


class Turn:
    """One run over one session: the state as it was read, and what is being done."""

    def __init__(
        self,
        log: SessionLog,
        ports: Ports,
        progress: Progress,
        known: Known | None,
        traits: Traits,
        answering: MakeAnswering,
    ) -> None:
        self.state = known.state if known else State()
        self.journal = Journal(log, self._apply, progress.condition, known.last if known else None)
        self._ports = ports
        self._progress = progress
        self._traits = traits
        self._calls = Calls(self.journal, ports, lambda: self.state, traits)
        self.answering = answering(self.journal, ports, lambda: self.state, known.told if known else None)
        self.span = TurnSpan(log.session_id)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, core.RunCall] = {}  # by key

    def _apply(self, fact: Fact) -> None:
        self.state = fold(self.state, fact)

    def decide(self) -> core.Action:
        """Says what to do now."""
        return core.decide(self.state, self._ports.now(), self._traits)

    def took_up(self) -> None:
        """Tells that the session is this harness's."""
        self._progress.took_up(self.journal.epoch)
        self.span.took_up(self.journal.epoch)

    def begin(self, action: core.Action) -> None:
        """Asks the model while the session is being taken up. What it answers is shown and said once that is done.

        When another harness was faster, the question is cut off.
        """
        self.answering.prepare()
        if isinstance(action, core.AskModel):
            self._start(ASKING, self._answer())

    async def work(self) -> float | None:
        """Works until the state says to rest; returns until when, if not only until something happens."""
        while True:
            self.span.follow(self.state)
            self.journal.check()
            head, now = self.state.head, self._ports.now()
            decided = core.decide(self.state, now, self._traits)
            action = self._calls.waits.left(decided, head, now, core.times_out(self.state))
            if isinstance(action, core.Rest):
                await self.cancel()
                if action.until is not None and action.until - now <= LINGER_SECONDS:
                    await self._wait(head, max(0.0, action.until - now))
                    continue
                if core.is_answered(self.state, self._traits) and await self._lingered(head):
                    continue
                _log.info("resting", session_id=self.journal.log.session_id, why=action.why)
                return action.until
            if await self._act(action):
                continue
            due = min(filter(None, (core.due(self.state, now), self._calls.waits.due(now))), default=None)
            await self._wait(head, None if due is None else due - now)

    async def _lingered(self, head: int) -> bool:
        """Keeps a session that needs nobody for a while. Tells whether something was said to it."""
        seconds = self._progress.linger()
        if seconds <= 0:
            return False
        self._progress.step(LINGERING)
        self.journal.shelf.clear()
        await self._wait(head, seconds)
        return self.state.head != head

    async def _act(self, action: core.Action) -> bool:
        """Does or starts what was decided. Tells whether it was done at once."""
        match action:
            case core.EndTurn():
                await self.cancel()
                await self.journal.propose(turn_ended(self.state, action, self.journal.epoch))
            case core.FinishCall(call=call, result=result):
                await self.cancel(call.id)
                settled = codec.call_finished(call.id, *await self.journal.shelf.fitted(result))
                await self.journal.propose(settled)  # only proposed: a client's answer may have come before
            case core.AskConfirmation(call=call):
                position = self.state.reply.position if self.state.reply else 0
                await self.journal.propose(codec.confirmation_asked(self.journal.log.session_id, position, call))
            case core.AskClient(call=call, due=due):
                await self.journal.propose(codec.custom_asked(call, due))
            case core.Pause(reached=reached):
                await self.cancel()
                await self.journal.propose(codec.budget_reached(self.journal.epoch, self.state.head, reached))
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
                    self._running[run.call.id] = run
                    self._start(run.call.id, self._calls.run(run))
                self._tell_calls()
                return False
            case core.AskModel():
                self._start(ASKING, self._answer())
                return False
        return True

    def _start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        if key in self._tasks:
            work.close()
            return
        self._progress.step(key)
        self._tasks[key] = asyncio.create_task(work, name=key)

    def _tell_calls(self, *ended: str) -> None:
        """Tells which calls are at work, after some have ended."""
        for key in ended:
            self._running.pop(key, None)
        self._progress.calls([(run.call.id, run.call.name, run.hand) for run in self._running.values()])

    async def _wait(self, head: int, seconds: float | None = None) -> None:
        """Waits until an event came, a task ended or some time has passed. Raises what a task raised."""
        news = asyncio.create_task(self.journal.wait(head))
        try:
            await asyncio.wait({news, *self._tasks.values()}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        stopped = news.exception() if news.done() and not news.cancelled() else None
        for key, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[key]
                self._tell_calls(key)
                task.result()
        if stopped is not None:
            raise stopped

    async def cancel(self, *keys: str) -> None:
        """Stops what is being done, all of it or what these keys name. What hands do goes on, by its ids."""
        await self._stop(keys or tuple(self._tasks))
        if not keys:
            await self.answering.rest()

    async def _stop(self, keys: tuple[str, ...]) -> None:
        stopped = [self._tasks.pop(key) for key in keys if key in self._tasks]
        self._tell_calls(*keys)
        for task in stopped:
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)
        for task in stopped:
            if not task.cancelled():
                task.exception()  # what one of them raised has ended the run; the others' say the same

    async def close(self) -> None:
        """Ends the run: nothing of it goes on in this process."""
        await self.cancel()
        await self.answering.close()
        await self.journal.close()
        self.span.end()

    async def _answer(self) -> None:
        for _ in range(2):
            await asyncio.sleep(0)  # what takes the session up leaves first: the reply waits for it
        await self.answering.answer()

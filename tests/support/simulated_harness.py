"""A harness at work on a simulated log: the shell of `turn/loop.py` with every await a point to stop at.

Each of its tasks is a generator; whoever runs the simulation chooses which one goes on, and whether any does.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import replace

from services.harness.core import (
    CallFinished,
    CallStarted,
    Compacted,
    ConfirmationAsked,
    CustomAsked,
    Detached,
    Ended,
    Offered,
    Other,
    Paused,
    Provisioned,
    Replied,
    Retry,
    ToolCall,
    ToolResult,
    ToolSpec,
    Woke,
)
from services.harness.loops.messages import compaction
from services.harness.loops.messages.policy import DEFAULT
from services.harness.turn import core
from services.harness.turn.state import State, fold
from services.harness.usage import Usage
from services.kit.errors import Conflict, Refused
from tests.support.simulated_log import Choices, Draft, SimulatedLog, draft

SCHEMA = '{"type":"object"}'
OFFERED = ("main__bash", "box__bash", "box__rm", "shop__buy", "shop__look")
TOOLS = (*OFFERED, "ask_user", "ask_soon", "no_such_tool")
_numbers = itertools.count(1)
Steps = Generator[None, None, None]


class Left(Exception):
    """The harness leaves the session: it is fenced, or another one was faster."""


class World:
    """What hands and servers do, which no harness's death changes. `runs` says what ran, each time."""

    def __init__(self, log: SimulatedLog, choices: Choices) -> None:
        self.log = log
        self.choices = choices
        self.runs: list[str] = []
        self.cancelled: set[str] = set()
        self.proxy: set[str] = set()  # what the vault proxy remembers to have run
        self.replies = 0
        self.script = [[TOOLS[choices.pick(len(TOOLS))] for _ in range(choices.pick(4))] for _ in range(4)]

    def execute(self, id: str, epoch: int, sandbox_id: str, attach_only: bool) -> ToolResult:
        """Runs a call. A hand keeps its records; a proxy forgets, and is never asked twice for the same."""
        if epoch < self.log.state.epoch:
            raise Left
        if not sandbox_id and self.choices.pick(4) == 1:
            self.proxy.clear()
        kept = self.proxy if not sandbox_id else set(self.runs) | self.cancelled
        if id not in kept and attach_only:
            return ToolResult("nobody can tell", "UNKNOWN")
        if id in self.cancelled:
            return ToolResult("half", "INTERRUPTED")
        if id not in kept:
            self.runs.append(id)
            self.proxy.add(id)
        return ToolResult("ran")

    def reply(self, read: int) -> tuple[str, tuple[ToolCall, ...]]:
        """Makes up what the model answers: a stop reason, and calls."""
        self.replies += 1
        if self.choices.pick(10) == 9:
            return "pause_turn", ()
        if self.choices.pick(10) == 9:
            return "model_context_window_exceeded", ()
        names = self.script.pop(0) if self.script else ()
        calls = tuple(ToolCall(f"t{self.replies}.{n}", name, "{}") for n, name in enumerate(names))
        return ("tool_use" if calls else "end_turn"), calls


class Harness:
    """One run over the session. `wake_time` is when it wants the session back, once it has ended well."""

    def __init__(self, log: SimulatedLog, world: World) -> None:
        self.log = log
        self.world = world
        self.state = State()
        self.epoch = 0
        self.wake_time: float | None = None
        self.ended = False
        self.tasks: dict[str, Steps] = {}
        self.sent: set[str] = set()
        self.main = self._work()

    def step(self, which: int) -> None:
        """Lets one of its tasks go on to its next await."""
        names = ["", *self.tasks]
        name = names[which % len(names)]
        try:
            next(self.tasks[name] if name else self.main)
        except StopIteration:
            self.ended = self.ended or not name
            self.tasks.pop(name, None)
        except Left:
            self.ended = True

    def read(self, position: int | None = None) -> None:
        """Reads on, all there is or as far as a position."""
        for fact in self.log.facts[self.state.head : position]:
            self.state = fold(self.state, fact)

    def _say(self, *drafts: Draft, expected: int | None = None) -> Generator[None, None, bool]:
        """Appends; the answer may get lost, and is asked for again."""
        yield
        try:
            first = self.log.append(drafts, "harness", self.epoch, expected)
            if self.world.choices.pick(6) == 5:
                yield
                first = self.log.append(drafts, "harness", self.epoch, expected)
        except Conflict as conflict:
            if conflict.reason == "EPOCH_STALE":
                raise Left from None
            self.read()
            return False
        except Refused as refused:
            if refused.reason == "SESSION_ENDED":
                raise Left from None
            if refused.reason != "TOOL_CALL_SETTLED":
                raise
            return False
        yield
        self.read(max(self.state.head, first + len(drafts) - 1))
        return True

    def _say_with(self, one: Draft) -> Steps:
        """Appends a fact together with what is decided because of it; alone when the log has moved on."""
        head = self.state.head
        state = fold(self.state, replace(one.fact, position=head + 1))
        drafts = [one]
        match core.decide(state, self.log.now):
            case core.EndTurn(reason=reason, read=read):
                drafts.append(draft(f"ended-{self.epoch}-{state.head}", Ended(0, reason, read)))
            case core.RunCalls(calls=runs):
                drafts += [self._started(run) for run in runs if run.started is None and run.call.id not in self.tasks]
        if len(drafts) == 1 or not (yield from self._say(*drafts, expected=head)):
            yield from self._say(one)

    def _started(self, run: core.RunCall) -> Draft:
        return draft(f"started-{run.call.id}", CallStarted(0, run.call.id, self.epoch, run.hand, run.sandbox_id))

    def _work(self) -> Steps:
        yield
        self.read()
        action = core.decide(self.state, self.log.now)
        if isinstance(action, core.Rest):
            self.wake_time = action.until
            return
        if not (yield from self._say(draft(f"woke-{next(_numbers)}", Woke(0)), expected=self.state.head)):
            raise Left
        self.epoch = self.state.epoch
        while True:
            yield
            self.read(self.state.head + 1 if self.world.choices.pick(4) == 3 else None)
            if self.state.epoch != self.epoch:
                raise Left
            action = core.decide(self.state, self.log.now)
            if isinstance(action, core.Rest):
                if self.state.head < len(self.log.facts):
                    continue  # it has only not read it yet
                self.tasks.clear()
                self.wake_time = action.until
                return
            yield from self._act(action)

    def _act(self, action: core.Action) -> Steps:
        name = f"{self.epoch}-{self.state.head}"
        head = self.state.head
        match action:
            case core.EndTurn(reason=reason, read=read):
                self.tasks.clear()
                yield from self._say(draft(f"ended-{name}", Ended(0, reason, read)), expected=head)
            case core.FinishCall(call=call, result=result):
                self.tasks.pop(call.id, None)
                yield from self._say(draft(f"finished-{call.id}", CallFinished(0, call.id, result)), expected=head)
            case core.AskConfirmation(call=call):
                asked = ConfirmationAsked(0, call.id, f"hash of {call.id}")
                yield from self._say(draft(f"confirm-{call.id}", asked), expected=head)
            case core.AskClient(call=call, due=due):
                yield from self._say(draft(f"custom-{call.id}", CustomAsked(0, call.id, due)), expected=head)
            case core.Pause(reached=reached):
                self.tasks.clear()
                yield from self._say(draft(f"budget-{name}", Paused(0, reached.budget)), expected=head)
            case core.Settle(calls=calls):
                self.tasks.clear()
                for settled in calls:
                    yield from self._settle(settled.call.id)
            case core.LookUpTools():
                self.tasks.setdefault("tools", self._look_up(action, name))
            case core.RunCalls(calls=runs, provision=hands):
                for hand in hands:
                    self.tasks.setdefault(f"hand {hand}", self._provision(hand))
                for run in runs:
                    self.tasks.setdefault(run.call.id, self._run(run))
            case core.AskModel():
                self.tasks.setdefault("model", self._ask())

    def _settle(self, id: str) -> Steps:
        yield
        if id not in self.world.runs:
            self.world.cancelled.add(id)
        yield from self._say(draft(f"finished-{id}", CallFinished(0, id, ToolResult("stopped", "INTERRUPTED"))))

    def _look_up(self, wanted: core.LookUpTools, name: str) -> Steps:
        yield
        for hand in (*wanted.hands, *wanted.servers):
            failed = self.world.choices.pick(12) == 11
            names = [] if failed else [tool for tool in OFFERED if tool.startswith(f"{hand}__")]
            specs = tuple(ToolSpec(tool, "", SCHEMA) for tool in names)
            yield from self._say(draft(f"offered-{name}-{hand}", Offered(0, hand, specs, failed)))

    def _provision(self, hand: str) -> Steps:
        yield
        generation = self.state.generations.get(hand, 0) + 1
        made = Provisioned(0, hand, f"{hand}/{generation}", generation)
        yield from self._say_with(draft(f"provisioned-{hand}-{generation}", made))

    def _run(self, run: core.RunCall) -> Steps:
        id = run.call.id
        if run.started is None:
            yield from self._say(self._started(run))
        yield
        first = id not in self.sent and (run.started is None or run.started.epoch == self.epoch)
        self.sent.add(id)
        again = not first and not run.sandbox_id
        result = self.world.execute(id, self.epoch, run.sandbox_id, attach_only=again)
        yield
        if run.sandbox_id and self.world.choices.pick(6) == 5:
            result = ToolResult("gone", "GONE")
            yield from self._say(draft(f"detached-{run.sandbox_id}", Detached(0, run.hand, run.sandbox_id)))
        yield from self._say(draft(f"finished-{id}", CallFinished(0, id, result)))

    def _ask(self) -> Steps:
        state = self.state
        yield
        name = f"{self.epoch}-{self.state.head}"
        if self.world.choices.pick(8) == 7:
            attempt = (state.retry.attempt if state.retry else 0) + 1
            if attempt < 3:
                retry = Retry(0, attempt, self.log.now + 20.0)
                yield from self._say(draft(f"retry-{name}", retry))
            else:
                raised = draft(f"error-{name}", Other(0))
                yield from self._say(raised, draft(f"ended-{name}", Ended(0, "FAILED", state.head)))
            return
        possible = compaction.possible(state, DEFAULT)
        called_for = state.retry is not None and state.retry.reason == compaction.FULL
        if possible and (called_for or self.world.choices.pick(6) == 5):
            summary = Compacted(0, compaction.end_of(state), "[]", Usage(10, 10, 10, 10, 100))
            yield from self._say(draft(f"compacted-{name}", summary))
            return
        stop_reason, calls = self.world.reply(state.head)
        reply = Replied(0, "[]", stop_reason, state.head, calls, Usage(10, 10, 10, 10, 100))
        if stop_reason == "model_context_window_exceeded" and possible:
            said, again = draft(f"reply-{self.epoch}-{state.head}", reply), Retry(0, 1, self.log.now, compaction.FULL)
            if not (yield from self._say(said, draft(f"retry-{name}", again), expected=self.state.head)):
                yield from self._say(said)
            return
        yield from self._say_with(draft(f"reply-{self.epoch}-{state.head}", reply))

"""What every harness type must do, as numbered checks against `HarnessType`. Longer than a module should be: it is one
list.

A check gets a `Stand` and knows nothing of the type. What a type has no use for is not asked of it: such a check raises
`NotAsked`. A type of your own, from anywhere:

    python -m services.harness.conformance package.module
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from handmesh.sandbox.v1.tool_pb2 import TOOL_OUTCOME_OK, ToolResult
from handmesh.session.v1.config_pb2 import (
    TOOL_POLICY_ACTION_ASK,
    TOOL_POLICY_ACTION_DENY,
    Budgets,
    CustomTool,
    SessionConfig,
    ToolPolicy,
)
from handmesh.session.v1.event_pb2 import (
    TURN_END_REASON_DONE,
    CustomToolAnswered,
    Event,
    HarnessWoke,
    ModelReplied,
    SessionEnded,
    ToolConfirmed,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnEndReason,
)
from services.harness.adapters.codec import calls_of
from services.harness.adapters.memory import MemoryLog
from services.harness.ports import ASKING, HarnessType, ModelFailure, Ports
from services.harness.rehearsal import Life, RehearsedLog, World, interrupt, message, moved, stranger
from services.harness.turn.traits import Traits
from services.kit.errors import Conflict

SECONDS = 30.0  # of one story, restarts included
MAX_LIVES = 40  # of one story
INSTANCE = "rehearsal"
HAND = "main"  # the one that a session has which names none


class NotAsked(Exception):
    """The type has no use for what the check is about."""


@dataclass(frozen=True)
class Stand:
    """A type to check. `open` makes it anew, as a process does that starts, for the ports that it will be given.

    A type that reaches its model by another way than `Ports.model` lets `open` lead that way to it. `tools` tells
    whether it uses any. Every `step`-th moment of a story is struck: more than 1 for a type that is slow.
    """

    name: str
    open: Callable[[Ports], AbstractAsyncContextManager[HarnessType]]
    tools: bool = True
    step: int = 1

    def config(self, **fields: object) -> SessionConfig:
        """Makes a configuration of a session of this type."""
        return SessionConfig(harness=self.name, **fields)  # type: ignore[arg-type]

    def talk(self, told: int, times: int) -> tuple[str, tuple[str, ...]]:
        """Lets the model call two tools at once first, where there are any, and then say something."""
        return ("both", ("bash", "bash")) if self.tools and not told else (f"answer {told}", ())

    def world(self, *events: Event, config: SessionConfig | None = None) -> World:
        """Makes a world with a session, which begins with a message if nothing else is said."""
        return World(MemoryLog(config or self.config(), *(events or (message("hello", "m1"),))), self.talk)


def stand_of(place: str) -> Stand:
    """Returns the stand of the type in a module.

    A package that needs more than its ports has a module `rehearsed` in it, with `stand() -> Stand`. Raises
    NotAvailable.
    """
    module = importlib.import_module(place)
    if hasattr(module, "__path__") and importlib.util.find_spec(f"{place}.rehearsed") is not None:
        made: Stand = importlib.import_module(f"{place}.rehearsed").stand()
        return made
    traits = getattr(module, "TRAITS", Traits(place.rpartition(".")[2]))
    return Stand(traits.name, lambda ports: nullcontext(module.make(None)), traits.tools)


# --- harnesses that live and die ---


async def live(stand: Stand, world: World, life: Life) -> bool:
    """Runs one harness to its end. Tells whether it has left the session because there was nothing more to do."""

    async def run() -> float | None:
        ports = world.ports(life)
        async with stand.open(ports) as kind:
            return await kind.run(RehearsedLog(world.log, life), ports, INSTANCE, life)

    before = asyncio.all_tasks()
    life.run = asyncio.create_task(run(), name="run")
    await asyncio.wait({life.run}, timeout=SECONDS)
    assert life.run.done(), f"it does not come to rest: {world.log.kinds()}"
    left = asyncio.all_tasks() - before - set(world.executions.values())
    if life.over:
        await _bury(left)
        return False
    assert not left, f"it has left tasks behind: {left}"
    if life.run.cancelled():
        return False
    try:
        return life.run.result() is None
    except Conflict:
        return False  # another harness was faster


async def _bury(tasks: set[asyncio.Task[Any]]) -> None:
    """Ends what a process had in hand that was killed."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def settle(stand: Stand, world: World, *lives: Life) -> None:
    """Runs these lives, one after the other, and then as many as it takes until the session rests."""
    for life in (*lives, *(Life() for _ in range(MAX_LIVES))):
        if await live(stand, world, life):
            return
    raise AssertionError(f"it does not come to rest: {world.log.kinds()}")


async def moments(stand: Stand, make: Callable[[], World]) -> range:
    """Returns the moments at which a harness can be struck in a world's first run."""
    life = Life()
    world = make()
    assert await live(stand, world, life)
    hold(stand, world)
    return range(1, life.moments + 1, stand.step)


def hold(stand: Stand, world: World, lost: int = 0) -> None:
    """Holds a log that has come to rest, and its world, to what must be true. `lost`: answers that may be lost."""
    log = world.log
    calls = [call.id for reply in log.only("model_replied") for call in calls_of(reply.content_json, "")]
    finished = [it.tool_use_id for it in log.only("tool_finished")]
    assert sorted(finished) == sorted(calls), "every call has one result"
    started = [it.tool_use_id for it in log.only("tool_started")]
    assert len(set(started)) == len(started) and set(started) <= set(calls), "a call starts once"
    assert not world.unannounced, f"these ran before the log knew of them: {world.unannounced}"
    assert len(set(world.ran)) == len(world.ran), f"a call ran twice: {world.ran}"
    here = {it.tool_use_id for it in log.only("tool_started") if it.hand == HAND}
    done = {it.tool_use_id for it in log.only("tool_finished") if it.result.outcome == TOOL_OUTCOME_OK}
    assert done & here <= set(world.ran), "what is said to have run ran"
    messages = [event.position for event in log.events if event.HasField("message_received")]
    assert max(it.read_position for it in log.only("turn_ended")) >= messages[-1], "every message is dealt with"
    assert len(world.asked) <= len(log.only("model_replied")) + lost, "an answer that is in the log is not asked again"
    assert {it.harness for it in log.only("harness_woke") if it.instance == INSTANCE} <= {stand.name}
    _hold_epochs(log)


def _hold_epochs(log: MemoryLog) -> None:
    epoch = 0
    for event in log.events:
        if event.HasField("harness_woke"):
            epoch = event.position
        elif event.epoch:
            assert event.epoch == epoch, f"{event.position} was written under an old epoch"


def ends(log: MemoryLog) -> list[str]:
    """Names how the turns ended."""
    return [TurnEndReason.Name(it.reason).removeprefix("TURN_END_REASON_") for it in log.only("turn_ended")]


# --- the checks ---


async def check_01_it_answers_a_message(stand: Stand) -> None:
    """One harness, one turn: it says that it woke, under its name, answers, and ends the turn as done."""
    world, life = stand.world(), Life()
    await settle(stand, world, life)
    hold(stand, world)
    assert life.epochs == [3] and ends(world.log) == ["DONE"]
    assert world.log.only("harness_woke")[0].harness == stand.name
    assert world.log.only("model_replied")


async def check_02_it_leaves_alone_what_needs_nobody(stand: Stand) -> None:
    """A session whose messages are answered, and one that has ended, are left without a word."""
    world = stand.world()
    await settle(stand, world)
    for event in (None, Event(event_id="end", session_ended=SessionEnded())):
        if event is not None:
            await world.log.add(message("too late", "m2"), event)
        before, life = len(world.log.events), Life()
        assert await live(stand, world, life)
        assert len(world.log.events) == before and life.epochs == []


async def check_03_it_goes_on_where_another_one_left(stand: Stand) -> None:
    """The next message is answered by another process, which knows the log and nothing else."""
    world = stand.world()
    await settle(stand, world)
    await world.log.add(message("and now?", "m2"))
    await settle(stand, world)
    hold(stand, world)
    assert ends(world.log) == ["DONE", "DONE"]


async def check_04_it_loses_no_message(stand: Stand) -> None:
    """A message is dealt with, whatever the harness does when it comes."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        await settle(stand, world, Life(moment, partial(world.log.add, message("more", "m2"))))
        hold(stand, world, lost=1)


async def check_05_it_may_die_anywhere(stand: Stand) -> None:
    """Killed around any of its calls, it is followed by another one: nothing is lost and nothing is done twice."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        await settle(stand, world, Life(moment))
        hold(stand, world, lost=1)
        assert ends(world.log) == ["DONE"]


async def check_06_it_may_die_again(stand: Stand) -> None:
    """So is one that is killed while it takes up what a dead one has left."""
    whole = await moments(stand, stand.world)
    for first, second in itertools.product(whole[:: max(1, len(whole) // 8)], repeat=2):
        world = stand.world()
        await settle(stand, world, Life(first), Life(second))
        hold(stand, world, lost=2)
        assert ends(world.log) == ["DONE"]


async def check_07_it_uses_tools(stand: Stand) -> None:
    """Calls of one answer run side by side, each once, after the log has said so."""
    if not stand.tools:
        raise NotAsked("it uses no tools")
    world = stand.world()
    world.hold_tools = asyncio.Event()
    running = asyncio.create_task(settle(stand, world))
    async with asyncio.timeout(SECONDS):
        await world.both_running.wait()
    world.hold_tools.set()
    await running
    hold(stand, world)
    assert len(world.ran) == 2


async def check_08_an_interrupt_stops_the_model(stand: Stand) -> None:
    """The turn ends at once, as interrupted and without an answer; the next message is answered."""
    world = stand.world()
    world.hold_model = asyncio.Event()
    running = asyncio.create_task(settle(stand, world))
    asked = asyncio.create_task(world.model_asked.wait())
    await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS)
    asked.cancel()
    if running.done():
        raise NotAsked("it asks no model")
    await world.log.add(interrupt())
    await running
    assert ends(world.log) == ["INTERRUPTED"] and not world.log.only("model_replied")
    world.hold_model = None
    await world.log.add(message("again", "m2"))
    await settle(stand, world)
    hold(stand, world, lost=1)
    assert ends(world.log) == ["INTERRUPTED", "DONE"]


async def check_09_an_interrupt_stops_calls(stand: Stand) -> None:
    """What runs is cancelled, every call gets a result, and the turn ends without another question to the model."""
    if not stand.tools:
        raise NotAsked("it uses no tools")
    world = stand.world()
    world.hold_tools = asyncio.Event()
    running = asyncio.create_task(settle(stand, world))
    async with asyncio.timeout(SECONDS):
        await world.tool_running.wait()
    await world.log.add(interrupt())
    await running
    hold(stand, world)
    assert ends(world.log) == ["INTERRUPTED"] and len(world.asked) == 1
    assert set(world.ran) <= world.cancelled


async def check_10_an_interrupt_may_come_at_any_moment(stand: Stand) -> None:
    """The turn ends, as interrupted or as it was about to, and the next message is answered."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        await settle(stand, world, Life(moment, partial(world.log.add, interrupt())))
        await world.log.add(message("again", "m2"))
        await settle(stand, world)
        hold(stand, world, lost=1)
        assert ends(world.log)[0] in ("INTERRUPTED", "DONE") and ends(world.log)[-1] == "DONE"


async def check_11_a_fenced_harness_stops(stand: Stand) -> None:
    """Once another harness has the session it says and does nothing more, whatever it was about to do."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        life = Life(moment, partial(world.log.add, stranger()))
        await live(stand, world, life)
        assert world.log.kinds()[-1] != "harness_woke" or world.log.events[-1].event_id == "stranger" or life.epochs
        await settle(stand, world)
        hold(stand, world, lost=2)
        assert ends(world.log)[-1] == "DONE"


async def check_12_it_keeps_to_a_budget(stand: Stand) -> None:
    """With its turns used up the session pauses without an answer, and goes on once it may have more."""
    world = stand.world(config=stand.config(budgets=Budgets(max_turns=1)))
    await settle(stand, world)
    await world.log.add(message("more", "m2"))
    await settle(stand, world)
    assert ends(world.log) == ["DONE"] and [it.budget for it in world.log.only("budget_reached")] == ["max_turns"]
    before = len(world.log.events)
    await settle(stand, world)
    assert len(world.log.events) == before
    await world.log.add(moved(stand.config(budgets=Budgets(max_turns=2)), "raised"))
    await settle(stand, world)
    hold(stand, world)
    assert ends(world.log) == ["DONE", "DONE"]


async def check_13_it_says_when_the_model_fails(stand: Stand) -> None:
    """What cannot help is not tried again: the log has the reason, and the turn ends as failed."""
    world = stand.world()
    world.turns = lambda told, times: ModelFailure("MODEL_KEY_REFUSED", "no such key", retryable=False)
    await settle(stand, world)
    if not world.asked:
        raise NotAsked("it asks no model")
    assert ends(world.log) == ["FAILED"] and len(world.asked) == 1
    assert [it.reason for it in world.log.only("error_raised")] == ["MODEL_KEY_REFUSED"]


async def check_14_it_tries_a_model_again(stand: Stand) -> None:
    """A failure that passes is told as a retry, and the answer comes."""
    world = stand.world()
    world.turns = lambda told, times: (
        ModelFailure("MODEL_OVERLOADED", "too much to do", retryable=True) if times == 1 else stand.talk(told, times)
    )
    await settle(stand, world)
    if not world.asked:
        raise NotAsked("it asks no model")
    assert world.log.only("retry_scheduled") and ends(world.log) == ["DONE"]
    hold(stand, world, lost=len(world.log.only("retry_scheduled")))


async def check_15_a_session_that_moved_away(stand: Stand) -> None:
    """A session of another type is left alone, also when it becomes one while it is taken up."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        other = SessionConfig(harness="another")
        await live(stand, world, Life(moment, partial(world.log.add, moved(other, "away"))))
        assert await live(stand, world, Life())
        before, life = len(world.log.events), Life()
        await world.log.add(message("for another", "m2"))
        assert await live(stand, world, life)
        assert len(world.log.events) == before + 1 and not life.epochs
        await world.log.add(moved(stand.config(), "back"))
        await settle(stand, world)
        hold(stand, world, lost=1)


async def check_16_a_session_that_moved_here(stand: Stand) -> None:
    """What another type has left is part of the log: the next message is answered, whatever that log holds."""
    world = stand.world(*_of_another_type(), config=SessionConfig(harness="another"))
    await world.log.add(moved(stand.config(), "here"))
    await settle(stand, world)
    assert len(world.log.only("turn_ended")) == 1
    await world.log.add(message("and you?", "m2"))
    await settle(stand, world)
    hold(stand, world, lost=1)
    assert ends(world.log) == ["DONE", "DONE"]


async def check_17_it_can_be_sent_away(stand: Stand) -> None:
    """A process that ends cancels its runs: each stops at once and for good, and another one goes on."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        life = Life(moment, lambda: _cancel(life))  # noqa: B023  # it is this life's own
        await live(stand, world, life)
        before = life.moments
        for _ in range(10):
            await asyncio.sleep(0)
        assert life.moments == before, "it goes on after its end"
        await settle(stand, world)
        hold(stand, world, lost=1)


async def check_18_it_says_when_it_asks_the_model(stand: Stand) -> None:
    """The step in which the model is asked is told: whoever sends the harness away lets it end first."""
    world, life = stand.world(), Life()
    await settle(stand, world, life)
    if not world.asked:
        raise NotAsked("it asks no model")
    assert ASKING in life.steps


async def check_19_what_it_shows_comes_or_is_taken_back(stand: Stand) -> None:
    """Every preview names an event that is in the log in the end, or that is said not to come."""
    for moment in await moments(stand, stand.world):
        world = stand.world()
        await settle(stand, world, Life(moment, partial(world.log.add, interrupt())))
        there = {event.event_id for event in world.log.events}
        gone = {preview.event_id for preview in world.log.shown if preview.discarded}
        assert {preview.event_id for preview in world.log.shown} <= there | gone


async def check_20_a_person_decides(stand: Stand) -> None:
    """A call that the policy asks about waits for the answer, over the death of whoever asked; a refused one never
    runs, and one that a policy forbids neither."""
    if not stand.tools:
        raise NotAsked("it uses no tools")
    for action, allowed in (
        (TOOL_POLICY_ACTION_ASK, True),
        (TOOL_POLICY_ACTION_ASK, False),
        (TOOL_POLICY_ACTION_DENY, False),
    ):
        world = stand.world(config=stand.config(tool_policies=[ToolPolicy(pattern="bash", action=action)]))
        await settle(stand, world)
        asked = world.log.only("tool_confirmation_requested")
        assert not world.ran and len(asked) == (2 if action == TOOL_POLICY_ACTION_ASK else 0)
        await settle(stand, world)  # nobody has decided: another one finds nothing to do
        for number, it in enumerate(asked):
            verdict = ToolConfirmed(tool_use_id=it.tool_use_id, allowed=allowed, call_hash=it.call_hash)
            await world.log.add(Event(event_id=f"verdict-{number}", tool_confirmed=verdict))
        await settle(stand, world)
        hold(stand, world)
        assert len(world.log.only("tool_confirmation_requested")) == len(asked)
        assert len(world.ran) == (2 if allowed else 0) and ends(world.log) == ["DONE"]


async def check_21_a_client_runs_its_own_tools(stand: Stand) -> None:
    """A call of a client's tool is handed to it once, and its answer is the call's result."""
    if not stand.tools:
        raise NotAsked("it uses no tools")
    tool = CustomTool(name="colour", description="A colour.", input_schema_json='{"type":"object"}')
    world = stand.world(config=stand.config(custom_tools=[tool]))
    world.turns = lambda told, times: ("seen", ()) if told else ("look", ("colour",))
    for moment in (2, 4, 6, 8, 10):
        await live(stand, world, Life(moment * stand.step))
    await settle(stand, world)
    (asked,) = world.log.only("custom_tool_requested")
    assert not world.log.only("tool_finished")
    result = ToolResult(output="blue", outcome=TOOL_OUTCOME_OK)
    await world.log.add(
        Event(event_id="mine", custom_tool_answered=CustomToolAnswered(tool_use_id=asked.tool_use_id, result=result))
    )
    await settle(stand, world)
    assert [it.result.output for it in world.log.only("tool_finished")] == ["blue"]
    assert not world.ran and ends(world.log) == ["DONE"]


async def check_22_it_keeps_to_a_budget_of_calls(stand: Stand) -> None:
    """Calls beyond the budget wait, and run once there may be more."""
    if not stand.tools:
        raise NotAsked("it uses no tools")
    world = stand.world(config=stand.config(budgets=Budgets(max_tool_calls=1)))
    await settle(stand, world)
    assert len(world.ran) == 1 and [it.budget for it in world.log.only("budget_reached")] == ["max_tool_calls"]
    await world.log.add(moved(stand.config(budgets=Budgets(max_tool_calls=2)), "raised"))
    await settle(stand, world)
    hold(stand, world)
    assert len(world.ran) == 2 and ends(world.log) == ["DONE"]


async def _cancel(life: Life) -> None:
    assert life.run is not None
    life.run.cancel()


def _of_another_type() -> Iterator[Event]:
    """Yields a whole turn with thinking, two answers in a row and a tool that is not offered any more."""
    yield message("hello", "m1")
    yield Event(event_id="old", harness_woke=HarnessWoke(harness="another", instance="gone"))
    call = {"type": "tool_use", "id": "old-1", "name": "its_own", "input": {}}
    for number, blocks in enumerate(([{"type": "text", "text": "first"}, call], [{"type": "text", "text": "second"}])):
        reply = ModelReplied(
            content_json=json.dumps(blocks), stop_reason="tool_use" if not number else "end_turn", read_position=3
        )
        yield Event(event_id=f"old-reply-{number}", model_replied=reply)
        if not number:
            yield Event(
                event_id="old-started", tool_started=ToolStarted(tool_use_id="old-1", name="its_own", hand="its_hand")
            )
            result = ToolResult(output="done", outcome=TOOL_OUTCOME_OK)
            yield Event(event_id="old-finished", tool_finished=ToolFinished(tool_use_id="old-1", result=result))
    yield Event(event_id="old-ended", turn_ended=TurnEnded(reason=TURN_END_REASON_DONE, read_position=7))


CHECKS: tuple[Callable[[Stand], Awaitable[None]], ...] = tuple(
    check for name, check in sorted(globals().items()) if name.startswith("check_")
)


async def _report(place: str) -> int:
    """Runs all checks on a type, says what came of each, and returns how many failed."""
    stand, failed = stand_of(place), 0
    for check in CHECKS:
        try:
            await check(stand)
            said = "ok"
        except NotAsked as reason:
            said = f"not asked: {reason}"
        except AssertionError as problem:
            failed, said = failed + 1, f"FAILED: {problem}"
        sys.stdout.write(f"{check.__name__.removeprefix('check_')}: {said}\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, asyncio.run(_report(sys.argv[1]))))

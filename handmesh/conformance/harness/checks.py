"""What every harness has to do, as numbered checks. Each gets a `Subject` and raises FailedError, or TimeoutError.

A check speaks to a session as any client would, then looks at its log. `Subject.story` looks at what holds for all
logs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from handmesh.conformance.checking import Check, FailedError, SkippedError, expect
from handmesh.conformance.harness.rules import calls_of, kind_of, only
from handmesh.conformance.harness.subject import Story, Subject
from handmesh.sandbox.v1.tool_pb2 import (
    TOOL_OUTCOME_GONE,
    TOOL_OUTCOME_INTERRUPTED,
    TOOL_OUTCOME_OK,
    TOOL_OUTCOME_TOOL_ERROR,
    ToolOutcome,
)
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import TURN_END_REASON_DONE, TURN_END_REASON_INTERRUPTED, Event, TurnEndReason
from handmesh.session.v1.session_pb2 import SESSION_STATUS_IDLE, SessionStatus

COUNT = "echo run >> runs; cat runs"
SLOW_COUNT = "echo run >> runs; sleep 0.4; cat runs"
ENDLESS = "echo begun; sleep 600"
FAILING = "echo no >&2; exit 7"
AGAIN = "echo again >> again; cat again"

SIDE_BY_SIDE = 5  # sessions
MOST_KILLS = 12  # a turn with more events is killed at the first ones


async def answers(subject: Subject) -> None:
    """A message is answered, and the turn says what it has read."""
    async with subject.story() as story:
        position = await story.send(subject.words.plain)
        end = await story.answered(position)
        _ended(end, TURN_END_REASON_DONE)
        expect(bool(only(story.events, "model_replied")), "the turn ended without a reply")
        await _idle(story)


async def runs_a_tool(subject: Subject) -> None:
    """A call is said before it runs, runs once in the session's hand, and has one result, which is answered."""
    async with subject.story() as story:
        await _turn(story, subject.words.run(COUNT))
        _result(story.events, TOOL_OUTCOME_OK, "run")
        order = [kind for kind in map(kind_of, story.events) if kind in _STEPS]
        expect(order == list(_STEPS), f"the steps of the call were {', '.join(order)}")


_STEPS = ("tools_offered", "tool_started", "tool_finished", "turn_ended")


async def keeps_its_hand(subject: Subject) -> None:
    """The next turn finds what the one before has left in the hand."""
    async with subject.story() as story:
        await _turn(story, subject.words.run(COUNT))
        await _turn(story, subject.words.run(COUNT))
        _result(story.events, TOOL_OUTCOME_OK, "run\nrun")
        made = len(only(story.events, "sandbox_provisioned"))
        expect(made == 1, f"{made} sandboxes were made, and one does")


async def says_what_failed(subject: Subject) -> None:
    """A tool that fails is a result, and no failure of the turn."""
    async with subject.story() as story:
        _ended(await _turn(story, subject.words.run(FAILING)), TURN_END_REASON_DONE)
        _result(story.events, TOOL_OUTCOME_TOOL_ERROR)


async def hears_what_comes_meanwhile(subject: Subject) -> None:
    """A message that comes while a tool runs is answered, too."""
    async with subject.story() as story:
        await story.send(subject.words.run(SLOW_COUNT))
        await story.kind("tool_started")
        position = await story.send(subject.words.plain)
        await story.answered(position)
        _result(story.events, TOOL_OUTCOME_OK, "run")
        await _idle(story)


async def obeys_an_interrupt(subject: Subject) -> None:
    """An interrupt ends what runs and the turn at once; the next message is answered."""
    async with subject.story() as story:
        await story.send(subject.words.run(ENDLESS))
        await story.kind("tool_started")
        interrupt = await story.session.interrupt()
        end = await story.answered(interrupt)
        _ended(end, TURN_END_REASON_INTERRUPTED)
        expect(end.turn_ended.read_position == interrupt, f"it read {end.turn_ended.read_position}, not {interrupt}")
        _result(story.events, TOOL_OUTCOME_INTERRUPTED)
        position = await story.send(subject.words.plain)
        _ended(await story.answered(position), TURN_END_REASON_DONE)


async def survives_its_hand(subject: Subject) -> None:
    """When the sandbox is gone the call says so, and the next call gets another one."""
    async with subject.story() as story:
        await _turn(story, subject.words.run(COUNT))
        sandbox = only(story.events, "sandbox_provisioned")[-1].sandbox_provisioned
        await subject.client.release(sandbox.sandbox_id)
        await _turn(story, subject.words.run(COUNT))
        if only(story.events, "tool_finished")[-1].tool_finished.result.outcome == TOOL_OUTCOME_GONE:
            await _turn(story, subject.words.run(COUNT))
        _result(story.events, TOOL_OUTCOME_OK, "run")
        generation = only(story.events, "sandbox_provisioned")[-1].sandbox_provisioned.generation
        expect(generation == sandbox.generation + 1, f"the next sandbox is of generation {generation}")


async def works_side_by_side(subject: Subject) -> None:
    """Sessions do not wait for each other: one with an endless tool holds up none of the others."""
    async with subject.story() as slow:
        await slow.send(subject.words.run(ENDLESS))
        await slow.kind("tool_started")
        async with asyncio.TaskGroup() as group:
            for _ in range(SIDE_BY_SIDE):
                group.create_task(answers(subject))
        interrupt = await slow.session.interrupt()
        await slow.answered(interrupt)


async def survives_the_end(subject: Subject) -> None:
    """A session that is ended in the middle of a call stays as it is, and the harness goes on with others."""
    story = Story(await subject.client.create_session(SessionConfig(harness=subject.harness)))
    await story.send(subject.words.run(ENDLESS))
    await story.kind("tool_started")
    await story.session.end("checked")
    end = await story.kind("session_ended")
    await answers(subject)
    log = [event async for event in story.session.events()]
    expect(log[-1].position == end.position, f"{kind_of(log[-1])} follows the session's end")
    expect(subject.worker.lives(), "the harness ended")


async def gives_way(subject: Subject) -> None:
    """When another harness takes the session up in the middle of a call, this one stops. Offered the session again, it
    takes it up anew and asks for what runs already: the call runs once."""
    if subject.rival is None:
        raise SkippedError("needs a harness's certificate, for a rival (--tls)")
    async with subject.story() as story:
        position = await story.send(subject.words.run(SLOW_COUNT))
        started = await story.kind("tool_started")
        rival = await subject.rival.take(story.session, subject.harness)
        await story.answered(position)
        late = [event for event in story.events[rival:] if event.emitter == "harness" and event.epoch < rival]
        expect(not late, "it speaks under its old epoch")
        expect(started.epoch < rival < story.events[-1].epoch, "it has not taken the session up anew")
        _result(story.events, TOOL_OUTCOME_OK, "run")


async def survives_kills(subject: Subject) -> None:
    """Killed with SIGKILL behind each event of a turn, and started again: every call runs once and is answered."""
    if not subject.worker.can_be_killed:
        raise SkippedError("needs the command that starts it (--command)")
    async with subject.story() as story:
        await _turn(story, subject.words.run(SLOW_COUNT))
        steps = sum(event.emitter == "harness" for event in story.events)
    for step in range(1, min(steps, MOST_KILLS)):
        await _killed(subject, step)
    await _killed_while_it_rests(subject)


async def _killed(subject: Subject, step: int) -> None:
    def enough(events: Sequence[Event]) -> bool:
        return sum(event.emitter == "harness" for event in events) >= step

    async with subject.story() as story:
        position = await story.send(subject.words.run(SLOW_COUNT))
        await story.until(enough)
        at = f"killed behind {kind_of(story.events[-1])}"
        await subject.worker.kill()
        await subject.worker.start()
        try:
            await story.answered(position)
            _result(story.events, TOOL_OUTCOME_OK, "run")
        except (FailedError, TimeoutError) as problem:
            raise FailedError(f"{at}: {problem or 'the turn does not end'}") from None


async def _killed_while_it_rests(subject: Subject) -> None:
    async with subject.story() as story:
        await _turn(story, subject.words.run(COUNT))
        await subject.worker.kill()
        position = await story.send(subject.words.run(AGAIN))
        await subject.worker.start()
        await story.answered(position)
        _result(story.events, TOOL_OUTCOME_OK, "again")


async def _turn(story: Story, text: str) -> Event:
    return await story.answered(await story.send(text))


async def _idle(story: Story) -> None:
    status = (await story.session.get()).status
    expect(status == SESSION_STATUS_IDLE, f"the session is {SessionStatus.Name(status)} after its turn")


def _ended(end: Event, reason: TurnEndReason.ValueType) -> None:
    seen = end.turn_ended.reason
    expect(seen == reason, f"the turn ended as {TurnEndReason.Name(seen)}, not {TurnEndReason.Name(reason)}")


def _result(events: Sequence[Event], outcome: ToolOutcome.ValueType, output: str | None = None) -> None:
    """Looks at the last call's result."""
    calls = [call for reply in only(events, "model_replied") for call in calls_of(reply)]
    expect(bool(calls), "no tool was called: does it understand --call?")
    results = {event.tool_finished.tool_use_id: event.tool_finished.result for event in only(events, "tool_finished")}
    expect(calls[-1] in results, f"the call {calls[-1]} has no result")
    result = results[calls[-1]]
    expect(result.outcome == outcome, f"the call came to {ToolOutcome.Name(result.outcome)}: {result.output[:200]}")
    if output is not None:
        expect(result.output == output, f"the call said {json.dumps(result.output[:200])}, not {json.dumps(output)}")


CHECKS: list[Check[Subject]] = [
    Check("a message is answered", answers),
    Check("a tool is called, once", runs_a_tool),
    Check("the hand is kept from turn to turn", keeps_its_hand),
    Check("a tool that fails is a result", says_what_failed),
    Check("a message that comes meanwhile is answered", hears_what_comes_meanwhile),
    Check("an interrupt is obeyed", obeys_an_interrupt),
    Check("a sandbox that is gone is made anew", survives_its_hand),
    Check("sessions do not wait for each other", works_side_by_side),
    Check("a session's end in the middle is survived", survives_the_end),
    Check("another harness's claim is obeyed", gives_way),
    Check("kill -9 behind each event costs nothing", survives_kills, times=10),
]

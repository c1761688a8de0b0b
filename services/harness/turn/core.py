"""Decides what happens next: `decide(state, now) -> Action`. Reads, does nothing.

The log's order is not the order of cause: a message can land while the model still answers the one before. So a
reply and the end of a turn say what they had read (`read`), and everything here compares positions with that.

Each answer needs to be right only for the log as it is: it is asked for again after every event. A crash between
two answers loses nothing, since the next harness folds the same log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from services.harness.core import CallStarted, EndReason, ToolCall, ToolResult, ToolSpec
from services.harness.turn.budgets import before_any_step, before_asking, before_calling, runs_out
from services.harness.turn.policies import declined, no_tool, policy_for, route_of, routes_of
from services.harness.turn.state import Call, State
from services.harness.turn.traits import USUAL, Traits
from services.harness.usage import Reached

_NOT_RUN = "This call did not run: the answer broke off inside it, or its input is no JSON object."
MAX_MODEL_CALLS_PER_TURN = 200  # when the session's budgets name no other


# --- what to do next ---
@dataclass(frozen=True, slots=True)
class EndTurn:
    """Emit TurnEnded. `read` is what the turn dealt with."""

    reason: EndReason
    read: int


@dataclass(frozen=True, slots=True)
class FinishCall:
    """Emit a result that no hand is asked for."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class AskConfirmation:
    """Emit ToolConfirmationRequested."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class AskClient:
    """Emit CustomToolRequested. `due` is when the call times out (Unix time, seconds)."""

    call: ToolCall
    due: float | None = None


@dataclass(frozen=True, slots=True)
class LookUpTools:
    """Ask hands (the mesh itself is among them) and servers for their tools, and emit ToolsOffered for each."""

    hands: tuple[str, ...]
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunCall:
    """Send a call to its hand, or again to the hand that has it already (`started`)."""

    call: ToolCall
    hand: str
    tool: str
    spec: ToolSpec
    sandbox_id: str
    started: CallStarted | None


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run these calls, and make a sandbox for each hand that other calls wait for, all at once.

    So a hand that is slow to come, or never comes, holds up no call of another one.
    """

    calls: tuple[RunCall, ...]
    provision: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settle:
    """Cancel these calls, which hands have, and emit a result for each."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the model, with everything up to `read`."""

    read: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Emit BudgetReached. What hands do goes on meanwhile."""

    reached: Reached


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do until something else happens, or until a time (Unix time, seconds)."""

    why: str
    until: float | None = None


Deed = AskConfirmation | AskClient | LookUpTools | RunCalls | AskModel  # what a budget may stand in the way of
Action = Deed | EndTurn | FinishCall | Settle | Pause | Rest
ACTIONS: tuple[type[Action], ...] = get_args(Action)


def decide(state: State, now: float, traits: Traits = USUAL) -> Action:
    """Says what a type does next, from what the log says alone. `now` (Unix time, seconds) is for what has become due.

    A session of another type is left to that type's harnesses.
    """
    if state.unknown:
        return Rest(f"the log holds an event of kind {state.unknown}, which this harness does not know")
    if state.over:
        return Rest("the session has ended")
    waiting = tuple(call for call in state.calls.values() if call.result is None)
    if state.interrupt:
        return _stop(state, waiting)
    if state.paused:
        return Rest(f"the budget {state.paused} is used up")
    if not state.turn_open:
        return Rest("every message is answered")
    if state.config.harness != traits.name:
        return Rest(f"the session is a {state.config.harness} one now")
    action = _advance(state, waiting, now) if waiting else _answer(state, now, traits)
    reached = before_any_step(state, now) if isinstance(action, Deed) else None
    return action if reached is None else Pause(reached)


def is_answered(state: State, traits: Traits = USUAL) -> bool:
    """Tells whether only a message is missing for a harness of a type to go on."""
    elsewhere = state.unknown or state.over or state.paused or state.config.harness != traits.name
    return not (elsewhere or state.turn_open)


def running(action: Action) -> tuple[ToolCall, ...]:
    """Returns the calls that hands are asked for by an action."""
    return tuple(run.call for run in action.calls) if isinstance(action, RunCalls) else ()


def due(state: State, now: float) -> float | None:
    """Returns the next moment after `now` at which `decide` may say something else though nothing has happened."""
    times = [runs_out(state), state.retry.at if state.retry else None, times_out(state)]
    return min((time for time in times if time is not None and time > now), default=None)


def times_out(state: State) -> float | None:
    """Returns the moment at which the first call ends that a client has not answered, if any has an end."""
    handed_out = (call.handed_out for call in state.calls.values() if call.result is None)
    return min((asked.due for asked in handed_out if asked is not None and asked.due is not None), default=None)


def _stop(state: State, waiting: tuple[Call, ...]) -> Action:
    """The turn was interrupted: settle what is open, then end it."""
    running = tuple(call for call in waiting if call.started)
    if running:
        return Settle(running)
    for call in waiting:
        told = ToolResult("The turn was interrupted before this call ran.", "INTERRUPTED")
        return FinishCall(call.call, call.answer or told)
    return EndTurn("INTERRUPTED", state.interrupt)


def _answer(state: State, now: float, traits: Traits) -> Action:
    """All calls are settled and a message is unanswered or being answered: ask, or end the turn."""
    reply = state.reply
    read = reply.read if reply else 0
    refused = reply is not None and reply.stop_reason == "refusal"  # then nobody reads what its calls came to
    newest = max((state.message, *(0 if refused else call.finished_at for call in state.calls.values())))
    goes_on = reply is None or reply.stop_reason == "pause_turn" or state.retry is not None or traits.goes_on(state)
    if newest <= read and reply is not None and not goes_on:
        return EndTurn(_reason(reply.stop_reason), state.head)
    if not state.config.budgets.max_model_calls_per_turn and state.used.model_calls >= MAX_MODEL_CALLS_PER_TURN:
        return EndTurn("LIMIT", state.head)
    reached = before_asking(state)
    if reached is not None:
        return Pause(reached)
    missing = LookUpTools(_unoffered(state, state.offering), _unoffered(state, state.config.servers))
    if traits.tools and (missing.hands or missing.servers):
        return missing
    if state.retry is not None and state.retry.at > now:
        return Rest("the model is asked again later", state.retry.at)
    return AskModel(state.head)


def _unoffered(state: State, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns whose tools are to be looked up. A look-up that failed is made again in the next turn."""
    offers = [(name, state.offers.get(name)) for name in names]
    return tuple(name for name, it in offers if it is None or (it.failed and it.position <= state.settled))


def _reason(stop_reason: str) -> EndReason:
    match stop_reason:
        case "max_tokens" | "model_context_window_exceeded":
            return "LIMIT"
        case "refusal":
            return "REFUSED"
        case _:
            return "DONE"


def _advance(state: State, waiting: tuple[Call, ...], now: float) -> Action:
    """Some calls have no result: say what brings them on. What needs no hand comes first."""
    routes = routes_of(state)
    reached = before_calling(state)
    runs: list[RunCall] = []
    waits: list[Rest] = []
    for call in waiting:
        step = _step(state, call, routes, now)
        match step:
            case RunCall():
                runs.append(step)
            case Rest():
                waits.append(step)
            case AskClient() if reached is not None:
                pass
            case _:
                return step
    runs = _within(state, runs)
    if not runs and len(waits) < len(waiting) and reached is not None:
        return Pause(reached)
    if not runs:
        return Rest(waits[0].why, min((wait.until for wait in waits if wait.until is not None), default=None))
    bare = {run.hand for run in runs if run.hand in state.config.hands and not run.sandbox_id}
    return RunCalls(tuple(run for run in runs if run.hand not in bare or run.sandbox_id), tuple(sorted(bare)))


def _within(state: State, runs: list[RunCall]) -> list[RunCall]:
    """Leaves out the calls that go beyond the budget. Those that were sent before were counted then."""
    limit = state.config.budgets.max_tool_calls
    if not limit:
        return runs
    new = [run for run in runs if run.started is None][max(0, limit - state.used.tool_calls) :]
    return [run for run in runs if run not in new]


def _step(
    state: State, call: Call, routes: Mapping[str, tuple[str, str, ToolSpec]], now: float
) -> RunCall | FinishCall | AskConfirmation | AskClient | Rest:
    tool_call = call.call
    if tool_call.cut:
        return FinishCall(tool_call, ToolResult(_NOT_RUN, "TOOL_ERROR"))
    custom = next((spec for spec in state.config.custom_tools if spec.name == tool_call.name), None)
    route = route_of(call, routes)
    if custom is None and route is None:
        return FinishCall(tool_call, no_tool(state, tool_call.name, routes))
    if call.started is None and (verdict := _judged(state, call, route)) is not None:
        return verdict
    if custom is not None:
        return _by_client(call, custom, now)
    assert route is not None
    hand, tool, spec = route
    sandbox = state.sandboxes.get(hand)
    sandbox_id = call.started.sandbox_id if call.started else sandbox.sandbox_id if sandbox else ""
    return RunCall(tool_call, hand, tool, spec, sandbox_id, call.started)


def _judged(
    state: State, call: Call, route: tuple[str, str, ToolSpec] | None
) -> FinishCall | AskConfirmation | Rest | None:
    """Applies the policy: None lets the call run."""
    match policy_for(state.config, call.call.name, route):
        case "ALLOW":
            return None
        case "DENY":
            return FinishCall(call.call, ToolResult("A policy of this session forbids this tool.", "DENIED"))
        case "ASK":
            if call.verdict is not None:
                refusal = declined(call)
                return None if refusal is None else FinishCall(call.call, refusal)
            return Rest("a person has to decide first") if call.asked else AskConfirmation(call.call)


def _by_client(call: Call, spec: ToolSpec, now: float) -> FinishCall | AskClient | Rest:
    """Says what brings a client's own tool on."""
    if call.answer is not None:
        return FinishCall(call.call, call.answer)
    if call.handed_out is None:
        return AskClient(call.call, now + spec.timeout if spec.timeout else None)
    end = call.handed_out.due
    if end is not None and end <= now:
        return FinishCall(call.call, ToolResult("No client answered this call in time.", "TIMEOUT"))
    return Rest("a client has to answer first", end)

"""Decides what happens next: `decide(state) -> Action`. Reads, does nothing.

The log's order is not the order of cause: a message can land while the model still answers the one before. So a
reply and the end of a turn say what they had read (`read`), and everything here compares positions with that.

Each answer needs to be right only for the log as it is: it is asked for again after every event. A crash between
two answers loses nothing, since the next harness folds the same log.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from services.harness.core import CallStarted, Config, EndReason, PolicyAction, ToolCall, ToolResult, ToolSpec
from services.harness.loops.messages.state import Call, State

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
    """Emit CustomToolRequested."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class LookUpTools:
    """Ask hands and servers for their tools, and emit ToolsOffered for each."""

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
    """Cancel these calls and emit a result for each."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the model, with everything up to `read`; not before `not_before` (Unix time, seconds)."""

    read: int
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do until something else happens."""

    why: str


Action = EndTurn | FinishCall | AskConfirmation | AskClient | LookUpTools | RunCalls | Settle | AskModel | Rest


def decide(state: State) -> Action:
    """Says what to do next, from what the log says alone."""
    if state.unknown:
        return Rest(f"the log holds an event of kind {state.unknown}, which this harness does not know")
    if state.over:
        return Rest("the session has ended")
    waiting = tuple(call for call in state.calls.values() if call.result is None)
    if state.interrupt > state.settled and (waiting or any(at < state.interrupt for at in state.unread)):
        return Settle(waiting) if waiting else EndTurn("INTERRUPTED", state.interrupt)
    if waiting:
        return _advance(state, waiting)
    if not state.unread:
        return Rest("every message is answered")
    return _answer(state)


def _answer(state: State) -> Action:
    """All calls are settled and a message is unanswered or being answered: ask, or end the turn."""
    reply = state.reply
    read = reply.read if reply else 0
    refused = reply is not None and reply.stop_reason == "refusal"  # then nobody reads what its calls came to
    newest = max((*state.unread, *(0 if refused else call.finished_at for call in state.calls.values())))
    if newest <= read and reply is not None and reply.stop_reason != "pause_turn":
        return EndTurn(_reason(reply.stop_reason), state.head)
    if state.model_calls >= (state.config.max_model_calls or MAX_MODEL_CALLS_PER_TURN):
        return EndTurn("LIMIT", state.head)
    missing = LookUpTools(
        tuple(hand for hand in state.config.hands if _unoffered(state, hand)),
        tuple(server for server in state.config.servers if _unoffered(state, server)),
    )
    if missing.hands or missing.servers:
        return missing
    return AskModel(state.head, state.retry.at if state.retry else 0.0)


def _unoffered(state: State, hand: str) -> bool:
    """A look-up that failed is made again in the next turn."""
    offer = state.offers.get(hand)
    return offer is None or (offer.failed and offer.position <= state.settled)


def _reason(stop_reason: str) -> EndReason:
    match stop_reason:
        case "max_tokens" | "model_context_window_exceeded":
            return "LIMIT"
        case "refusal":
            return "REFUSED"
        case _:
            return "DONE"


def _advance(state: State, waiting: tuple[Call, ...]) -> Action:
    """Some calls have no result: say what brings them on. What needs no hand comes first."""
    routes = routes_of(state)
    runs: list[RunCall] = []
    for call in waiting:
        step = _step(state, call, routes)
        if isinstance(step, RunCall):
            runs.append(step)
        elif step is not None:
            return step
    bare = {run.hand for run in runs if run.hand in state.config.hands and not run.sandbox_id}
    if not runs:
        return Rest("a person or a client has to answer first")
    return RunCalls(tuple(run for run in runs if run.hand not in bare or run.sandbox_id), tuple(sorted(bare)))


def _step(
    state: State, call: Call, routes: Mapping[str, tuple[str, str, ToolSpec]]
) -> RunCall | FinishCall | AskConfirmation | AskClient | None:
    tool_call = call.call
    if tool_call.cut:
        return FinishCall(tool_call, ToolResult(_NOT_RUN, "TOOL_ERROR"))
    custom = any(tool_call.name == spec.name for spec in state.config.custom_tools)
    if not custom and tool_call.name not in routes:
        known = ", ".join(sorted(routes)) or "none"
        return FinishCall(
            tool_call, ToolResult(f"There is no tool named {tool_call.name}. Tools: {known}.", "TOOL_ERROR")
        )
    if call.started is None and (verdict := _judged(state, call)) is not None:
        return verdict if not isinstance(verdict, str) else None
    if custom:
        if call.answer is not None:
            return FinishCall(tool_call, call.answer)
        return None if call.handed_out else AskClient(tool_call)
    hand, tool, spec = routes[tool_call.name]
    sandbox = state.sandboxes.get(hand)
    sandbox_id = call.started.sandbox_id if call.started else sandbox.sandbox_id if sandbox else ""
    return RunCall(tool_call, hand, tool, spec, sandbox_id, call.started)


def _judged(state: State, call: Call) -> FinishCall | AskConfirmation | str | None:
    """Applies the policy: None lets the call run, `wait` waits for a person."""
    match policy_for(state.config, call.call.name):
        case "ALLOW":
            return None
        case "DENY":
            return FinishCall(call.call, ToolResult("A policy of this session forbids this tool.", "DENIED"))
        case "ASK":
            if call.verdict is None:
                return "wait" if call.asked else AskConfirmation(call.call)
            if call.verdict.allowed:
                return None
            said = call.verdict.message or "no reason was given"
            return FinishCall(call.call, ToolResult(f"A person declined this call: {said}", "DENIED"))


def policy_for(config: Config, name: str) -> PolicyAction:
    """Returns what the first policy that matches a tool's name says."""
    for policy in config.policies:
        if fnmatch.fnmatchcase(name, policy.pattern):
            return policy.action
    return "ALLOW"


def routes_of(state: State) -> dict[str, tuple[str, str, ToolSpec]]:
    """Maps each offered tool's name to its hand or server, the name that one knows it by, and its description.

    A client's own tool takes the place of a hand's of the same name.
    """
    routes: dict[str, tuple[str, str, ToolSpec]] = {}
    own = {spec.name for spec in state.config.custom_tools}
    for hand in (*state.config.hands, *state.config.servers):
        offer = state.offers.get(hand)
        for spec in offer.tools if offer else ():
            if spec.name in own:
                continue
            prefixed = hand in state.config.hands and len(state.config.hands) > 1
            routes[spec.name] = (hand, spec.name.removeprefix(f"{hand}__") if prefixed else spec.name, spec)
    return routes

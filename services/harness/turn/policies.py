"""Which tool a call means, and whether it may run. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from services.harness.core import MESH, Config, Policy, PolicyAction, ToolResult, ToolSpec
from services.harness.turn.state import Call, State

SEPARATOR = "__"  # between a hand's name and its tool's
Route = tuple[str, str, ToolSpec]


def routes_of(state: State) -> dict[str, Route]:
    """Maps each offered tool's name to its hand or server, the name that one knows it by, and its description.

    A client's own tool takes the place of any other of the same name, and one of the mesh that of a hand's: so no hand
    can pass for the session's memory.
    """
    routes: dict[str, Route] = {}
    own = {spec.name for spec in state.config.custom_tools}
    mesh = (MESH,) if state.config.asks_mesh else ()
    for hand in (*state.config.hands, *state.config.servers, *mesh, *state.joined):
        offer = state.offers.get(hand)
        for spec in offer.tools if offer else ():
            if spec.name in own:
                continue
            prefixed = hand in state.attached or (hand in state.config.hands and len(state.config.hands) > 1)
            routes[spec.name] = (hand, spec.name.removeprefix(hand + SEPARATOR) if prefixed else spec.name, spec)
    return routes


def route_of(call: Call, routes: Mapping[str, Route]) -> Route | None:
    """Returns a call's route. One that a hand has keeps it when the hand leaves: its result is there to be had."""
    found, started = routes.get(call.call.name), call.started
    if found is not None or started is None or not started.sandbox_id:
        return found
    name = call.call.name
    return started.hand, name.removeprefix(started.hand + SEPARATOR), ToolSpec(name, "", "{}")


def no_tool(state: State, name: str, routes: Iterable[str]) -> ToolResult:
    """Says that there is no such tool, or where the hand went that had it."""
    hand, separator, _ = name.partition(SEPARATOR)
    if separator and hand in state.away:
        return ToolResult(f"This session does not have the hand {hand} any more. {state.away[hand]}", "GONE")
    known = ", ".join(sorted(routes)) or "none"
    return ToolResult(f"There is no tool named {name}. Tools: {known}.", "TOOL_ERROR")


def policy_for(config: Config, name: str, route: tuple[str, str, ToolSpec] | None) -> PolicyAction:
    """Returns what the first policy says that matches a tool: by the name that the model knows, or a hand's tool by
    its own name and by `hand__tool`, however many hands the session has."""
    names = {name}
    if route is not None and route[0] not in (*config.servers, MESH):
        names |= {route[1], f"{route[0]}__{route[1]}"}
    return next((policy.action for policy in config.policies if matches(policy, names)), "ALLOW")


def matches(policy: Policy, names: Iterable[str]) -> bool:
    """Tells whether a policy's pattern matches one of these names. Only `*` is special in it."""
    pattern = policy.pattern.replace("[", "[[]").replace("?", "[?]")
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def declined(call: Call) -> ToolResult | None:
    """Says why a call that a person has decided about may not run; None when it may.

    An approval is good for the call that the person saw, and no other.
    """
    verdict, asked = call.verdict, call.asked
    assert verdict is not None
    if not verdict.allowed:
        said = verdict.message or "no reason was given"
        return ToolResult(f"A person declined this call: {said}", "DENIED")
    if asked is None or verdict.call_hash != asked.call_hash:
        return ToolResult("The approval was given for another call than this one.", "DENIED")
    return None

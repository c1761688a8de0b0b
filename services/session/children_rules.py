"""What a session that another one starts may be: at most what its parent is. Pure; knows configurations and no store.

    bounded(asked, parent, used)    the child's configuration, with what is filled in
    check_depth(limits)             whether there may be one more level of sessions

Raises Denied (`CHILD_DENIED`) for what the parent does not have, Refused (`CHILD_LIMIT`) for what its limits forbid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, Resource
from handmesh.session.v1.config_pb2 import Budgets, ChildLimits, HandSpec, SessionConfig
from services.kit.errors import Denied, Refused
from services.session.configs import MAIN_HAND
from services.session.git_rules import git_rules

_COUNTS = ("max_turns", "max_tokens", "max_cost_micros", "max_tool_calls", "max_model_calls_per_turn")


@dataclass(frozen=True)
class Used:
    """What a session has used of its own budgets, as far as its log's state tells."""

    max_turns: int = 0
    max_tokens: int = 0
    max_cost_micros: int = 0
    max_tool_calls: int = 0


def bounded(asked: SessionConfig, parent: SessionConfig, parent_id: str, used: Used) -> SessionConfig:
    """Returns the configuration of a child: what was asked, within what the parent has, the rest filled in."""
    if not parent.HasField("child_limits"):
        raise Refused("CHILD_LIMIT", "the session may start no other", limit="max_children")
    child = SessionConfig()
    child.CopyFrom(asked)
    child.tenant, child.parent_session_id = parent.tenant, parent_id
    _fill_hands(child, parent)
    _check_hands(child, parent)
    _check_servers(child, parent)
    _check_memories(child, parent)
    for field in ("vault_ids", "mesh_tools", "custom_tools", "hand_over_to"):
        theirs = list(getattr(parent, field))
        if any(each not in theirs for each in getattr(child, field)):
            _deny(field)
    own = list(child.tool_policies)
    del child.tool_policies[:]
    child.tool_policies.extend([*parent.tool_policies, *own])
    _bound_limits(child, parent.child_limits)
    child.budgets.CopyFrom(_bounded(child.budgets, [parent.child_limits.budgets, _left(parent.budgets, used)]))
    return child


def check_depth(limits: Sequence[int]) -> None:
    """Checks one more level: `limits` are how many levels each ancestor allows below it, the new one's parent first."""
    for distance, most in enumerate(limits, 1):
        if distance > most:
            raise Refused("CHILD_LIMIT", f"{most} levels of sessions may be below one above", limit="max_depth")


def _deny(field: str) -> NoReturn:
    raise Denied("CHILD_DENIED", f"a session may not start one with more than itself: {field}", field=field)


# --- hands ---
def _hands(config: SessionConfig) -> dict[str, HandSpec]:
    return dict(config.hands) or ({} if config.no_hands else {MAIN_HAND: HandSpec()})


def _fill_hands(child: SessionConfig, parent: SessionConfig) -> None:
    """Gives a child that names no hand a `main` one if its parent has that, made from the same; else none."""
    if child.hands or child.no_hands:
        return
    main = _hands(parent).get(MAIN_HAND)
    if main is None or main.standing_hand:
        child.no_hands = True
    elif parent.hands:
        child.hands[MAIN_HAND].environment = main.environment
        child.hands[MAIN_HAND].description = main.description


def _check_hands(child: SessionConfig, parent: SessionConfig) -> None:
    """A hand is its parent's by name: policies name hands."""
    theirs = _hands(parent)
    for name, spec in _hands(child).items():
        like = theirs.get(name)
        if like is None or (spec.environment, spec.standing_hand) != (like.environment, like.standing_hand):
            _deny(f"hands[{name}]")
        if like.read_only and not spec.read_only:
            _deny(f"hands[{name}].read_only")
    rules = {rule.repository: set(rule.push_patterns) for rule in git_rules(parent)}
    stores = _stores(parent)
    for name, at, resource in _resources(child):
        field = f"hands[{name}].resources[{at}]"
        match resource.WhichOneof("source"):
            case "git_repository":
                _check_repository(field, resource.git_repository, rules)
            case "memory":
                _check_store(field, resource.memory.memory_store_id, resource.memory.read_only, stores)


def _resources(config: SessionConfig) -> Iterable[tuple[str, int, Resource]]:
    for name, spec in sorted(config.hands.items()):
        for at, resource in enumerate(spec.resources):
            yield name, at, resource


def _check_repository(field: str, repository: GitRepository, rules: dict[str, set[str]]) -> None:
    if repository.url not in rules or not rules[repository.url].issuperset(repository.push_patterns):
        _deny(f"{field}.git_repository")
    if not rules.keys() >= set(repository.also_read):
        _deny(f"{field}.git_repository.also_read")


# --- servers and memories ---
def _check_servers(child: SessionConfig, parent: SessionConfig) -> None:
    theirs = {(server.name, server.url): set(server.allowed_tools) for server in parent.mcp_servers}
    for at, server in enumerate(child.mcp_servers):
        tools = theirs.get((server.name, server.url))
        if tools is None or (tools and not tools >= set(server.allowed_tools)) or (tools and not server.allowed_tools):
            _deny(f"mcp_servers[{at}]")


def _check_memories(child: SessionConfig, parent: SessionConfig) -> None:
    stores = _stores(parent)
    for at, access in enumerate(child.memory_stores):
        _check_store(f"memory_stores[{at}]", access.memory_store_id, access.read_only, stores)


def _stores(config: SessionConfig) -> dict[str, bool]:
    """Returns the memory stores that a session reaches, and whether it may only read each."""
    found: dict[str, bool] = {}
    reached = [(access.memory_store_id, access.read_only) for access in config.memory_stores]
    for _, _, resource in _resources(config):
        if resource.WhichOneof("source") == "memory":
            reached.append((resource.memory.memory_store_id, resource.memory.read_only))
    for store, read_only in reached:
        found[store] = read_only and found.get(store, True)
    return found


def _check_store(field: str, store: str, read_only: bool, stores: dict[str, bool]) -> None:
    if store not in stores or (stores[store] and not read_only):
        _deny(field)


# --- limits ---
def _bound_limits(child: SessionConfig, limits: ChildLimits) -> None:
    if not child.HasField("child_limits"):
        return
    depth, children = max(1, limits.max_depth) - 1, max(1, limits.max_children)
    if max(1, child.child_limits.max_depth) > depth:
        raise Refused("CHILD_LIMIT", f"{depth} levels of sessions may be below this one", limit="max_depth")
    if max(1, child.child_limits.max_children) > children:
        raise Refused("CHILD_LIMIT", f"it may start at most {children} sessions", limit="max_children")
    child.child_limits.budgets.CopyFrom(_bounded(child.child_limits.budgets, [limits.budgets]))


def _left(budgets: Budgets, used: Used) -> Budgets:
    """Returns what is left of a session's budgets. Of those whose use its log's state does not tell, all is."""
    left = Budgets()
    left.CopyFrom(budgets)
    for field in ("max_turns", "max_tokens", "max_cost_micros", "max_tool_calls"):
        if getattr(budgets, field):
            rest = getattr(budgets, field) - getattr(used, field)
            if rest <= 0:
                raise Refused("CHILD_LIMIT", f"nothing is left of the session's {field}", limit=field)
            setattr(left, field, rest)
    return left


def _bounded(asked: Budgets, bounds: Sequence[Budgets]) -> Budgets:
    """Returns the budgets that are asked for, those filled in that are not. 0 is no limit."""
    made = Budgets()
    made.CopyFrom(asked)
    for field in _COUNTS:
        most = min((getattr(each, field) for each in bounds if getattr(each, field)), default=0)
        if most and getattr(asked, field) > most:
            raise Refused("CHILD_LIMIT", f"{field} is at most {most}", limit=field)
        setattr(made, field, getattr(asked, field) or most)
    times = [each.max_wall_time.ToNanoseconds() for each in (asked, *bounds)]
    most = min((each for each in times[1:] if each), default=0)
    if most and times[0] > most:
        raise Refused("CHILD_LIMIT", f"max_wall_time is at most {most / 1e9:g} s", limit="max_wall_time")
    if times[0] or most:
        made.max_wall_time.FromNanoseconds(times[0] or most)
    return made

"""What a child may be: never more than its parent. The rules alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, MemoryMount, Resource
from handmesh.session.v1.config_pb2 import (
    Budgets,
    ChildLimits,
    CustomTool,
    HandSpec,
    McpServer,
    MemoryAccess,
    SessionConfig,
    ToolPolicy,
)
from handmesh.session.v1.event_pb2 import ChildEnded, ChildStarted, Event, SessionStarted
from services.kit.errors import Denied, Refused, ServiceError
from services.session import codec
from services.session.admission import admit
from services.session.children_rules import Used, bounded, check_depth
from services.session.core import WriteState, fold
from services.session.families import started

UNUSED = Used()
PARENT_ID = "sess_" + "p" * 26
STORE, OTHER_STORE = "mem_" + "0" * 26, "mem_" + "1" * 26
VAULT, OTHER_VAULT = "vault_" + "0" * 26, "vault_" + "1" * 26
REPOSITORY = GitRepository(
    url="https://git.example/a/b", push_patterns=["refs/heads/agent/*"], also_read=["https://git.example/a/c"]
)
PARENT = SessionConfig(
    tenant="t",
    hands={
        "main": HandSpec(environment="default", resources=[Resource(git_repository=REPOSITORY)]),
        "shared": HandSpec(standing_hand="x", read_only=True),
    },
    mcp_servers=[
        McpServer(name="all", url="https://a.example"),
        McpServer(name="some", url="https://b.example", allowed_tools=["x", "y"]),
    ],
    vault_ids=[VAULT],
    custom_tools=[CustomTool(name="ask", input_schema_json='{"type":"object"}')],
    tool_policies=[ToolPolicy(pattern="bash", action=3)],
    memory_stores=[MemoryAccess(memory_store_id=STORE, name="notes", read_only=True)],
    mesh_tools=["start_session", "send_message"],
    child_limits=ChildLimits(max_depth=2, max_children=3),
)


def hand(**fields: Any) -> SessionConfig:
    return SessionConfig(hands={"main": HandSpec(**{"environment": "default", **fields})})


def cloned(**fields: Any) -> SessionConfig:
    repository = GitRepository(**{"url": REPOSITORY.url, **fields})
    return hand(resources=[Resource(git_repository=repository)])


def mounted(**fields: Any) -> SessionConfig:
    return hand(resources=[Resource(memory=MemoryMount(**fields))])


TOO_MUCH = {
    "another environment": hand(environment="docker"),
    "the default environment": hand(environment=""),
    "a hand of another name": SessionConfig(hands={"box": HandSpec(environment="default")}),
    "another standing hand": SessionConfig(hands={"shared": HandSpec(standing_hand="y", read_only=True)}),
    "a shared hand to write to": SessionConfig(hands={"shared": HandSpec(standing_hand="x")}),
    "another repository": cloned(url="https://git.example/a/d"),
    "a repository only read": cloned(url="https://git.example/a/c", push_patterns=["refs/heads/agent/*"]),
    "another branch": cloned(push_patterns=["refs/heads/main"]),
    "more to read": cloned(also_read=["https://git.example/a/*"]),
    "another server": SessionConfig(mcp_servers=[McpServer(name="all", url="https://c.example")]),
    "a server by another name": SessionConfig(mcp_servers=[McpServer(name="b", url="https://a.example")]),
    "all tools": SessionConfig(mcp_servers=[McpServer(name="some", url="https://b.example")]),
    "another tool": SessionConfig(mcp_servers=[McpServer(name="some", url="https://b.example", allowed_tools=["z"])]),
    "another vault": SessionConfig(vault_ids=[VAULT, OTHER_VAULT]),
    "another store": SessionConfig(memory_stores=[MemoryAccess(memory_store_id=OTHER_STORE, read_only=True)]),
    "a store to write to": SessionConfig(memory_stores=[MemoryAccess(memory_store_id=STORE)]),
    "another store in a hand": mounted(memory_store_id=OTHER_STORE, read_only=True),
    "a store to write to in a hand": mounted(memory_store_id=STORE),
    "another mesh tool": SessionConfig(mesh_tools=["hand_over"]),
    "another client's tool": SessionConfig(custom_tools=[CustomTool(name="ask", input_schema_json="{}")]),
}

ENOUGH = {
    "nothing": SessionConfig(),
    "no hands": SessionConfig(no_hands=True),
    "its hand": cloned(push_patterns=REPOSITORY.push_patterns, also_read=REPOSITORY.also_read),
    "a shared hand": SessionConfig(hands={"shared": HandSpec(standing_hand="x", read_only=True)}),
    "servers": SessionConfig(
        mcp_servers=[
            McpServer(name="all", url="https://a.example", allowed_tools=["q"]),
            McpServer(name="some", url="https://b.example", allowed_tools=["y"]),
        ]
    ),
    "vaults": SessionConfig(vault_ids=[VAULT]),
    "stores": SessionConfig(memory_stores=[MemoryAccess(memory_store_id=STORE, name="n", read_only=True)]),
    "tools": SessionConfig(custom_tools=PARENT.custom_tools, mesh_tools=["send_message"]),
}


def child(asked: SessionConfig, parent: SessionConfig = PARENT, used: Used = UNUSED) -> SessionConfig:
    return bounded(asked, parent, PARENT_ID, used)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_more_than_the_parent_has_is_denied(what: str) -> None:
    """Each right, one step beyond the parent's."""
    with pytest.raises(Denied) as denied:
        child(TOO_MUCH[what])
    assert denied.value.reason == "CHILD_DENIED" and denied.value.metadata["field"]


@pytest.mark.parametrize("what", ENOUGH)
def test_as_much_as_the_parent_has_is_given(what: str) -> None:
    """What was asked is what comes; the parent's policies are in front, tenant and parent are the server's."""
    asked = ENOUGH[what]
    made = child(asked)
    assert (made.tenant, made.parent_session_id) == ("t", PARENT_ID)
    assert list(made.tool_policies) == list(PARENT.tool_policies)
    assert made.mcp_servers == asked.mcp_servers and made.vault_ids == asked.vault_ids
    if asked.hands or asked.no_hands:
        assert (made.hands, made.no_hands) == (asked.hands, asked.no_hands)


def test_the_parents_policies_come_first() -> None:
    """The first that matches counts, so a child loosens nothing."""
    own = ToolPolicy(pattern="*", action=1)
    made = child(SessionConfig(tool_policies=[own]))
    assert list(made.tool_policies) == [*PARENT.tool_policies, own]


@pytest.mark.parametrize(
    ("parent", "wanted"),
    [
        (PARENT, SessionConfig(hands={"main": HandSpec(environment="default")})),
        (SessionConfig(child_limits=ChildLimits()), SessionConfig()),
        (SessionConfig(child_limits=ChildLimits(), no_hands=True), SessionConfig(no_hands=True)),
        (SessionConfig(child_limits=ChildLimits(), hands={"a": HandSpec()}), SessionConfig(no_hands=True)),
    ],
)
def test_hands_that_nobody_asks_for(parent: SessionConfig, wanted: SessionConfig) -> None:
    """A child that names none gets a `main` made from the same environment, without the parent's resources, or none."""
    made = child(SessionConfig(), parent)
    assert (made.hands, made.no_hands) == (wanted.hands, wanted.no_hands)


LIMITS = st.builds(
    Budgets,
    max_turns=st.integers(0, 5),
    max_tokens=st.integers(0, 5),
    max_cost_micros=st.integers(0, 5),
    max_tool_calls=st.integers(0, 5),
    max_model_calls_per_turn=st.integers(0, 5),
    max_wall_time=st.builds(Duration, seconds=st.integers(0, 5)),
)
USED = st.builds(
    Used, **dict.fromkeys(("max_turns", "max_tokens", "max_cost_micros", "max_tool_calls"), st.integers(0, 5))
)
FIELDS = [field.name for field in Budgets.DESCRIPTOR.fields]


def amount(budgets: Budgets, field: str) -> float:
    value = getattr(budgets, field)
    return value.ToNanoseconds() / 1e9 if field == "max_wall_time" else value


@given(LIMITS, LIMITS, LIMITS, USED)
def test_no_budget_is_beyond_any_bound(asked: Budgets, limits: Budgets, own: Budgets, used: Used) -> None:
    """Whatever is asked: refused, naming a field, or within the limits and within what the parent has left; what was
    asked is what comes."""
    parent = SessionConfig(no_hands=True, child_limits=ChildLimits(budgets=limits), budgets=own)
    try:
        made = child(SessionConfig(budgets=asked), parent, used).budgets
    except Refused as refused:
        assert refused.reason == "CHILD_LIMIT" and refused.metadata["limit"] in FIELDS
        return
    for field in FIELDS:
        got, wanted = amount(made, field), amount(asked, field)
        bounds = [amount(limits, field)] if amount(limits, field) else []
        if amount(own, field):
            bounds.append(amount(own, field) - getattr(used, field, 0))
        assert all(0 < got <= bound for bound in bounds)
        assert got == (wanted or min(bounds, default=0))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.integers(0, 4),
)
def test_a_chain_is_never_deeper_than_any_above_allows(depths: list[int], asked: int) -> None:
    """`check_depth` lets one more level in only where every ancestor has room for all levels below it."""
    try:
        check_depth(depths)
    except Refused as refused:
        assert refused.metadata == {"limit": "max_depth"}
        assert any(distance > most for distance, most in enumerate(depths, 1))
    else:
        assert all(distance <= most for distance, most in enumerate(depths, 1))


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_a_childs_limits_are_one_level_less(depth: int, children: int, asked_depth: int, asked_children: int) -> None:
    """Its own limits are within its parent's, with one level less; where none is left it may start nobody."""
    parent = SessionConfig(no_hands=True, child_limits=ChildLimits(max_depth=depth, max_children=children))
    asked = SessionConfig(child_limits=ChildLimits(max_depth=asked_depth, max_children=asked_children))
    fits = max(1, asked_depth) < max(1, depth) and max(1, asked_children) <= max(1, children)
    try:
        child(asked, parent)
    except Refused:
        assert not fits
    else:
        assert fits


def test_a_session_without_limits_starts_nobody() -> None:
    """Unset means none; not one level of one."""
    with pytest.raises(Refused) as refused:
        child(SessionConfig(), SessionConfig(no_hands=True))
    assert refused.value.metadata == {"limit": "max_children"}


@given(st.integers(0, 3), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=20))
def test_a_log_counts_its_children(most: int, steps: list[tuple[bool, int]]) -> None:
    """Over any order of starts and ends: never more starts than the limit, an end only of who was started and has not
    ended; what the state says is what the log has."""
    config = SessionConfig(child_limits=ChildLimits(max_children=most))
    events = [Event(event_id="s", session_started=SessionStarted(config=config))]
    for number, (starts, which) in enumerate(steps):
        name = f"sess_{which}" + "0" * 25
        event = Event(event_id=f"{starts}-{name}-{number}")
        if starts:
            event.child_started.CopyFrom(ChildStarted(child_session_id=name))
        else:
            event.child_ended.CopyFrom(ChildEnded(child_session_id=name))
        events.append(event)
    state, begun, living = WriteState(), 0, set()
    for event in events:
        fact = codec.stored_fact(event, "session")
        try:
            admit(state, [fact])
        except ServiceError as problem:
            limited = fact.kind == "child_started" and begun >= max(1, most) and problem.reason == "CHILD_LIMIT"
            assert limited or (fact.kind == "child_ended" and fact.child not in living)
            continue
        fold(state, fact, 1)
        if fact.kind == "child_started":
            begun += 1
            living.add(fact.child)
        living -= {fact.child} if fact.kind == "child_ended" else set()
        assert (state.children_started, set(state.children)) == (begun, living)
        assert all(started(state, each) for each in living)
    assert begun <= max(1, most)
    assert json.dumps(state.children)

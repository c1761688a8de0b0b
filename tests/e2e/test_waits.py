"""What a turn waits for through real processes: a person, a client, a time, a budget; nobody holds it meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from handmesh.client import Client, HandmeshError, Session
from handmesh.sandbox.v1.tool_pb2 import ToolOutcome
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import CustomTool, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import Event, ToolConfirmed

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

TURN_SECONDS = 60.0


async def until(session: Session, kind: str, count: int = 1) -> list[Event]:
    """Follows a session until so many events of a kind are there; returns its log."""
    events: list[Event] = []
    async with asyncio.timeout(TURN_SECONDS):
        async for event in session.watch():
            events.append(event)
            if sum(it.WhichOneof("kind") == kind for it in events) == count:
                break
    return events


def only(events: list[Event], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("kind") == kind]


def outcomes(events: list[Event]) -> list[str]:
    names = [ToolOutcome.Name(it.result.outcome) for it in only(events, "tool_finished")]
    return [name.removeprefix("TOOL_OUTCOME_") for name in names]


async def test_a_call_that_was_approved_runs_and_an_approval_of_another_one_is_refused(client: Client) -> None:
    """By hand and tool, however few hands there are; the harness has left while the person thinks."""
    ask = ToolPolicy(pattern="main__bash", action=ToolPolicyAction.TOOL_POLICY_ACTION_ASK)
    session = await client.create_session(SessionConfig(tool_policies=[ask]), "work")
    events = await until(session, "tool_finished")  # the other call's, which nobody has to be asked about
    (request,) = only(events, "tool_confirmation_requested")
    wrong = ToolConfirmed(tool_use_id=request.tool_use_id, allowed=True, call_hash="f" * 64)
    with pytest.raises(HandmeshError) as told:
        await session.emit(Event(tool_confirmed=wrong))
    assert told.value.reason == "CALL_HASH_MISMATCH"
    await session.confirm(request, allowed=True)
    events = await until(session, "turn_ended")
    assert outcomes(events) == ["OK", "OK"]
    assert len(only(events, "harness_woke")) == 2


async def test_a_clients_tool_that_nobody_answers_times_out_though_nobody_waits(client: Client) -> None:
    """The harness leaves with the time at which it wants the session back, and another run tells the model."""
    tool = CustomTool(name="ask", description="Asks.", input_schema_json='{"type":"object"}')
    tool.timeout.FromSeconds(12)  # longer than a harness waits for it itself
    config = SessionConfig(no_hands=True, custom_tools=[tool])
    session = await client.create_session(config, "ask somebody")
    events = await until(session, "turn_ended")
    assert outcomes(events) == ["TIMEOUT"]
    (request,) = only(events, "custom_tool_requested")
    settled = next(event for event in events if event.HasField("tool_finished"))
    assert 0 <= settled.emit_time.ToNanoseconds() - request.due_time.ToNanoseconds() < 5_000_000_000
    assert len(only(events, "harness_woke")) == 2


async def test_a_session_at_its_budget_is_paused_and_goes_on_when_it_is_raised(client: Client) -> None:
    """In the same turn, with each call run once; what the turn used is in its end."""
    config = SessionConfig()
    config.budgets.max_tool_calls = 1
    session = await client.create_session(config, "work")
    await until(session, "budget_reached")
    told = await session.get()
    assert (told.status, told.paused_budget) == (session_pb2.SESSION_STATUS_PAUSED, "max_tool_calls")
    told.config.budgets.max_tool_calls = 2
    assert (await session.update(told.config)).paused_budget == ""
    events = await until(session, "turn_ended")
    assert outcomes(events) == ["OK", "OK"]
    (end,) = only(events, "turn_ended")
    replies = only(events, "model_replied")
    assert end.usage.output_tokens == sum(it.usage.output_tokens for it in replies) > 0
    assert json.loads(replies[-1].content_json)

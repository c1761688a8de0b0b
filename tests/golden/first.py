"""The scenarios that 0.1 began with."""

from __future__ import annotations

import asyncio

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1.config_pb2 import (
    CustomTool,
    HandSpec,
    McpServer,
    SessionConfig,
    ToolPolicy,
    ToolPolicyAction,
)
from handmesh.session.v1.event_pb2 import (
    ConfigChanged,
    Custom,
    CustomToolAnswered,
    Event,
    InterruptRequested,
    SessionEnded,
    ToolConfirmed,
)
from services.harness.ports import Answer, ModelFailure
from services.kit.errors import Gone, Unavailable
from tests.golden.recording import BASH, SCHEMA, Recording
from tests.support.harness_ports import message, said


async def a_tool() -> Recording:
    log = Recording()
    await log.run(said(t1=BASH), said())
    await log.add(message("again", "m2"))
    await log.run(said())
    return log


async def several_hands() -> Recording:
    log = Recording(SessionConfig(hands={"a": HandSpec(), "b": HandSpec()}))
    await log.run(said(t1=("a__bash", {}), t2=("b__bash", {}), t3=("a__bash", {}), t4=("no_such_tool", {})), said())
    return log


async def a_crash_in_a_tool() -> Recording:
    log, release = Recording(), asyncio.Event()
    log.hands.work = lambda tool, input: release.wait()
    first = asyncio.create_task(log.run(said(t1=BASH, t2=BASH)))
    while len(log.hands.executions) < 2:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    release.set()
    await log.run(said())
    return log


async def an_interrupt() -> Recording:
    log = Recording(SessionConfig(custom_tools=[CustomTool(name="ask", input_schema_json=SCHEMA)]))
    log.hands.work = lambda tool, input: asyncio.Event().wait()
    running = asyncio.create_task(log.run(said(t1=BASH, t2=("ask", {})), said()))
    while not log.hands.executions:
        await asyncio.sleep(0)
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()), message("rather this", "m2"))
    await running
    await log.add(Event(event_id="late", interrupt_requested=InterruptRequested()))
    return log


async def approvals() -> Recording:
    ask, deny = ToolPolicyAction.TOOL_POLICY_ACTION_ASK, ToolPolicyAction.TOOL_POLICY_ACTION_DENY
    rules = [ToolPolicy(pattern="shop__*", action=deny), ToolPolicy(pattern="main__bash", action=ask)]
    log = Recording(
        SessionConfig(tool_policies=rules, mcp_servers=[McpServer(name="shop", url="https://shop.example")])
    )
    await log.run(said(t1=BASH, t2=BASH, t3=("shop__buy", {})))
    for asked, allowed in zip(log.only("tool_confirmation_requested"), (True, False), strict=True):
        decision = ToolConfirmed(
            tool_use_id=asked.tool_use_id, allowed=allowed, message="not now", call_hash=asked.call_hash
        )
        await log.add(Event(event_id=f"d-{asked.tool_use_id}", tool_confirmed=decision))
    await log.run(said())
    return log


async def clients_tools() -> Recording:
    tool = CustomTool(name="ask", description="Asks.", input_schema_json=SCHEMA)
    tool.timeout.FromSeconds(30)
    log = Recording(SessionConfig(no_hands=True, custom_tools=[tool]))
    await log.run(said(t1=("ask", {}), t2=("ask", {})))
    result = ToolResult(output="Ada", outcome=ToolOutcome.TOOL_OUTCOME_OK)
    answer = CustomToolAnswered(tool_use_id="t1", result=result)
    await log.add(Event(event_id="a", custom_tool_answered=answer))
    log.clock += 60.0
    await log.run(said())
    return log


async def budgets() -> Recording:
    config = SessionConfig()
    config.budgets.max_tool_calls = 1
    config.budgets.max_tokens = 3
    log, model = Recording(config), [said(t1=BASH, t2=BASH), said("more", "pause_turn"), said("more", "pause_turn")]
    await log.run(*model)
    await log.add(message("hurry", "m2"))
    for number, calls in enumerate((2, 0)):
        config.budgets.max_tool_calls = calls
        config.budgets.max_tokens *= number ^ 1
        await log.add(Event(event_id=f"raise-{number}", config_changed=ConfigChanged(config=config)))
        await log.run(*model[1:], said())
    return log


async def failures_of_the_model() -> Recording:
    log = Recording()
    overloaded = ModelFailure("MODEL_OVERLOADED", "too much to do", retryable=True)
    await log.run(overloaded, overloaded, said())
    await log.add(message("again", "m2"))
    await log.run(ModelFailure("MODEL_KEY_REFUSED", "no", retryable=False))
    return log


async def ends_of_answers() -> Recording:
    log = Recording()
    await log.run(said("more", "pause_turn"), said())
    for number, reason in enumerate(("refusal", "max_tokens", "stop_sequence", "model_context_window_exceeded")):
        await log.add(message("again", f"n{number}"))
        await log.run(said("...", reason))
    await log.add(message("and", "m2"))
    cut = '[{"type":"tool_use","id":"t1","name":"bash","input":{}}]'
    await log.run(Answer(cut, "max_tokens", said().usage, "msg", "m"), said())
    return log


async def lost_hands_and_servers() -> Recording:
    log = Recording(SessionConfig(mcp_servers=[McpServer(name="shop", url="https://shop.example")]))

    async def gone(*_: object) -> None:
        raise Gone("SANDBOX_GONE", "gone")

    execute, log.hands.execute = log.hands.execute, gone  # type: ignore[method-assign,assignment]
    log.servers.refusal = Unavailable("SERVER_UNAVAILABLE", "down")
    await log.run(said(t1=BASH, t2=("shop__buy", {})), said())
    log.hands.execute = execute  # type: ignore[method-assign]
    await log.add(message("again", "m2"))
    await log.run(said(t3=BASH), said())
    return log


async def configurations() -> Recording:
    log = Recording()

    async def change() -> None:
        await log.add(message("and?", "m2"))
        config = SessionConfig(hands={"main": HandSpec(environment="another")}, system="Be brief.")
        await log.add(Event(event_id="c1", config_changed=ConfigChanged(config=config)))
        await log.add(Event(event_id="x", custom=Custom(type="acme.example/deployed"), ignorable=True))

    await log.run(said(t1=BASH), change, said(), said())
    await log.add(message("now", "m3"))
    await log.run(said(t2=BASH), said())
    await log.add(Event(event_id="c2", config_changed=ConfigChanged(config=SessionConfig(harness="claude_code"))))
    await log.add(message("whose?", "m4"))
    await log.add(Event(event_id="over", session_ended=SessionEnded()))
    return log


SCENARIOS = {
    each.__name__: each
    for each in (
        a_tool,
        several_hands,
        a_crash_in_a_tool,
        an_interrupt,
        approvals,
        clients_tools,
        budgets,
        failures_of_the_model,
        ends_of_answers,
        lost_hands_and_servers,
        configurations,
    )
}

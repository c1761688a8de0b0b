"""What waits for somebody: interrupts, approvals, and clients' own tools."""

from __future__ import annotations

import asyncio

from handmesh.session.v1.config_pb2 import CustomTool, HandSpec, McpServer, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import Event, InterruptRequested
from tests.golden.recording import BASH, SCHEMA, Recording, Scenario
from tests.support.harness_ports import message, said

ASK, DENY, ALLOW = (
    ToolPolicyAction.TOOL_POLICY_ACTION_ASK,
    ToolPolicyAction.TOOL_POLICY_ACTION_DENY,
    ToolPolicyAction.TOOL_POLICY_ACTION_ALLOW,
)


def ruled(*rules: tuple[str, ToolPolicyAction.ValueType], **more: object) -> SessionConfig:
    policies = [ToolPolicy(pattern=pattern, action=action) for pattern, action in rules]
    return SessionConfig(tool_policies=policies, **more)  # type: ignore[arg-type]


def asking(seconds: int = 0) -> SessionConfig:
    tool = CustomTool(name="ask", description="Asks.", input_schema_json=SCHEMA)
    tool.timeout.FromSeconds(seconds)
    return SessionConfig(custom_tools=[tool])


async def an_interrupt_of_the_model() -> Recording:
    log = Recording()

    async def stop() -> None:
        await log.interrupt()
        await asyncio.Event().wait()

    await log.run(stop, said())
    await log.say("rather this", said())
    return log


async def an_interrupt_with_one_of_three_done() -> Recording:
    log, places = Recording(), iter(range(9))

    async def work(tool: str, input: str) -> None:
        if next(places):
            await asyncio.Event().wait()

    log.hands.work = work
    running = asyncio.create_task(log.run(said(t1=BASH, t2=BASH, t3=BASH), said()))
    while "tool_finished" not in log.kinds():
        await asyncio.sleep(0)
    await log.add(Event(event_id="i", interrupt_requested=InterruptRequested()), message("rather this", "m2"))
    await running
    return log


async def an_interrupt_before_a_tool_starts() -> Recording:
    log = Recording()
    log.after(3, log.interrupt)
    await log.run(said(t1=BASH, t2=BASH))
    await log.run(said())
    await log.say("rather this", said())
    return log


async def an_interrupt_of_a_servers_call() -> Recording:
    log = Recording(SessionConfig(no_hands=True, mcp_servers=[McpServer(name="shop", url="https://shop.example")]))

    async def hang(*_: object, **__: object) -> None:
        await log.interrupt()
        await asyncio.Event().wait()

    log.servers.execute = hang  # type: ignore[method-assign,assignment]
    await log.run(said(t1=("shop__buy", {})))
    await log.say("rather this", said())
    return log


async def an_interrupt_while_a_person_is_asked() -> Recording:
    log = Recording(ruled(("bash", ASK)))
    await log.run(said(t1=BASH))
    await log.interrupt()
    await log.run()
    await log.say("rather this", said())
    return log


async def an_interrupt_behind_a_clients_answer() -> Recording:
    log = Recording(asking())
    await log.run(said(t1=("ask", {}), t2=("ask", {})))
    await log.answer("t1", "Ada")
    await log.interrupt()
    await log.run()
    await log.say("rather this", said())
    return log


async def an_interrupt_of_an_idle_session() -> Recording:
    log = Recording()
    await log.run(said())
    await log.interrupt()
    await log.run()
    await log.say("next", said())
    return log


async def two_interrupts() -> Recording:
    log = Recording(asking())
    await log.run(said(t1=("ask", {})))
    await log.interrupt()
    await log.say("this")
    await log.interrupt()
    await log.say("no, this", said())
    return log


async def a_denied_call_first() -> Recording:
    log = Recording(ruled(("bash", DENY)))
    await log.killed(3, said(t1=BASH))
    await log.run(said())
    await log.say("next", said(t2=BASH), said())
    return log


async def a_call_that_was_allowed() -> Recording:
    log = Recording(ruled(("*", ASK)))
    await log.run(said(t1=BASH))
    await log.decide("t1", True)
    await log.killed(5)
    await log.run(said())
    return log


async def a_call_that_was_declined() -> Recording:
    log = Recording(ruled(("*", ASK)))
    await log.run(said(t1=BASH, t2=BASH))
    await log.decide("t2", False, "not on a Friday")
    await log.decide("t1", True)
    await log.run(said())
    return log


async def the_first_decision_counts() -> Recording:
    log = Recording(
        ruled(("main__*", ALLOW), ("shop__*", ASK), mcp_servers=[McpServer(name="shop", url="https://a.b")])
    )
    await log.run(said(t1=("shop__buy", {}), t2=BASH))
    await log.decide("t1", False)
    await log.run(said())
    return log


async def policies_of_several_hands() -> Recording:
    hands = {"box": HandSpec(), "main": HandSpec()}
    log = Recording(ruled(("box__bash", DENY), ("bash", ASK), hands=hands))
    await log.run(said(t1=("box__bash", {}), t2=("main__bash", {})))
    await log.decide("t2", True)
    await log.run(said())
    return log


async def a_clients_tool_in_time() -> Recording:
    log = Recording(asking(30))
    await log.run(said(t1=("ask", {}), t2=BASH))
    await log.answer("t1", "Ada")
    await log.run(said())
    return log


async def a_clients_tool_too_late() -> Recording:
    log = Recording(asking(30))
    await log.run(said(t1=("ask", {})))
    log.clock += 60.0
    await log.run(said())
    return log


async def a_clients_tool_that_a_policy_asks_about() -> Recording:
    config = asking()
    config.tool_policies.add(pattern="ask", action=ASK)
    log = Recording(config)
    await log.run(said(t1=("ask", {})))
    await log.decide("t1", True)
    await log.run()
    await log.answer("t1", "Ada")
    await log.run(said())
    return log


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        an_interrupt_of_the_model,
        an_interrupt_with_one_of_three_done,
        an_interrupt_before_a_tool_starts,
        an_interrupt_of_a_servers_call,
        an_interrupt_while_a_person_is_asked,
        an_interrupt_behind_a_clients_answer,
        an_interrupt_of_an_idle_session,
        two_interrupts,
        a_denied_call_first,
        a_call_that_was_allowed,
        a_call_that_was_declined,
        the_first_decision_counts,
        policies_of_several_hands,
        a_clients_tool_in_time,
        a_clients_tool_too_late,
        a_clients_tool_that_a_policy_asks_about,
    )
}

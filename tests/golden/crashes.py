"""Harnesses that die right after an append, are taken over from, or find what another one began."""

from __future__ import annotations

import asyncio
import functools

from handmesh.session.v1.config_pb2 import McpServer, SessionConfig, ToolPolicy, ToolPolicyAction
from services.harness.core import ToolResult, ToolSpec
from services.harness.ports import Standing
from services.kit.errors import Gone
from tests.golden.recording import BASH, Recording, Scenario
from tests.support.harness_ports import Step, said

SHOP = SessionConfig(no_hands=True, mcp_servers=[McpServer(name="shop", url="https://shop.example")])
BUY = ("shop__buy", {"what": "tea"})


async def _killed(append: int) -> Recording:
    """A turn with two calls whose harness is killed right after its n-th append; another one goes on."""
    log = Recording()
    steps: list[Step] = [said(t1=BASH, t2=BASH), said()]
    await log.killed(append, *steps)
    await log.run(*steps[log.kinds().count("model_replied") :])
    await log.say("next", said(t3=BASH), said())
    return log


async def killed_again_and_again() -> Recording:
    log = Recording()
    steps: list[Step] = [said(t1=BASH, t2=BASH), said()]
    for number in range(1, 12, 2):
        left = steps[log.kinds().count("model_replied") :]
        working = asyncio.create_task(log.run(*left))
        log.after(number + 1, _death(working))
        await asyncio.wait({working})
    return log


def _death(working: asyncio.Task[None]):  # type: ignore[no-untyped-def]
    async def die() -> None:
        working.cancel()
        await asyncio.Event().wait()

    return die


async def a_takeover_while_the_model_answers() -> Recording:
    log = Recording()

    other: list[asyncio.Task[None]] = []

    async def overtaken() -> None:
        other.append(asyncio.create_task(log.run(said(t1=BASH), said())))
        await asyncio.Event().wait()

    await log.run(overtaken, said("too late"))
    await other[0]
    return log


async def a_takeover_while_a_tool_runs() -> Recording:
    log, release = Recording(), asyncio.Event()
    log.hands.work = lambda tool, input: release.wait()
    first = asyncio.create_task(log.run(said(t1=BASH)))
    while not log.hands.executions:
        await asyncio.sleep(0)
    second = asyncio.create_task(log.run(said()))
    while log.kinds().count("harness_woke") < 2:
        await asyncio.sleep(0)
    await first
    release.set()
    await second
    return log


async def _servers_call(spec: ToolSpec) -> Recording:
    """The harness of a server's call dies; the next one attaches to it, or sends it again where that is harmless."""
    log = Recording(SHOP)
    execute, asked = log.servers.execute, asyncio.Event()

    async def offer(grant: str) -> tuple[list[ToolSpec], list[tuple[str, str, str, str]]]:
        return [spec], []

    async def hang(*_: object, **__: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    log.servers.tools, log.servers.execute = offer, hang  # type: ignore[method-assign,assignment]
    first = asyncio.create_task(log.run(said(t1=BUY)))
    await asked.wait()
    first.cancel()
    await asyncio.wait({first})

    async def forgotten(grant: str, tool: str, input: str, execution_id: str, attach_only: bool) -> ToolResult:
        if attach_only:
            raise Gone("EXECUTION_UNKNOWN", "never heard of it")
        return await execute(grant, tool, input, execution_id, attach_only)

    log.servers.execute = forgotten  # type: ignore[method-assign]
    await log.run(said())
    return log


async def a_sandbox_that_was_made_and_not_said() -> Recording:
    log = Recording()
    provision, made = log.hands.provision, asyncio.Event()

    async def slow(session_id: str, hand: str, spec: bytes, generation: int, under: Standing):  # type: ignore[no-untyped-def]
        await provision(session_id, hand, spec, generation, under)
        made.set()
        await asyncio.Event().wait()

    log.hands.provision = slow  # type: ignore[method-assign]
    first = asyncio.create_task(log.run(said(t1=BASH)))
    await made.wait()
    first.cancel()
    await asyncio.wait({first})
    log.hands.provision = provision  # type: ignore[method-assign]
    await log.run(said())
    return log


async def a_crash_while_a_person_decides() -> Recording:
    rule = ToolPolicy(pattern="bash", action=ToolPolicyAction.TOOL_POLICY_ACTION_ASK)
    log = Recording(SessionConfig(tool_policies=[rule]))
    await log.killed(4, said(t1=BASH, t2=BASH))
    await log.run()
    await log.decide("t1", True)
    await log.killed(7)
    await log.decide("t2", True)
    await log.run(said())
    return log


async def a_crash_in_an_interrupt() -> Recording:
    log = Recording()
    log.hands.work = lambda tool, input: asyncio.Event().wait()
    working = asyncio.create_task(log.run(said(t1=BASH, t2=BASH, t3=BASH)))
    while len(log.hands.executions) < 3:
        await asyncio.sleep(0)
    log.after(log.kinds().count("harness_woke") + 4, _death(working))
    await log.interrupt()
    await asyncio.wait({working})
    await log.run()
    await log.say("rather this", said())
    return log


SCENARIOS: dict[str, Scenario] = {
    **{f"killed_after_append_{append}": functools.partial(_killed, append) for append in range(1, 8)},
    "killed_again_and_again": killed_again_and_again,
    "a_takeover_while_the_model_answers": a_takeover_while_the_model_answers,
    "a_takeover_while_a_tool_runs": a_takeover_while_a_tool_runs,
    "a_servers_call_that_nobody_knows": functools.partial(_servers_call, ToolSpec("shop__buy", "Buys.", "{}")),
    "a_servers_call_sent_again": functools.partial(
        _servers_call, ToolSpec("shop__buy", "Buys.", '{"type":"object"}', idempotent=True)
    ),
    "a_sandbox_that_was_made_and_not_said": a_sandbox_that_was_made_and_not_said,
    "a_crash_while_a_person_decides": a_crash_while_a_person_decides,
    "a_crash_in_an_interrupt": a_crash_in_an_interrupt,
}

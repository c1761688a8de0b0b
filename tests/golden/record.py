"""Records logs of this release, with what is decided at each position: `python -m tests.golden.record <release>`.

A log is a file of JSON lines: the first says which scenario it is, each other one is an event and the action that its
harness type decides on when it has read so far, at the event's time. What a release has recorded is never recorded
anew: later versions have to decide the same (`test_replay.py`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

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
from services.harness.adapters.codec import fact_of
from services.harness.loops.messages import core, make
from services.harness.loops.messages.state import fold_all
from services.harness.ports import Answer, ModelFailure
from services.kit.errors import Gone, Unavailable
from tests.support.harness_ports import (
    MemoryHands,
    MemoryLog,
    MemoryServers,
    ScriptedModel,
    Step,
    Told,
    message,
    ports,
    said,
)

SCHEMA = '{"type":"object"}'
BASH = ("bash", {"command": "ls"})
START = 1_764_000_000.0  # Unix time, seconds


class Recording(MemoryLog):
    """A log whose clock goes on by a second with each append."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.clock = START
        super().__init__(config)
        self.hands = MemoryHands()
        self.servers = MemoryServers()

    def _append(self, events: Sequence[Event], epoch: int) -> int:
        self.clock = max(self.clock, START) + 1.0
        return super()._append(events, epoch)

    async def run(self, *steps: Step) -> None:
        """Lets a harness work until it rests."""
        world = replace(ports(ScriptedModel(*steps), self.hands, self.servers), now=lambda: self.clock)
        await make().run(self, world, "golden", Told())


# --- scenarios ---
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


SCENARIOS: tuple[Callable[[], Coroutine[Any, Any, Recording]], ...] = (
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


def decided(events: Sequence[Event]) -> dict[str, Any]:
    """Says what is decided after these events, in words that outlive the code: the action, and what it is about."""
    action = core.decide(fold_all(map(fact_of, events)), events[-1].emit_time.ToNanoseconds() / 1e9)
    match action:
        case core.EndTurn(reason=reason, read=read):
            about: dict[str, Any] = {"reason": reason, "read": read}
        case core.FinishCall(call=call, result=result):
            about = {"call": call.id, "outcome": result.outcome}
        case core.AskConfirmation(call=call):
            about = {"call": call.id}
        case core.AskClient(call=call, due=due):
            about = {"call": call.id, "due": due}
        case core.LookUpTools(hands=hands, servers=servers):
            about = {"hands": list(hands), "servers": list(servers)}
        case core.RunCalls(calls=calls, provision=hands):
            runs = [
                {"call": run.call.id, "hand": run.hand, "sandbox_id": run.sandbox_id, "again": run.started is not None}
                for run in calls
            ]
            about = {"calls": runs, "provision": list(hands)}
        case core.Settle(calls=calls):
            about = {"calls": [call.call.id for call in calls]}
        case core.AskModel(read=read):
            about = {"read": read}
        case core.Pause(reached=reached):
            about = {"budget": reached.budget, "limit": reached.limit, "used": reached.used}
        case core.Rest(until=until):
            about = {"until": until}
    return {type(action).__name__: about}


def lines_of(name: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Makes a golden log."""
    lines: list[dict[str, Any]] = [{"scenario": name, "harness": "messages"}]
    for position, event in enumerate(events, 1):
        shown = MessageToDict(event, preserving_proto_field_name=True)
        lines.append({"event": shown, "then": decided(events[:position])})
    return lines


def main(release: str) -> None:
    """Records every scenario that the release has not recorded yet."""
    folder = Path(__file__).parent / release
    folder.mkdir(exist_ok=True)
    for scenario in SCENARIOS:
        file = folder / f"{scenario.__name__}.jsonl"
        if not file.exists():
            events = asyncio.run(scenario()).events
            file.write_text("".join(json.dumps(line) + "\n" for line in lines_of(scenario.__name__, events)))


if __name__ == "__main__":
    main(sys.argv[1])

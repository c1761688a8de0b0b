"""Sessions at work while a mesh of containers is restarted under them, and what must be true of them afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from handmesh.client import Client, Session
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2
from tests.support.checker import World, check

HAND, SERVER = "main", "shop"
STEPS = 5
TURN_SECONDS = 300.0  # a bound for what hangs; a turn takes three seconds on a quiet machine

BASH = '{tool_use: {tool: bash, input: {command: "echo x >> runs.txt; sleep 0.5; wc -l < runs.txt"}}}'
NOTE = "{tool_use: {tool: add_note, input: {text: a note}}}"
# Each line is numbered by what is there already: a call that ran twice, or never, shifts all that come after it. A
# machine so busy that vault_proxy does not say in time which tools there are gets on without notes.
STEP = f"""      - cases:
          - {{when: {{tool_offered: add_note}}, say: [{BASH}, {NOTE}]}}
          - {{say: [{BASH}]}}
"""
SCRIPT = f"""
conversations:
  - name: work
    when: {{user: work}}
    steps:
{STEP * STEPS}      - say: [{{text: Done.}}]
"""


@dataclass(frozen=True)
class Calls:
    """What became of the calls of the MCP server. An unknown one may have run, and was not run again."""

    well: int
    unknown: int
    all: int


@dataclass
class Worker:
    """One session. It is given turn after turn until it is told to stop."""

    session: Session
    turns: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    stopped: bool = False

    async def work(self) -> None:
        """Sends messages, one when the turn of the one before is over."""
        position = 1
        while not self.stopped:
            event_id = f"{self.session.id}-{self.turns}"
            sent = await self.session.send("work", event_id=event_id)
            self.acknowledged[event_id] = sent
            async with asyncio.timeout(TURN_SECONDS):
                async for event in self.session.watch(max(position, sent)):
                    if isinstance(event, event_pb2.Event) and event.HasField("turn_ended"):
                        position = event.position + 1
                        assert event.turn_ended.reason == event_pb2.TURN_END_REASON_DONE, await self.errors()
                        break
            self.turns += 1

    async def errors(self) -> list[str]:
        """What the log says went wrong."""
        found = [event async for event in self.session.events(kinds=["error_raised", "credential_used"])]
        return [str(event.error_raised or event.credential_used) for event in found]

    async def check(self, client: Client) -> Calls:
        """Reads everything back through the public API, says what must hold, and returns what became of its notes."""
        events = [event async for event in self.session.events()]
        request = session_pb2.VerifySessionRequest(session_id=self.session.id)
        verified = await client.session_link.call(client.session_stub.VerifySession, request)
        assert list(verified.violations) == [] and verified.last_position == len(events)
        assert check(events, self.acknowledged, World()) == []
        ended = [event.turn_ended.reason for event in events if event.HasField("turn_ended")]
        assert ended == [event_pb2.TURN_END_REASON_DONE] * self.turns
        started = {event.tool_started.tool_use_id: event.tool_started.hand for event in events if _starts(event)}
        results = [event.tool_finished for event in events if event.HasField("tool_finished")]
        assert sorted(each.tool_use_id for each in results) == sorted(started)
        runs = [each for each in results if started[each.tool_use_id] == HAND]
        assert [each.result.outcome for each in runs if each.result.outcome != tool_pb2.TOOL_OUTCOME_OK] == []
        assert [int(each.result.output) for each in runs] == list(range(1, self.turns * STEPS + 1))
        calls = [each.result.outcome for each in results if started[each.tool_use_id] == SERVER]
        return Calls(calls.count(tool_pb2.TOOL_OUTCOME_OK), calls.count(tool_pb2.TOOL_OUTCOME_UNKNOWN), len(calls))


def _starts(event: event_pb2.Event) -> bool:
    return event.HasField("tool_started")


async def workers(client: Client, count: int, server_url: str, vault_id: str) -> list[Worker]:
    """Starts so many sessions, each with a hand and an MCP server."""
    config = config_pb2.SessionConfig(
        hands={HAND: config_pb2.HandSpec()},
        mcp_servers=[config_pb2.McpServer(name=SERVER, url=server_url)],
        vault_ids=[vault_id],
    )
    return [Worker(await client.create_session(config)) for _ in range(count)]


async def more(working: list[Worker], turns: int) -> None:
    """Waits until each session has had so many more turns."""
    wanted = [each.turns + turns for each in working]
    async with asyncio.timeout(turns * TURN_SECONDS):
        while any(each.turns < want for each, want in zip(working, wanted, strict=True)):
            await asyncio.sleep(0.1)

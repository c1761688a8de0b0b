"""What happens in the demo: one turn with all kinds of hands, and one in which the harness is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from handmesh.cli.escape import one_line
from handmesh.cli.following import Item
from handmesh.cli.lines import blocks_of, kind_of
from handmesh.client import Session
from handmesh.demo.narration import Narrator
from handmesh.demo.stage import SERVER, Stage
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import config_pb2, event_pb2

FIRST_TASK = "Write a small program for a greeting, try it, and take a note."
SECOND_TASK = "Now run the slow job."
HAND = "main"

TURN_SECONDS = 60.0
"""How long a turn may take before the demo gives up."""

WAKE_AFTER = 10.0
"""How long a session may take to go on by itself, before the demo wakes it."""


LOOK_EVERY = 0.02
WORDS_SHOWN = 1_000


class StoryError(Exception):
    """The story did not go as it should."""


async def first_turn(stage: Stage, narrator: Narrator, show: Callable[[Item], None], environment: str) -> Session:
    """Starts the session and follows its first turn: text, a hand's tools, a server's tool. Returns the session."""
    config = config_pb2.SessionConfig(
        title="demo",
        hands={HAND: config_pb2.HandSpec(environment=environment)},
        mcp_servers=[config_pb2.McpServer(name=SERVER, url=stage.server_url)],
        vault_ids=[stage.vault_id],
    )
    session = await stage.client.create_session(config, FIRST_TASK)
    narrator.say(f"session {session.id}: “{FIRST_TASK}”")
    told = False
    async with asyncio.timeout(TURN_SECONDS):
        async for item in session.watch(2, previews=True):
            if not told and isinstance(item, event_pb2.Event) and _calls_server(item):
                told = True
                narrator.step(
                    "The model calls the MCP server: vault_proxy adds the token outside of the sandbox",
                    "MCP over streamable HTTP, OpenBao",
                )
            show(item)
            if not isinstance(item, event_pb2.Event):
                continue
            if item.HasField("tool_finished"):
                _require_good(item.tool_finished.result)
            if item.HasField("turn_ended"):
                if item.turn_ended.reason != event_pb2.TURN_END_REASON_DONE:
                    raise StoryError("the first turn did not end well")
                return session
    raise AssertionError("a watch has no end")


async def second_turn(stage: Stage, narrator: Narrator, session: Session, show: Callable[[Item], None]) -> str:
    """Kills the harness while a command runs, and follows the turn to its end all the same.

    Returns the id of the call that the command was.
    """
    position = await session.send(SECOND_TASK)
    narrator.say(f"“{SECOND_TASK}”")
    call, waking = "", None
    try:
        async with asyncio.timeout(TURN_SECONDS):
            async for item in session.watch(position, previews=True):
                show(item)
                if not isinstance(item, event_pb2.Event):
                    continue
                match kind_of(item):
                    case "tool_started" if not call:
                        call = item.tool_started.tool_use_id
                        await _kill_harness(stage, narrator, session, call)
                        waking = asyncio.create_task(_wake_later(session, narrator))
                    case "harness_woke" if waking is not None:
                        waking.cancel()
                    case "turn_ended":
                        return call
    finally:
        if waking is not None:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)
    raise AssertionError("a watch has no end")


def _require_good(result: tool_pb2.ToolResult) -> None:
    """Raises StoryError with what the tool, or the sandbox service for it, says: without its hand the demo is over."""
    if result.outcome != tool_pb2.TOOL_OUTCOME_OK:
        raise StoryError(f"a tool call did not go well: {one_line(result.output, WORDS_SHOWN)}")


def _calls_server(event: event_pb2.Event) -> bool:
    """Says whether the model has just called a tool of the MCP server."""
    blocks = blocks_of(event.model_replied.content_json)
    return any(str(block.get("name", "")).startswith(f"{SERVER}__") for block in blocks)


async def sandbox_of(session: Session) -> str:
    """Returns the sandbox that the session's hand is."""
    async for event in session.events(kinds=["sandbox_provisioned"]):
        return event.sandbox_provisioned.sandbox_id
    raise StoryError("the log names no sandbox")


async def _kill_harness(stage: Stage, narrator: Narrator, session: Session, call: str) -> None:
    """Waits until the hand really runs the call, kills the harness, and starts another one."""
    sandbox_id = await sandbox_of(session)
    while not await stage.runs(sandbox_id, call):  # noqa: ASYNC110 - it happens in another process
        await asyncio.sleep(LOOK_EVERY)
    pid = stage.mesh.pids["harness"]
    await stage.mesh.kill("harness")
    narrator.step(f"The command runs, and the harness (pid {pid}) is killed with SIGKILL", "a process, gone")
    still = await stage.runs(sandbox_id, call)
    narrator.say("the hand works on without it" if still else "the hand has finished meanwhile")
    await stage.mesh.restart("harness")
    narrator.step(
        f"A new harness (pid {stage.mesh.pids['harness']}) reads the log and goes on", "same log, same hand, no state"
    )


async def _wake_later(session: Session, narrator: Narrator) -> None:
    await asyncio.sleep(WAKE_AFTER)
    narrator.say(f"the session did not go on by itself within {WAKE_AFTER:g} s: Wake", "yellow")
    await session.wake()

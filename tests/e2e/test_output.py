"""What tools say while they run, at a client that watches: of a hand, and of an MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from handmesh.client import Client, Session
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import McpServer, SessionConfig
from tests.e2e.test_mesh import TURN_SECONDS, ends, kinds, only, outcomes

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]


async def watched(session: Session) -> tuple[str, list[str]]:
    """Follows a turn with one call; returns what was shown of it, and the kinds of what came, each once in a row."""
    text, came = "", [""]
    async with asyncio.timeout(TURN_SECONDS):
        async for it in session.watch(previews=True):
            if not isinstance(it, session_pb2.Preview):
                came.append(it.WhichOneof("kind") or "")
            elif it.WhichOneof("delta") == "tool_output":
                assert it.offset == len(text)
                assert it.event_id.startswith("finished-")
                text += it.tool_output
                came += ["preview"] if came[-1] != "preview" else []
            if came[-1] == "turn_ended":
                break
    return text, came


async def test_a_commands_output_is_seen_while_it_runs(client: Client) -> None:
    """Whole from its beginning, in order, between the call's start and its result, which holds it."""
    session = await client.create_session(content="step by step")
    text, came = await watched(session)
    [finished] = only([event async for event in session.events()], "tool_finished")
    assert came[came.index("tool_started") :] == [
        "tool_started",
        "preview",
        "tool_finished",
        "model_replied",
        "turn_ended",
    ]
    assert text.startswith("line 1\nline 2\n")
    assert finished.result.output.startswith(text.rstrip("\n"))


@pytest_asyncio.fixture(loop_scope="module")
async def walking() -> AsyncIterator[str]:
    """An MCP server, made with the MCP library, whose tool takes a while and says how far it is."""
    server = MCPServer("walking")

    async def walk(steps: int, context: Context) -> str:
        """Walks."""
        for step in range(1, steps + 1):
            await context.report_progress(step, steps, f"step {step}")
            await asyncio.sleep(0.1)
        return "there"

    server.add_tool(walk)
    app = server.streamable_http_app(streamable_http_path="/mcp")
    host = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(host.serve())
    while not host.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{host.servers[0].sockets[0].getsockname()[1]}/mcp"
    host.should_exit = True
    await serving


@pytest.mark.vault
async def test_a_servers_progress_is_seen_while_it_works(client: Client, walking: str) -> None:
    """As previews of the call's result: line by line, and the result says what the tool returned."""
    config = SessionConfig(no_hands=True, mcp_servers=[McpServer(name="way", url=walking)])
    session = await client.create_session(config, "walk")
    text, came = await watched(session)
    events = [event async for event in session.events()]
    assert text.startswith("[1/30] step 1\n[2/30] step 2\n")
    assert came.index("tool_started") < came.index("preview") < came.index("tool_finished")
    assert [it.result.output for it in only(events, "tool_finished")] == ["there"]
    assert (outcomes(events), ends(events), kinds(events).count("tool_started")) == (["OK"], ["DONE"], 1)

"""A server of the newest protocol, made with the MCP library: it tells of its news to who subscribes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

from handmesh.session.v1.config_pb2 import McpServer
from tests.vault_proxy.conftest import Start


@pytest.fixture
async def growing() -> AsyncIterator[str]:
    """A server whose tool adds another tool and says so."""
    server = MCPServer("growing")

    async def grow(context: Context) -> str:
        """Adds a tool."""
        server.add_tool(grow, name="more")
        await context.notify_tools_changed()
        return "grown"

    server.add_tool(grow)
    app = server.streamable_http_app(streamable_http_path="/mcp")
    host = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(host.serve())
    while not host.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{host.servers[0].sockets[0].getsockname()[1]}/mcp"
    host.should_exit = True
    await serving


async def test_its_news_are_subscribed_to(start: Start, growing: str) -> None:
    """The list is asked again without anybody's asking for it, and what changed is an event."""
    async with start() as proxy:
        grant = proxy.peer.grant(McpServer(name="big", url=growing))
        assert [tool.name for tool in (await proxy.tools(grant)).tools] == ["big__grow"]
        assert (await proxy.execute(grant, "big__grow")).output == "grown"
        while len((await proxy.tools(grant)).tools) == 1:
            await asyncio.sleep(0.01)
        [event] = await proxy.peer.uses(proxy.peer.session_of(grant), 1)
        assert list(event.tools_changed.added) == ["big__more"]

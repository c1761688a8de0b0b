"""An MCP server of several replicas that do not share their sessions, behind a balancer that knows none."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from handmesh.session.v1.config_pb2 import McpServer
from tests.vault_proxy.conftest import Proxy, Start
from tests.vault_proxy.strange_server import Reply, Request, StrangeServer, error, strange_server


@pytest.fixture
async def proxy(start: Start) -> AsyncIterator[Proxy]:
    """A vault_proxy with its secrets in memory."""
    async with start() as started:
        yield started


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def balanced(*replicas: StrangeServer) -> AsyncIterator[str]:
    """Gives each connection to the next replica."""
    turn = itertools.cycle(int(replica.url.split(":")[2].split("/")[0]) for replica in replicas)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", next(turn))
        await asyncio.gather(_pass_on(reader, outer), _pass_on(inner, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()


def strict(replica: StrangeServer) -> None:
    """Lets a replica refuse sessions that it did not make."""

    def answer(request: Request) -> Reply | None:
        if request.rpc.get("method") in ("initialize", "server/discover"):
            return None
        known = request.headers.get("mcp-session-id") == replica.session
        return None if known else error(request, -32001, "Session not found", 404)

    replica.answer = answer


async def test_calls_find_the_replica_that_knows_them(proxy: Proxy) -> None:
    """Two replicas, round robin: one after the other and at once, each call is made exactly once and answered."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(strange_server(session=f"of-{name}")) for name in "ab"]
        for replica in replicas:
            strict(replica)
        url = await stack.enter_async_context(balanced(*replicas))
        grant = proxy.peer.grant(McpServer(name="two", url=url))
        for number in range(10):
            assert (await proxy.execute(grant, "two__echo", {"text": str(number)})).output == f"you said {number}"
        at_once = [proxy.execute(grant, "two__echo", {"text": str(number)}) for number in range(10, 18)]
        assert [each.output for each in await asyncio.gather(*at_once)] == [f"you said {n}" for n in range(10, 18)]
        made = [
            request.rpc["params"]["arguments"]["text"]
            for replica in replicas
            for request in replica.requests
            if request.rpc.get("method") == "tools/call" and request.headers["mcp-session-id"] == replica.session
        ]
        assert sorted(made, key=int) == [str(number) for number in range(18)]

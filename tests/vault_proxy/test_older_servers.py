"""Servers that speak the transport from before streamable HTTP: one stream for all answers, and an endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1.config_pb2 import McpServer
from services.kit.channels import raised
from services.kit.errors import ServiceError
from tests.vault_proxy.conftest import Proxy, Start
from tests.vault_proxy.strange_server import OlderServer, Reply, Request, error, strange_server


@pytest.fixture
async def proxy(start: Start) -> AsyncIterator[Proxy]:
    """A vault_proxy with its secrets in memory."""
    async with start(HANDMESH_MCP_CONNECT_SECONDS="5") as started:
        yield started


@pytest.fixture
async def older() -> AsyncIterator[OlderServer]:
    """Such a server, with a tool that says what it is told."""
    async with strange_server(kind=OlderServer) as started:
        yield started


@pytest.fixture
def grant(proxy: Proxy, older: OlderServer) -> str:
    """A session that may use it."""
    return proxy.peer.grant(McpServer(name="old", url=older.url))


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with, as the service raised it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return raised(caught.value)


async def test_its_tools_are_listed_and_called(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """Twenty calls at once each get their own answer, over one stream."""
    assert [tool.name for tool in (await proxy.tools(grant)).tools] == ["old__echo"]
    answers = await asyncio.gather(*(proxy.execute(grant, "old__echo", {"text": str(number)}) for number in range(20)))
    assert [answer.output for answer in answers] == [f"you said {number}" for number in range(20)]
    assert len(older.streams) == 1


async def test_its_error_is_the_tools(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """A JSON-RPC error on the stream is the tool's failure."""
    older.call = lambda request: error(request, -32602, "text is too short")
    answer = await proxy.execute(grant, "old__echo", {"text": ""})
    assert answer.outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR
    assert answer.output == "the server answered with error -32602: text is too short"


async def test_a_post_that_fails_costs_its_call_only(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """It may have run, so its id keeps the error; nobody waits for an answer that will not come."""
    await proxy.tools(grant)
    older.took = Reply(500, b"no")
    for _ in range(2):
        problem = await failure(proxy.execute(grant, "old__echo", {"text": "1"}, "toolu_1"))
        assert problem.message.endswith("the tool may have run")
    assert len(older.calls()) == 1
    older.took = Reply(202)
    assert (await proxy.execute(grant, "old__echo", {"text": "2"}, "toolu_2")).output == "you said 2"


async def test_a_session_that_it_forgot_is_made_anew(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """404 for the endpoint: the stream is opened again, and the call made once more."""
    await proxy.tools(grant)
    older.endpoint = "/messages?session=2"
    original = older.reply

    def forgetful(request: Request) -> Reply:
        return Reply(404, b"no such session") if request.path == "/messages?session=1" else original(request)

    older.reply = forgetful  # type: ignore[method-assign]
    assert (await proxy.execute(grant, "old__echo", {"text": "1"})).output == "you said 1"
    assert len(older.streams) == 2


async def test_a_stream_that_ends_takes_its_calls_with_it(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """What runs may have run; what comes next opens another stream."""
    await proxy.tools(grant)
    older.call = lambda request: Reply(202)
    lost = asyncio.ensure_future(failure(proxy.execute(grant, "old__echo", {"text": "1"}, "toolu_1")))
    while not older.calls():
        await asyncio.sleep(0)
    older.end()
    assert (await lost).message.endswith("the tool may have run")
    older.call = lambda request: None
    assert (await proxy.execute(grant, "old__echo", {"text": "2"}, "toolu_2")).output == "you said 2"
    assert len(older.streams) == 2


async def test_it_is_told_to_stop(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """A cancellation is forwarded."""
    await proxy.tools(grant)
    older.call = lambda request: Reply(202)
    running = asyncio.ensure_future(proxy.execute(grant, "old__echo", {"text": "1"}, "toolu_1"))
    while not older.calls():
        await asyncio.sleep(0)
    await proxy.cancel(grant, "toolu_1")
    assert (await running).outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    while not older.heard("notifications/cancelled"):
        await asyncio.sleep(0)


async def test_what_it_says_meanwhile_is_heard(proxy: Proxy, older: OlderServer, grant: str) -> None:
    """Progress is followed while the call runs; a changed list is asked again; nonsense is passed over."""
    await proxy.tools(grant)
    older.call = lambda request: Reply(202)
    running = asyncio.ensure_future(proxy.execute(grant, "old__echo", {"text": "1"}, "toolu_1"))
    while not older.calls():
        await asyncio.sleep(0)
    [call] = older.calls()
    token = call["_meta"]["progressToken"]
    older.say(b"no JSON")
    said = {"progressToken": token, "progress": 1, "total": 4, "message": "began"}
    older.say(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": said}).encode())
    older.say(b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}')
    watch = proxy.watch(grant, "toolu_1")
    assert (await anext(watch)).chunk == "[1/4] began\n"
    older.tools.append({"name": "more", "inputSchema": {"type": "object"}})
    while len((await proxy.tools(grant)).tools) == 1:
        await asyncio.sleep(0)
    await proxy.cancel(grant, "toolu_1")
    last = await anext(watch)
    assert (last.result, last.next_offset) == (await running, len("[1/4] began\n"))


async def test_a_server_of_neither_kind_is_said(proxy: Proxy) -> None:
    """It costs its own tools only, at once."""
    for told in (Reply(404, b""), Reply(200, b"<html>", {"Content-Type": "text/html"})):

        def page(request: Request, told: Reply = told) -> Reply:
            return told if request.method == "GET" else Reply(405, b"")

        async with strange_server(answer=page) as strange:
            grant = proxy.peer.grant(McpServer(name="page", url=strange.url))
            assert [each.reason for each in (await proxy.tools(grant)).problems] == ["SERVER_UNAVAILABLE"]

"""Executions by their ids: at most once, attached to, cancelled, outliving their callers, forgotten in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1.config_pb2 import McpServer
from services.kit.channels import raised
from services.kit.errors import Exists, Gone, Invalid, ServiceError, Unavailable
from tests.vault_proxy.conftest import Proxy, Start
from tests.vault_proxy.strange_server import Reply, Request, StrangeServer, strange_server

PAY = {"name": "pay", "inputSchema": {"type": "object"}}
LOOK = {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
HOLD = Reply(200, b": still here\n\n", {"Content-Type": "text/event-stream"}, hold=True)


@pytest.fixture
async def proxy(start: Start) -> AsyncIterator[Proxy]:
    """A vault_proxy with its secrets in memory."""
    async with start() as started:
        yield started


@pytest.fixture
async def strange() -> AsyncIterator[StrangeServer]:
    """An MCP server with a tool that pays and a tool that looks."""
    async with strange_server(tools=[PAY, LOOK]) as started:
        yield started


@pytest.fixture
def grant(proxy: Proxy, strange: StrangeServer) -> str:
    """A session that may use it."""
    return proxy.peer.grant(McpServer(name="bank", url=strange.url))


async def failure(call: Any) -> ServiceError:
    """Returns the error that a call ends with, as the service raised it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return raised(caught.value)


async def until_called(strange: StrangeServer, count: int = 1) -> None:
    """Waits until so many tool calls have reached the server."""
    while len(strange.calls()) < count:
        await asyncio.sleep(0)


async def test_a_second_call_gets_the_first_ones_result(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """By its id, in any spelling of its input, attached or not; the server is called once."""
    first = await proxy.execute(grant, "bank__pay", '{"text": "5", "to": "ada"}', "toolu_1")
    again = await proxy.execute(grant, "bank__pay", ' {"to":"ada","text":"5"} ', "toolu_1")
    attached = await proxy.execute(grant, "bank__pay", {"to": "ada", "text": "5"}, "toolu_1", attach_only=True)
    assert first == again == attached
    assert first.output == "you said 5"
    assert len(strange.calls()) == 1


async def test_calls_at_once_with_one_id_are_one(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """Ten callers wait for the same execution."""
    answers = await asyncio.gather(*(proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1") for _ in range(10)))
    assert {answer.output for answer in answers} == {"you said 5"}
    assert len(strange.calls()) == 1


async def test_an_id_stands_for_one_call(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """Another tool or another input under a known id is refused."""
    await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")
    for name, arguments in (("bank__pay", {"text": "6"}), ("bank__look", {"text": "5"})):
        problem = await failure(proxy.execute(grant, name, arguments, "toolu_1"))
        assert (type(problem), problem.reason) == (Exists, "EXECUTION_ID_REUSED")
        assert problem.metadata == {"execution_id": "toolu_1"}
    assert len(strange.calls()) == 1


async def test_ids_are_a_sessions_own(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """Another session's execution is not known, whatever its id."""
    await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")
    other = proxy.peer.grant(McpServer(name="bank", url=strange.url))
    problem = await failure(proxy.execute(other, "bank__pay", {"text": "5"}, "toolu_1", attach_only=True))
    assert (type(problem), problem.reason) == (Gone, "EXECUTION_UNKNOWN")
    await proxy.cancel(other, "toolu_1")
    assert (await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")).output == "you said 5"


async def test_attaching_starts_nothing(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """An unknown execution stays unknown, and so does one without a name."""
    for execution_id in ("toolu_1", None):
        problem = await failure(proxy.execute(grant, "bank__pay", {"text": "5"}, execution_id, attach_only=True))
        assert (type(problem), problem.reason) == (Gone, "EXECUTION_UNKNOWN")
    assert strange.calls() == []


async def test_without_an_id_every_call_is_its_own(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """Nothing is remembered of it."""
    for _ in range(2):
        await proxy.execute(grant, "bank__pay", {"text": "5"})
    assert len(strange.calls()) == 2


async def test_an_execution_outlives_its_caller(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """The caller dies; the call goes on, and who asks for its id gets the result."""
    strange.call = lambda request: HOLD if request.rpc["params"]["arguments"].get("text") == "hold" else None
    calling = asyncio.ensure_future(proxy.execute(grant, "bank__pay", {"text": "hold"}, "toolu_1"))
    await until_called(strange)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    attached = asyncio.ensure_future(proxy.execute(grant, "bank__pay", {"text": "hold"}, "toolu_1", attach_only=True))
    await proxy.execute(grant, "bank__pay", {"text": "another meanwhile"})
    assert not attached.done()
    await proxy.cancel(grant, "toolu_1")
    assert (await attached).outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    assert [each["arguments"]["text"] for each in strange.calls()] == ["hold", "another meanwhile"]


async def test_a_call_without_an_id_ends_with_its_caller(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """Nobody can ask for it again: the server is told to stop."""
    strange.call = lambda request: HOLD
    calling = asyncio.ensure_future(proxy.execute(grant, "bank__pay", {"text": "hold"}))
    await until_called(strange)
    calling.cancel()
    while not strange.heard("notifications/cancelled"):
        await asyncio.sleep(0)


async def test_a_cancelled_call_is_interrupted(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """The server is told; the callers get the result at once; the id keeps it; what comes later is not harmed."""
    strange.call = lambda request: HOLD if request.rpc["params"]["arguments"].get("text") == "hold" else None
    running = asyncio.ensure_future(proxy.execute(grant, "bank__pay", {"text": "hold"}, "toolu_1"))
    await until_called(strange)
    await proxy.cancel(grant, "toolu_1")
    await proxy.cancel(grant, "toolu_1")
    answer = await running
    assert answer.outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    assert await proxy.execute(grant, "bank__pay", {"text": "hold"}, "toolu_1") == answer
    while not strange.heard("notifications/cancelled"):
        await asyncio.sleep(0)
    assert (await proxy.execute(grant, "bank__pay", {"text": "next"}, "toolu_2")).output == "you said next"


async def test_what_is_cancelled_first_never_starts(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """A cancellation that overtakes its call."""
    await proxy.cancel(grant, "toolu_1")
    answer = await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")
    assert answer.outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    assert strange.calls() == []


async def test_what_has_ended_is_not_cancelled(proxy: Proxy, grant: str) -> None:
    """Its result stays; and a cancellation needs an id."""
    first = await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")
    await proxy.cancel(grant, "toolu_1")
    assert await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1") == first
    problem = await failure(proxy.cancel(grant, ""))
    assert (type(problem), problem.reason) == (Invalid, "ID_INVALID")


async def test_a_call_has_its_time(start: Start, strange: StrangeServer) -> None:
    """Past its time it is a timeout, remembered under its id; the server is told to stop."""
    strange.call = lambda request: HOLD
    async with start(HANDMESH_MCP_CALL_SECONDS="1") as proxy:
        grant = proxy.peer.grant(McpServer(name="bank", url=strange.url))
        answer = await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")
        assert answer.outcome == tool_pb2.TOOL_OUTCOME_TIMEOUT
        assert await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1") == answer
        while not strange.heard("notifications/cancelled"):
            await asyncio.sleep(0)
    assert len(strange.calls()) == 1


BROKEN = {
    "hangs up": Reply(200, b"", {"Content-Type": "application/json"}, hang_up=True),
    "says nothing": Reply(200, b"", {"Content-Type": "text/event-stream"}),
    "no JSON": Reply(200, b"<html>", {"Content-Type": "application/json"}),
    "no MCP": Reply(200, b'{"jsonrpc": "2.0", "id": 1, "nonsense": 1}', {"Content-Type": "application/json"}),
    "another type": Reply(200, b"hello", {"Content-Type": "text/plain"}),
    "an error of its own": Reply(503, b"later"),
    "only taken": Reply(202),
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN.keys())
async def test_what_may_have_run_is_not_run_again(
    proxy: Proxy, strange: StrangeServer, grant: str, reply: Reply
) -> None:
    """The answer is lost: the id gives the same error for ever, and the tool does not run twice."""
    strange.call = lambda request: reply
    for attach_only in (False, False, True):
        problem = await failure(proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1", attach_only))
        assert (type(problem), problem.reason) == (Unavailable, "SERVER_UNAVAILABLE")
        assert problem.message.endswith("the tool may have run")
    assert len(strange.calls()) == 1


async def test_what_only_reads_is_run_again(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """A tool that is annotated so can be called again under the same id."""
    strange.call = lambda request: BROKEN["hangs up"]
    await failure(proxy.execute(grant, "bank__look", {"text": "5"}, "toolu_1"))
    strange.call = lambda request: None
    assert (await proxy.execute(grant, "bank__look", {"text": "5"}, "toolu_1")).output == "you said 5"


NOT_RUN = {
    "too many requests": Reply(429, b"slow down"),
    "elsewhere": Reply(307, b"", {"Location": "https://elsewhere.example/"}),
    "forbidden": Reply(403, b"no"),
}


@pytest.mark.parametrize("reply", NOT_RUN.values(), ids=NOT_RUN.keys())
async def test_what_surely_did_not_run_may_be_tried_again(
    proxy: Proxy, strange: StrangeServer, grant: str, reply: Reply
) -> None:
    """The server refused the call as such: the same id may be used again."""
    strange.call = lambda request: reply
    problem = await failure(proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1"))
    assert (type(problem), problem.reason) == (Unavailable, "SERVER_UNAVAILABLE")
    assert problem.message.endswith("the tool did not run")
    unknown = await failure(proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1", attach_only=True))
    assert unknown.reason == "EXECUTION_UNKNOWN"
    strange.call = lambda request: None
    assert (await proxy.execute(grant, "bank__pay", {"text": "5"}, "toolu_1")).output == "you said 5"


async def test_one_broken_call_costs_no_other(proxy: Proxy, strange: StrangeServer, grant: str) -> None:
    """Calls at once on one connection: those that are answered have their answers."""

    def call(request: Request) -> Reply | None:
        text = request.rpc["params"]["arguments"]["text"]
        return list(BROKEN.values())[int(text) // 2] if int(text) % 2 else None

    strange.call = call
    calls = [proxy.execute(grant, "bank__pay", {"text": str(number)}) for number in range(14)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, grpc.aio.AioRpcError) for answer in answers] == [False, True] * 7

"""Two replicas of vault_proxy: a call that one runs is found by whoever asks the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handmesh.launcher.ports import free_ports
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import connect
from tests.vault_proxy.conftest import ONCE, Proxy, Start
from tests.vault_proxy.session_peer import GRANT_KEY
from tests.vault_proxy.strange_server import Reply, Request, StrangeServer, strange_server
from tests.vault_proxy.test_servers import failure


class Slow:
    """A tool that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()

    def call(self, request: Request) -> Reply:
        """Takes a call: the answer comes later."""
        self.asked.set()
        self.id = request.rpc["id"]
        return Reply(200, b": wait\n\n", {"Content-Type": "text/event-stream"}, parts=self.said)

    def answer(self, text: str) -> None:
        """Answers it."""
        content = [{"type": "text", "text": text}]
        body = json.dumps({"jsonrpc": "2.0", "id": self.id, "result": {"content": content}})
        self.said.put_nowait(f"data: {body}\n\n".encode())
        self.said.put_nowait(None)


@pytest.fixture
def slow() -> Slow:
    """What answers calls of the tool."""
    return Slow()


@pytest.fixture
async def server(slow: Slow) -> AsyncIterator[StrangeServer]:
    """Its server."""
    async with strange_server(call=slow.call) as strange:
        yield strange


@pytest.fixture
async def two(start: Start) -> AsyncIterator[tuple[Proxy, Proxy]]:
    """Two replicas that know of each other."""
    one, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    async with (
        start(HANDMESH_LISTEN=one, HANDMESH_VAULT_PROXY_REPLICAS=other) as first,
        start(HANDMESH_LISTEN=other, HANDMESH_VAULT_PROXY_REPLICAS=one) as second,
    ):
        yield first, second


def grants(proxy: Proxy, server: StrangeServer) -> tuple[str, str]:
    """Makes the grants of two harnesses that have a session one after the other."""
    mcp = McpServer(name="s", url=server.url)
    first = proxy.peer.grant(mcp, epoch=2)
    return first, proxy.peer.grant(mcp, session_id=proxy.peer.session_of(first), epoch=9)


async def test_a_second_harness_finds_the_call_of_the_first(
    two: tuple[Proxy, Proxy], server: StrangeServer, slow: Slow
) -> None:
    """The first harness dies while its tool runs. The second asks the other replica, which waits for the one execution:
    while it runs, and after it has ended. The server is called once."""
    one, other = two
    first, second = grants(one, server)
    channel = connect(one.address, one.tls / "harness", once=ONCE)
    request = pb.ExecuteRequest(name="s__echo", input="{}", execution_id="toolu_1")
    running: Any = VaultProxyServiceStub(channel).Execute(request, metadata=((GRANT_KEY, first),))  # type: ignore[arg-type]
    await slow.asked.wait()
    await channel.close()
    running.cancel()
    one.peer.revoke(first, below_epoch=9)
    attached = asyncio.ensure_future(other.execute(second, "s__echo", {}, "toolu_1", attach_only=True))
    slow.answer("done once")
    assert (await attached).output == "done once"
    again = await other.execute(second, "s__echo", {}, "toolu_1", attach_only=True)
    assert (again.output, again.outcome) == ("done once", tool_pb2.TOOL_OUTCOME_OK)
    assert len(server.calls()) == 1


async def test_what_no_replica_knows_is_unknown(two: tuple[Proxy, Proxy], server: StrangeServer) -> None:
    """Both are asked, and none starts it; it is the same when the other replica is gone."""
    one, other = two
    grant, _ = grants(one, server)
    for _ in range(2):
        problem = await failure(other.execute(grant, "s__echo", {}, "toolu_1", attach_only=True))
        assert problem.reason == "EXECUTION_UNKNOWN"
        await one.stop()
    assert server.calls() == []


async def test_what_a_call_ended_with_is_told_by_the_other(two: tuple[Proxy, Proxy], server: StrangeServer) -> None:
    """An error that stays with an id is found as a result is; and an id of another call is refused there, too."""
    one, other = two
    grant, _ = grants(one, server)
    server.call = lambda request: Reply(200, b"{", {"Content-Type": "application/json"}, hang_up=True)
    lost = await failure(one.execute(grant, "s__echo", {}, "toolu_1"))
    found = await failure(other.execute(grant, "s__echo", {}, "toolu_1", attach_only=True))
    assert (found.reason, found.message) == (lost.reason, lost.message)
    reused = await failure(other.execute(grant, "s__echo", {"text": "x"}, "toolu_1", attach_only=True))
    assert reused.reason == "EXECUTION_ID_REUSED"


async def test_a_cancellation_reaches_the_one_that_runs_it(
    two: tuple[Proxy, Proxy], server: StrangeServer, slow: Slow
) -> None:
    """Cancelled at either, it is cancelled where it runs; and what is not known starts at neither."""
    one, other = two
    grant, _ = grants(one, server)
    running = asyncio.ensure_future(one.execute(grant, "s__echo", {}, "toolu_1"))
    await slow.asked.wait()
    await other.cancel(grant, "toolu_1")
    assert (await running).outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    await other.cancel(grant, "toolu_2")
    for proxy in two:
        told = await proxy.execute(grant, "s__echo", {}, "toolu_2")
        assert told.outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    assert len(server.calls()) == 1


async def test_a_replica_starts_nothing_for_another(two: tuple[Proxy, Proxy], server: StrangeServer) -> None:
    """Whoever shows a replica's certificate gets what is known, even with a grant and without `attach_only`."""
    one, _ = two
    grant, _ = grants(one, server)
    async with connect(one.address, one.tls / "vault_proxy") as channel:
        request = pb.ExecuteRequest(name="s__echo", input="{}", execution_id="toolu_1")
        stub: Any = VaultProxyServiceStub(channel)  # type: ignore[arg-type]
        problem = await failure(stub.Execute(request, metadata=((GRANT_KEY, grant),)))
    assert (problem.reason, server.calls()) == ("EXECUTION_UNKNOWN", [])

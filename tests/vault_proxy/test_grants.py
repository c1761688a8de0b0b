"""Grants: what is asked of the session service, what is kept, and what a revocation ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit import grants, ids
from services.kit.channels import raised
from services.kit.errors import Unauthenticated, Unavailable
from tests.support.mesh_server import Served
from tests.vault_proxy.conftest import Proxy, Start
from tests.vault_proxy.session_peer import GRANT_KEY, SessionPeer
from tests.vault_proxy.strange_server import Reply, Request, StrangeServer, strange_server


@pytest.fixture
async def proxy(start: Start) -> AsyncIterator[Proxy]:
    """A vault_proxy with its secrets in memory."""
    async with start() as started:
        yield started


@pytest.fixture
async def strange() -> AsyncIterator[StrangeServer]:
    """An MCP server whose calls never end when they say so."""

    def call(request: Request) -> Reply | None:
        forever = request.rpc["params"]["arguments"].get("text") == "forever"
        return Reply(200, b": still here\n\n", {"Content-Type": "text/event-stream"}, hold=True) if forever else None

    async with strange_server(call=call) as started:
        yield started


async def refusal(call: Any) -> Unauthenticated:
    """Returns the refusal that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    problem = raised(caught.value)
    assert isinstance(problem, Unauthenticated)
    return problem


async def kept(proxy: Proxy, grant: str) -> None:
    """Calls until an answer is kept: the stream's first message may still be on its way."""
    while True:
        before = proxy.peer.checks
        await proxy.tools(grant)
        if proxy.peer.checks == before:
            return


@pytest.mark.parametrize(
    "metadata",
    [(), ((GRANT_KEY, "unknown"),), ((GRANT_KEY, ""),), ((GRANT_KEY, "x" * 600),)],
    ids=["none", "unknown", "empty", "long"],
)
async def test_without_a_valid_grant_nothing_is_done(proxy: Proxy, metadata: Any) -> None:
    """Every call for a session shows its grant."""
    stub = proxy.harness
    for call in (
        stub.ListTools(pb.ListToolsRequest(), metadata=metadata),
        stub.Execute(pb.ExecuteRequest(name="a__b"), metadata=metadata),
        stub.CancelExecution(pb.CancelExecutionRequest(execution_id="x"), metadata=metadata),
    ):
        assert (await refusal(call)).reason == "GRANT_INVALID"
    watch = stub.WatchExecution(pb.WatchExecutionRequest(execution_id="x"), metadata=metadata)
    assert (await refusal(watch.read())).reason == "GRANT_INVALID"


async def test_two_grants_are_none(proxy: Proxy) -> None:
    """Which one counts is not left to chance."""
    shown = tuple((GRANT_KEY, proxy.peer.grant()) for _ in range(2))
    assert (await refusal(proxy.harness.ListTools(pb.ListToolsRequest(), metadata=shown))).reason == "GRANT_INVALID"


async def test_a_client_uses_grants_of_its_own_tenant_only(proxy: Proxy) -> None:
    """A grant that has leaked to another tenant's client is worth nothing there."""
    mine = ((GRANT_KEY, proxy.peer.grant(tenant="default")),)
    theirs = ((GRANT_KEY, proxy.peer.grant(tenant="other")),)
    await proxy.client.ListTools(pb.ListToolsRequest(), metadata=mine)
    assert (await refusal(proxy.client.ListTools(pb.ListToolsRequest(), metadata=theirs))).reason == "GRANT_INVALID"
    await proxy.harness.ListTools(pb.ListToolsRequest(), metadata=theirs)


async def test_answers_are_kept_while_revocations_are_watched(proxy: Proxy) -> None:
    """The session service is not asked at every call."""
    grant = proxy.peer.grant()
    await kept(proxy, grant)


async def test_nothing_is_kept_without_the_stream(start: Start, session_peer: tuple[SessionPeer, Served]) -> None:
    """No sign of life yet: every call asks."""
    session_peer[0].mute = True
    async with start() as proxy:
        grant = proxy.peer.grant()
        for _ in range(5):
            await proxy.tools(grant)
        assert proxy.peer.checks == 5


async def test_a_broken_stream_forgets_what_was_kept(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was revoked while nobody listened is refused, however long it might have been kept."""
    monkeypatch.setattr(grants, "CACHE_SECONDS", 3600.0)
    grant = proxy.peer.grant()
    await kept(proxy, grant)
    del proxy.peer.grants[grant]
    await proxy.tools(grant)  # the control: it was kept
    proxy.peer.break_streams()
    await proxy.peer.watched.wait()
    assert (await refusal(proxy.tools(grant))).reason == "GRANT_INVALID"


async def test_a_revoked_grant_ends_all_that_it_allowed(
    proxy: Proxy, strange: StrangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New calls are refused, the running one ends as interrupted, the session's connections are closed."""
    monkeypatch.setattr(grants, "CACHE_SECONDS", 3600.0)
    grant = proxy.peer.grant(McpServer(name="strange", url=strange.url))
    await kept(proxy, grant)
    running = asyncio.ensure_future(proxy.execute(grant, "strange__echo", {"text": "forever"}, "toolu_1"))
    while not strange.calls():
        await asyncio.sleep(0)
    proxy.peer.revoke(grant)
    answer = await running
    assert answer.outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    assert (await refusal(proxy.tools(grant))).reason == "GRANT_INVALID"
    while not any(request.method == "DELETE" for request in strange.requests):
        await asyncio.sleep(0)


async def test_a_newer_harness_takes_over_what_runs(
    proxy: Proxy, strange: StrangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the old grant is void: the new harness attaches to the running call and gets its one result."""
    monkeypatch.setattr(grants, "CACHE_SECONDS", 3600.0)
    session_id = ids.mint("sess")
    server = McpServer(name="strange", url=strange.url)
    old = proxy.peer.grant(server, session_id=session_id, epoch=2)
    await kept(proxy, old)
    running = asyncio.ensure_future(proxy.execute(old, "strange__echo", {"text": "forever"}, "toolu_1"))
    while not strange.calls():
        await asyncio.sleep(0)
    new = proxy.peer.grant(server, session_id=session_id, epoch=9)
    await kept(proxy, new)
    proxy.peer.revoke(old, below_epoch=9)
    with pytest.raises(grpc.aio.AioRpcError):
        while True:
            await proxy.tools(old)
    attached = asyncio.ensure_future(
        proxy.execute(new, "strange__echo", {"text": "forever"}, "toolu_1", attach_only=True)
    )
    await proxy.tools(new)
    assert not running.done()
    await proxy.cancel(new, "toolu_1")
    assert await running == await attached
    assert len(strange.calls()) == 1


async def test_without_the_session_service_nothing_is_let_in(
    start: Start, session_peer: tuple[SessionPeer, Served]
) -> None:
    """It cannot be asked: the call may be made again later."""
    async with start(HANDMESH_SESSION_ADDRESS="127.0.0.1:9") as proxy:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await proxy.execute(session_peer[0].grant(), "a__b")
        problem = raised(caught.value)
        assert (type(problem), problem.reason) == (Unavailable, "SESSION_UNAVAILABLE")

"""V16: a grant that was overheard is used when it is over, by somebody else, or twice.

That a grant ends with its time is `tests/session/test_grants.py`; that nobody may keep an answer for longer than five
seconds, and not at all without the stream of revocations, is `tests/vault_proxy/test_grants.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1 import event_pb2, session_pb2
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY
from tests.security.ground import Ground

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

# A second is promised, and bench/vault/ends.py holds it; a machine that runs other tests beside this one gets two more.
DEAD_WITHIN = 3.0


class Thief:
    """Uses a grant in every way there is, with every certificate of the mesh."""

    def __init__(self, ground: Ground, grant: str, sandbox_id: str, epoch: int) -> None:
        self._ground = ground
        self._metadata = ((GRANT_KEY, grant),)
        self._sandbox_id = sandbox_id
        self._epoch = epoch

    async def _told(self, call: Awaitable[Any]) -> str:
        try:
            await call
        except grpc.aio.AioRpcError as refused:
            return raised(refused).reason
        return "ok"

    async def tools(self) -> str:
        """Lists MCP tools as a harness."""
        async with self._ground.as_service("harness", "vault_proxy") as channel:
            stub = VaultProxyServiceStub(channel)
            return await self._told(stub.ListTools(pb.ListToolsRequest(), metadata=self._metadata))

    async def credential(self, caller: str = "harness") -> str:
        """Calls an MCP tool, which uses a credential."""
        async with self._ground.as_service(caller, "vault_proxy") as channel:
            request = pb.ExecuteRequest(name="shop__who_am_i", input="{}")
            return await self._told(VaultProxyServiceStub(channel).Execute(request, metadata=self._metadata))

    async def client(self) -> str:
        """Calls an MCP tool as a client of the tenant."""
        request = pb.ExecuteRequest(name="shop__who_am_i", input="{}")
        metadata = (*self._ground.me.link.metadata, *self._metadata)
        return await self._told(self._ground.me.vaults.Execute(request, metadata=metadata))

    async def command(self, caller: str = "harness") -> str:
        """Runs a command in the session's sandbox."""
        async with self._ground.as_service(caller, "sandbox") as channel:
            request = sandbox_pb2.ExecuteRequest(
                sandbox_id=self._sandbox_id, name="bash", input='{"command": "true"}', epoch=self._epoch
            )
            return await self._told(SandboxServiceStub(channel).Execute(request, metadata=self._metadata))

    async def check(self, caller: str) -> str:
        """Asks what it is for, as a service that may ask."""
        async with self._ground.as_service(caller, "session") as channel:
            request = session_pb2.CheckGrantRequest(vault_access=caller == "vault_proxy")
            return await self._told(SessionServiceStub(channel).CheckGrant(request, metadata=self._metadata))

    def ways(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """Returns all ways that work while the grant is good."""
        return {
            "tools": self.tools,
            "credential": self.credential,
            "client": self.client,
            "command": self.command,
            "check by vault_proxy": lambda: self.check("vault_proxy"),
            "check by sandbox": lambda: self.check("sandbox"),
        }

    async def all(self) -> dict[str, str]:
        """Uses it in all ways at once."""
        ways = self.ways()
        return dict(zip(ways, await asyncio.gather(*(way() for way in ways.values())), strict=True))

    async def until_dead(self, since: float) -> dict[str, str]:
        """Uses it in all ways until none works; within the time that it may take."""
        while True:
            found = await self.all()
            if "ok" not in found.values():
                return found
            assert time.monotonic() - since < DEAD_WITHIN, found


async def thief_of(ground: Ground, session_id: str) -> Thief:
    """Overhears a session's grant."""
    [sandbox] = await ground.me.client.sandboxes(session_id)
    events = [event async for event in ground.me.client.session(session_id).events()]
    return Thief(ground, ground.grant_of(session_id), sandbox.sandbox_id, max(event.epoch for event in events))


async def test_a_grant_ends_with_its_session(ground: Ground) -> None:
    """For every caller at once: no tool, no credential, no command, no answer of the session service."""
    session = await ground.work("everything")
    thief = await thief_of(ground, session.id)
    assert set((await thief.all()).values()) == {"ok"}, "the control: it was good"
    await session.end("over")
    found = await thief.until_dead(time.monotonic())
    assert set(found.values()) <= {"GRANT_INVALID", "SANDBOX_GONE"}
    assert found["credential"] == found["client"] == found["check by vault_proxy"] == "GRANT_INVALID"


async def test_what_runs_is_cut_with_its_session(ground: Ground) -> None:
    """A call that lasts, and a stream that watches it, end when the session does; its connections to servers close."""
    config = SessionConfig(mcp_servers=ground.servers, vault_ids=[ground.vault_id])
    waits = len(ground.shop.calls("wait"))
    session = await ground.me.client.create_session(config, "wait")
    grant = call = ""
    async for event in session.watch():
        if event.HasField("tool_started"):
            grant, call = ground.grant_of(session.id), event.tool_started.tool_use_id
            break
    while len(await asyncio.to_thread(ground.shop.calls, "wait")) == waits:  # it is said before it is asked for
        await asyncio.sleep(0.01)
    async with ground.as_service("harness", "vault_proxy") as channel:
        stub = VaultProxyServiceStub(channel)
        watch = stub.WatchExecution(pb.WatchExecutionRequest(execution_id=call), metadata=((GRANT_KEY, grant),))
        reading = asyncio.ensure_future(watch.read())
        listing = stub.ListTools(pb.ListToolsRequest(), metadata=((GRANT_KEY, grant),))
        assert len((await listing).tools) > 1, "the control: it is good"
        deleted = sum(request.method == "DELETE" for request in ground.strange.requests)
        assert not reading.done()
        await session.end("over")
        async with asyncio.timeout(DEAD_WITHIN):
            last = await reading
            assert last.WhichOneof("event") == "result"
            while sum(request.method == "DELETE" for request in ground.strange.requests) == deleted:
                await asyncio.sleep(0.01)


async def test_a_grant_ends_when_another_harness_takes_over(ground: Ground) -> None:
    """The old and the new one at once, after the change: the new one works, the old one does not, and what is emitted
    under the old epoch is stale."""
    session = await ground.work("everything")
    old = await thief_of(ground, session.id)
    events = [event async for event in session.events()]
    woke = event_pb2.Event(harness_woke=event_pb2.HarnessWoke(harness="messages", instance="another"))
    async with ground.as_service("harness", "session") as channel:
        stub = SessionServiceStub(channel)
        request = session_pb2.EmitEventRequest(session_id=session.id, event=woke, expected_position=len(events))
        emitted = stub.EmitEvent(request)
        epoch = (await emitted).position
        trailing = dict(await emitted.trailing_metadata())
        taken = Thief(ground, str(trailing[GRANT_KEY]), old._sandbox_id, epoch)
        found = await old.until_dead(time.monotonic())
        assert set(found.values()) <= {"GRANT_INVALID", "EPOCH_STALE"}
        both = await asyncio.gather(*(thief.all() for thief in [old, taken] * 3))
        assert [set(each.values()) for each in both[1::2]] == [{"ok"}] * 3
        assert all("ok" not in each.values() for each in both[::2])
        stale = session_pb2.EmitEventRequest(
            session_id=session.id, epoch=old._epoch, event=event_pb2.Event(error_raised=event_pb2.ErrorRaised())
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.EmitEvent(stale)
        assert raised(caught.value).reason == "EPOCH_STALE"


async def test_a_grant_is_for_those_who_may_show_it(ground: Ground) -> None:
    """Alive, but with another service's certificate: it starts nothing."""
    session = await ground.work("everything")
    thief = await thief_of(ground, session.id)
    for caller in ("session", "sandbox"):
        assert await thief.credential(caller) == "METHOD_DENIED"
    assert await thief.credential("vault_proxy") == "EXECUTION_UNKNOWN", "a replica may attach, and start nothing"
    for caller in ("session", "vault_proxy"):
        assert await thief.command(caller) == "METHOD_DENIED"
    assert await thief.check("harness") == "METHOD_DENIED"
    assert set((await thief.all()).values()) == {"ok"}, "the control: it is alive"

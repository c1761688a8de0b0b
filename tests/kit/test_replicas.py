"""Calls to a service with several replicas: where they go, and where they go next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from handmesh.replicas import members
from handmesh.replicas.channel import Replicas, is_single
from handmesh.replicas.ranking import PIN_KEY, ranked, sign, signed
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import (
    SandboxServiceServicer,
    SandboxServiceStub,
    add_SandboxServiceServicer_to_server,
)
from services.kit.ids import MINTED, mint

NAMES = ["a:1", "b:1", "c:1"]
SANDBOX = "sbx_00000000000000000000000000"


def test_each_pin_has_its_replica_and_only_those_of_a_lost_one_move() -> None:
    """All replicas get their share; without one of them the others keep what was theirs, in the same order."""
    pins = [f"sess_{number}" for number in range(300)]
    firsts = {pin: [NAMES[at] for at in ranked(pin, NAMES)] for pin in pins}
    assert {min(90, sum(order[0] == name for order in firsts.values())) for name in NAMES} <= set(range(70, 91))
    for pin, order in firsts.items():
        left = ["a:1", "c:1"]
        assert [left[at] for at in ranked(pin, left)] == [name for name in order if name != "b:1"]


def test_the_id_of_a_sandbox_names_its_node() -> None:
    """It keeps its form and its age, and ends with its node's sign."""
    minted = mint("sbx")
    made = signed(minted, "node-1:7413")
    assert MINTED.fullmatch(made) and made.endswith(sign("node-1:7413")) and made[:14] == minted[:14]
    assert sign("node-1:7413") != sign("node-2:7413")


class Replica(SandboxServiceServicer):
    """Answers with its name; or as it is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.refuses = False
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_SandboxServiceServicer_to_server(self, self.server)

    async def start(self, port: int = 0) -> str:
        """Serves and returns the address."""
        port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        await self.server.start()
        return f"127.0.0.1:{port}"

    async def _admit(self, context: Any) -> None:
        self.asked += 1
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")

    async def Checkpoint(self, request: pb.CheckpointRequest, context: Any) -> pb.CheckpointResponse:
        await self._admit(context)
        return pb.CheckpointResponse(checkpoint_id=self.name)

    async def ListTools(self, request: pb.ListToolsRequest, context: Any) -> pb.ListToolsResponse:
        await self._admit(context)
        shown = {key for key, _ in context.invocation_metadata()}
        return pb.ListToolsResponse(environment=self.name, environment_description=str(PIN_KEY in shown))

    async def ReadFile(self, request: pb.ReadFileRequest, context: Any) -> AsyncIterator[pb.ReadFileResponse]:
        await self._admit(context)
        yield pb.ReadFileResponse(chunk=self.name.encode())
        if request.offset:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone in the middle")


@pytest.fixture
async def two() -> AsyncIterator[list[Replica]]:
    """Two replicas that serve, by name `0` and `1`; `address` of each is where."""
    replicas = [Replica("0"), Replica("1")]
    for replica in replicas:
        replica.address = await replica.start()  # type: ignore[attr-defined]
    yield replicas
    for replica in replicas:
        await replica.server.stop(None)


def channel_to(replicas: list[Any], **more: Any) -> Replicas:
    """Opens a channel to replicas, in plain text."""
    return Replicas(
        ",".join(it.address for it in replicas), lambda target, _: grpc.aio.insecure_channel(target), **more
    )


async def where(stub: Any, pin: str) -> str:
    """Says which replica answers a call with such a pin."""
    return str((await stub.ListTools(pb.ListToolsRequest(), metadata=((PIN_KEY, pin),), timeout=10)).environment)


async def test_a_pinned_call_stays_with_its_replica_until_that_is_away(two: list[Any]) -> None:
    """Pins are spread; a replica that is stopped loses its pins to the other one, and has them again when it is back.
    What a pin was is told to nobody."""
    async with channel_to(two) as channel:
        stub = SandboxServiceStub(channel)
        homes = {f"pin{number}": await where(stub, f"pin{number}") for number in range(12)}
        assert set(homes.values()) == {"0", "1"}
        assert {pin: await where(stub, pin) for pin in homes} == homes
        answer = await stub.ListTools(pb.ListToolsRequest(), metadata=((PIN_KEY, "x"),))
        assert answer.environment_description == "False"
        await two[0].server.stop(None)
        assert {await where(stub, pin) for pin in homes} == {"1"}
        back = Replica("0")
        await back.start(int(two[0].address.rpartition(":")[2]))
        mine = next(pin for pin, home in homes.items() if home == "0")
        async with asyncio.timeout(20):
            while await where(stub, mine) != "0":
                await asyncio.sleep(0.05)
        await back.server.stop(None)


async def test_a_sandbox_is_asked_for_where_its_id_says(two: list[Any]) -> None:
    """Whatever the hash says of it, and at any replica when its node is not among those that the caller knows."""
    async with channel_to(two) as channel:
        stub = SandboxServiceStub(channel)
        for _ in range(8):
            for replica in two:
                request = pb.CheckpointRequest(sandbox_id=signed(mint("sbx"), replica.address))
                assert (await stub.Checkpoint(request)).checkpoint_id == replica.name
        assert (await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))).checkpoint_id in ("0", "1")


async def test_a_replica_that_drains_is_left_for_the_next(two: list[Any]) -> None:
    """Also by a stream that has said nothing; a stream that has said something ends with what happened, for its reader
    to go on."""
    async with channel_to(two) as channel:
        stub = SandboxServiceStub(channel)
        mine = two[int((await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))).checkpoint_id)]
        other = two[1 - two.index(mine)]
        mine.refuses = True
        assert (await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))).checkpoint_id == other.name
        said = [answer.chunk async for answer in stub.ReadFile(pb.ReadFileRequest(sandbox_id=SANDBOX))]
        assert said == [other.name.encode()]
        call = stub.ReadFile(pb.ReadFileRequest(sandbox_id=SANDBOX, offset=1))
        assert (await call.read()).chunk == other.name.encode()
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await call.read()
        assert cut.value.code() is grpc.StatusCode.UNAVAILABLE
        asked = other.asked
        other.refuses = True
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))
        assert other.asked - asked == 5  # the last of five rounds


async def test_what_may_be_asked_once_is_asked_once_and_of_one_that_is_there(two: list[Any]) -> None:
    """A replica that is known to be away is passed over before anything is sent; what was sent is not sent again."""
    once = [("handmesh.sandbox.v1.SandboxService", "Checkpoint")]
    async with channel_to(two, once=once) as channel:
        stub = SandboxServiceStub(channel)
        mine = two[int((await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))).checkpoint_id)]
        other = two[1 - two.index(mine)]
        mine.refuses = True
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))
        assert (refused.value.details(), mine.asked, other.asked) == ("draining", 2, 0)
        await mine.server.stop(None)
        assert (await stub.Checkpoint(pb.CheckpointRequest(sandbox_id=SANDBOX))).checkpoint_id == other.name


async def test_a_name_that_stands_for_several_is_several_replicas(
    two: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found at the first call; what the name stands for later is found when that was believed long enough."""
    stands_for = [two[0].address]

    async def targets(address: str) -> list[str]:
        assert address == "sandbox.test:1"
        return stands_for

    monkeypatch.setattr(members, "_targets", targets)
    opened: list[tuple[str, str]] = []

    def opening(target: str, name: str) -> grpc.aio.Channel:
        opened.append((target, name))
        return grpc.aio.insecure_channel(two[0].address if target == "sandbox.test:1" else target)

    async with Replicas("sandbox.test:1", opening) as channel:
        stub = SandboxServiceStub(channel)
        assert {await where(stub, str(pin)) for pin in range(8)} == {"0"}
        assert opened == [("sandbox.test:1", "")]  # one place: grpc itself looks it up, whenever it connects
        stands_for = sorted(it.address for it in two)
        monkeypatch.setattr(members, "LOOK_UP_SECONDS", 0.0)
        async with asyncio.timeout(10):
            while len({await where(stub, str(pin)) for pin in range(8)}) < 2:
                await asyncio.sleep(0)
        assert opened[1:] == [(address, "sandbox.test:1") for address in stands_for]
    assert not is_single("sandbox.test:1") and is_single("localhost:1") and is_single("[::1]:1")

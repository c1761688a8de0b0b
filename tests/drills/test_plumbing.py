"""What many callers, big events and dropped streams do to the service: nothing, beyond an error to whoever asked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.client.channels import Link
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.session.core import Status
from tests.drills.process import client_of, insist, memory_of, processes
from tests.drills.size import FULL, size
from tests.session.running import Run, note
from tests.support.nats import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

WATCHERS = 200
SILENT_SECONDS = 180
DROPPED = size(1_000, 10_000)


async def test_watchers_outlive_restarts_of_nats(run: Run, own_nats_server: NatsServer) -> None:
    """NATS restarts under 200 watchers: each sees every position once, in order."""
    async with run() as service:
        sessions = [await service.create() for _ in range(4)]
        written = 1

        async def watch(number: int) -> list[int]:
            seen: list[int] = []
            while len(seen) < 46:
                request = pb.WatchEventsRequest(session_id=sessions[number % 4], start_position=len(seen) + 1)
                try:
                    async for answer in service.client.WatchEvents(request, timeout=30):
                        seen += [event.position for event in answer.events]
                        if len(seen) >= 46:
                            break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                    await asyncio.sleep(0.02)
            return seen

        watching = [asyncio.create_task(watch(number)) for number in range(WATCHERS)]
        for _ in range(3):
            for _ in range(15):
                written += 1
                for session in sessions:
                    request = pb.EmitEventRequest(session_id=session, event=note(f"n{written}"))
                    assert (await insist(service.client, "EmitEvent", request)).position == written
            await own_nats_server.restart()
        async with asyncio.timeout(60):
            assert [await each for each in watching] == [list(range(1, 47))] * WATCHERS


@pytest.mark.skipif(not FULL, reason="it only waits: `make drill` has it")
async def test_a_silent_call_is_left_alone(run: Run) -> None:
    """Nothing is said in two calls for three minutes, and then something: both are still there and hear it.

    Services ping each other every 5 s and clients every 10 s, so a server with gRPC's own settings would have closed
    after the third ping: at most 30 s. Three minutes are 36 and 18 pings; ten would tell no more.
    `tests/kit/test_keepalive.py` sees the pings themselves.
    """
    async with run() as service:
        session = await service.create()
        link = Link(service.served.client_address, service.served.key, None)
        stubs = SessionServiceStub(link.channel), service.harness
        request = pb.WatchEventsRequest(session_id=session)
        watches = [stub.WatchEvents(request, metadata=link.metadata) for stub in stubs]
        assert [[each.position for each in (await watch.read()).events] for watch in watches] == [[1], [1]]
        await asyncio.sleep(SILENT_SECONDS)
        await service.emit(session, note("at_last"))
        assert [[each.position for each in (await watch.read()).events] for watch in watches] == [[2], [2]]
        for watch in watches:
            watch.cancel()
        await link.close()


@pytest.mark.parametrize("megabytes", [0.9, 1.0, 1.1, 8.0, 70.0])
async def test_a_big_event_is_its_senders_problem(run: Run, megabytes: float) -> None:
    """It is stored, or refused with a reason, and neither that connection nor anybody else's is closed by it."""
    async with run() as service:
        session, other = await service.create(), await service.create()
        lost = asyncio.create_task(service.store.lost())
        event = note("big", int(megabytes * 1024 * 1024))
        request = pb.EmitEventRequest(session_id=session, event=event)
        neighbours = [asyncio.create_task(service.emit(other, note(f"n{number}"))) for number in range(10)]
        if megabytes < 1:
            assert (await service.client.EmitEvent(request)).position == 2
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.client.EmitEvent(request)
            assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
        await asyncio.gather(*neighbours)
        assert (await service.emit(session, note("after"))).position == (3 if megabytes < 1 else 2)
        assert not lost.done()
        lost.cancel()
        await asyncio.wait({lost})


async def test_dropped_watches_leave_nothing(own_nats_server: NatsServer, identities: Path) -> None:
    """Watch streams that are opened and dropped, read or not: memory and sockets stay flat."""
    async with processes(own_nats_server, identities) as process, client_of(process.served) as stub:
        await process.start()
        session = (await insist(stub, "CreateSession", pb.CreateSessionRequest())).session.session_id
        await _drop(stub, session, 300)
        assert process.running is not None
        before = await _weight(process.running.pid)
        await _drop(stub, session, DROPPED)
        after = await _weight(process.running.pid)
        assert after[1] <= before[1] + 5, "descriptors"
        assert after[0] <= before[0] + 30_000, "kB of memory"
        assert (
            await insist(stub, "GetSession", pb.GetSessionRequest(session_id=session))
        ).session.status == Status.IDLE


async def _drop(stub: Any, session: str, count: int) -> None:
    """Opens and drops streams, 50 at once: every other one after its first message."""

    async def one(number: int) -> None:
        call = stub.WatchEvents(pb.WatchEventsRequest(session_id=session, previews=number % 3 == 0))
        if number % 2:
            await call.read()
        call.cancel()

    for start in range(0, count, 50):
        await asyncio.gather(*(one(start + number) for number in range(50)))


async def _weight(pid: int) -> tuple[int, int]:
    """Returns a process's memory in kB and its descriptors, once what was dropped has been noticed."""
    least: tuple[int, int] | None = None
    for _ in range(20):
        await asyncio.sleep(0.05)
        memory = memory_of(pid)
        now = memory, len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
        least = now if least is None else min(least, now, key=lambda each: each[1])
    assert least is not None
    return least

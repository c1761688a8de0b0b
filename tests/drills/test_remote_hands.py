"""Hands that dial out, over links that break and a service that is killed: each call runs once, and is said whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.hand import Call, Hand, Place, Worker, tool
from handmesh.hand.local import Directory
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import session_pb2
from tests.drills.size import size
from tests.sandbox.owning import Ground, ground
from tests.support.cut_link import CutLink, cut_link

pytestmark = [pytest.mark.timeout(600)]

LINES, PAUSE = size(20, 30), size(5, 100) / 100  # a command of so many lines, and seconds between two
CUT_SECONDS = size(2, 60)
WORKERS, CALLS, CUTS = size(15, 200), size(4, 10), size(3, 10)
SECONDS = 200.0


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Ground]:
    """A session service, and the sandbox service as a process of its own."""
    async with ground(tmp_path) as made:
        yield made


class Counting(Hand):
    """Counts what it is asked."""

    capacity = 2

    def __init__(self, ran: Counter[str]) -> None:
        self._ran = ran

    @tool
    async def work(self, number: int, call: Call) -> str:
        """Takes a moment."""
        self._ran[call.execution_id] += 1
        await asyncio.sleep(random.uniform(0, 0.3))
        return str(number * number)


@asynccontextmanager
async def linked(it: Ground, *hands: tuple[str, Hand]) -> AsyncIterator[CutLink]:
    """Connects workers by a link that can be cut."""
    port = int(it.process.environment["HANDMESH_CLIENT_LISTEN"].rpartition(":")[2])
    async with cut_link(port) as link:
        workers = []
        for name, hand in hands:
            made = await it.session.client.CreateHandToken(session_pb2.CreateHandTokenRequest(name=name))
            workers.append(Worker(hand, Place(f"127.0.0.1:{link.port}", name, made.token)))
        running = [asyncio.create_task(worker.run()) for worker in workers]
        async with asyncio.timeout(SECONDS):
            for worker in workers:
                await worker.linked.wait()
        try:
            yield link
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for worker in workers:
                await worker.close()


async def sandbox(it: Ground, name: str) -> str:
    made = await it.client.Provision(pb.ProvisionRequest(environment=name))
    return str(made.sandbox.sandbox_id)


async def execute(it: Ground, sandbox_id: str, name: str, execution_id: str, **given: Any) -> tool_pb2.ToolResult:
    """Runs a tool, and asks again with the same id when the service is away."""
    request = pb.ExecuteRequest(sandbox_id=sandbox_id, name=name, input=json.dumps(given), execution_id=execution_id)
    async with asyncio.timeout(SECONDS):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return (await it.client.Execute(request, wait_for_ready=True)).result
            await asyncio.sleep(0.1)


async def output(it: Ground, sandbox_id: str, execution_id: str) -> str:
    request = pb.WatchExecutionRequest(sandbox_id=sandbox_id, execution_id=execution_id)
    return "".join([said.chunk async for said in it.client.WatchExecution(request)])


@pytest.mark.parametrize("how", ["cut", "silence", "kill"])
async def test_what_breaks_amid_a_command_costs_nothing(it: Ground, tmp_path: Path, how: str) -> None:
    """The link is cut, or silent, for longer than the command takes, or the service is killed: one run, all lines."""
    root = tmp_path / "root"
    root.mkdir()
    text = f"echo ran >> runs; for n in $(seq {LINES}); do echo line $n; sleep {PAUSE}; done"
    async with linked(it, ("box", Directory(root, {"PATH": "/usr/bin:/bin"}))) as link:
        box = await sandbox(it, "box")
        call = asyncio.create_task(execute(it, box, "bash", "call-1", command=text))
        async with asyncio.timeout(SECONDS):
            while not (root / "runs").exists():
                await asyncio.sleep(0.01)
        if how == "kill":
            await it.process.end(signal.SIGKILL)
            await it.process.start()
        else:
            getattr(link, how)()
            await asyncio.sleep(CUT_SECONDS)
            link.mend()
        whole = "".join(f"line {number}\n" for number in range(1, LINES + 1))
        told = await call
        assert (told.outcome, told.output) == (tool_pb2.TOOL_OUTCOME_OK, whole.rstrip())
        assert await output(it, box, "call-1") == whole
        assert (root / "runs").read_text() == "ran\n"


async def test_many_workers_over_a_bad_link(it: Ground) -> None:
    """All their links are cut again and again while each is asked: every call has its own answer, and ran once."""
    ran: Counter[str] = Counter()
    names = [f"hand-{number}" for number in range(WORKERS)]
    async with linked(it, *((name, Counting(ran)) for name in names)) as link:
        boxes = [await sandbox(it, name) for name in names]

        async def asked(number: int) -> None:
            for turn in range(CALLS):
                told = await execute(it, boxes[number], "work", f"call-{number}-{turn}", number=number * 100 + turn)
                assert told.output == str((number * 100 + turn) ** 2), told

        asking = asyncio.gather(*map(asked, range(WORKERS)))
        for _ in range(CUTS):
            await asyncio.sleep(random.uniform(0.1, 0.5))
            link.cut()
            await asyncio.sleep(random.uniform(0, 0.2))
            link.mend()
        await asking
    assert ran == Counter({f"call-{number}-{turn}": 1 for number in range(WORKERS) for turn in range(CALLS)})

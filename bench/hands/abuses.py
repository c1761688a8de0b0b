"""After a bomb, and under a flood: when the next Execute answers, and how much memory the service has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc

from bench.figure import Figure, Unmeasured
from bench.hands.world import World, start
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2

NEXT_SECONDS = 2.0
SERVICE_MB = 150.0
FLOOD_MB = 200
_BOMBS = {
    "a fork bomb": "f() { f | f & }; f; sleep 60",
    "a memory bomb": 'python3 -c "x = bytearray(4 << 30)" || exit',
    "a memory bomb of many": "for i in 1 2 3 4 5 6 7 8; do"
    " python3 -c 'x = bytearray(400 << 20); import time; time.sleep(0.5)' & done; wait",
}
_BOMB_SECONDS = 1.5


async def measure(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of abuse."""
    async with start() as world:
        for backend in world.backends:
            for bomb, command in _BOMBS.items():
                yield await _after(world, backend, bomb, command, 2 if size == "ci" else 8)
            yield await _flooded(world, backend)
        for backend, problem in world.problems.items():
            if problem:
                yield Unmeasured(f"abuse, {backend}", problem)


async def _after(world: World, backend: str, bomb: str, command: str, times: int) -> Figure:
    sandbox_id = await world.provision(f"{backend}-cold")
    taken, bombed, ended = [], [], set()
    for _ in range(times):
        begun = time.perf_counter()
        bombing = await world.execute(sandbox_id, command, seconds=_BOMB_SECONDS)
        bombed.append(time.perf_counter() - begun)
        ended.add(tool_pb2.ToolOutcome.Name(bombing.outcome).removeprefix("TOOL_OUTCOME_"))
        begun = time.perf_counter()
        result = await world.execute(sandbox_id, "echo on")
        taken.append(time.perf_counter() - begun)
        if result.output != "on":
            raise RuntimeError(f"after {bomb} Execute said {result.output!r}")
    await world.release([sandbox_id])
    more = {"bomb": sorted(ended), "bomb_answered_after_s": round(max(bombed), 3), "bomb_limit_s": _BOMB_SECONDS}
    return Figure(f"the next Execute after {bomb}, {backend}", "s", tuple(taken), NEXT_SECONDS, more=more)


async def _flooded(world: World, backend: str) -> Figure:
    """One execution says all of it while somebody watches; then eight say it together."""
    sandbox_id = await world.provision(f"{backend}-cold")
    world.forget_peak()
    before = world.peak_memory()
    watched = await _watched(world, sandbox_id)
    alone = world.peak_memory()
    each = FLOOD_MB // 8
    await asyncio.gather(*(world.execute(sandbox_id, f"yes | head -c {each}M; exit 0") for _ in range(8)))
    await world.release([sandbox_id])
    more = {"idle_mb": round(before, 1), "alone_mb": round(alone, 1), "watched_mb": round(watched / 1e6, 1)}
    name = f"service's peak memory at {FLOOD_MB} MB of tool output, {backend}"
    return Figure(name, "MB", (world.peak_memory(),), SERVICE_MB, more=more)


async def _watched(world: World, sandbox_id: str) -> int:
    """Runs a flood and reads what there is of it meanwhile; returns how many bytes that was."""
    command = f'{{"command": "yes | head -c {FLOOD_MB}M; exit 0"}}'
    request = pb.ExecuteRequest(sandbox_id=sandbox_id, name="bash", input=command, execution_id="toolu_flood")
    flood = asyncio.ensure_future(world.stub.Execute(request))
    wanted = pb.WatchExecutionRequest(sandbox_id=sandbox_id, execution_id="toolu_flood")
    seen = 0
    while not seen:
        try:
            async for said in world.stub.WatchExecution(wanted):
                seen += len(said.chunk)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:  # it has not begun
                raise
    await flood
    return seen

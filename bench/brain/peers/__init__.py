"""kill -9 in a long tool, beside others: DBOS and LangGraph's development server, on the same model, the same command.

Each has one process that has turns, and is started again at once after the kill (this mesh also has a row with a
second harness, as it is run). Right before the kill ten more inputs are given and acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.brain.model import Plan
from bench.brain.peers.environment import NotInstalledError, environment
from bench.brain.peers.ours import Handmesh
from bench.brain.peers.systems import Dbos, LangGraph, System
from bench.brain.progress import told
from bench.brain.shown import Shown
from bench.brain.world import World, start
from bench.figure import Figure, Unmeasured

TOOL_SECONDS = {"ci": 1.0, "full": 10.0}
PART = 0.5  # of the tool's time, until the kill
MORE = 10
PATIENCE_SECONDS = {"ci": 8.0, "full": 45.0}  # after the tool could have ended
AFTER_TOOL_SECONDS = 2.0


async def measure(size: str) -> AsyncIterator[Any]:
    """Kills each system once."""
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(start())
        await world.mesh.kill("harness")
        systems: list[System] = [Handmesh(world, 2), Handmesh(world, 1)]
        try:
            systems += await _others(world, size)
        except NotInstalledError as problem:
            yield Unmeasured("kill -9 in a tool, of DBOS and LangGraph", str(problem))
        for number, system in enumerate(systems):
            told(f"  {system.name}: {number + 1} of {len(systems)}")
            try:
                shown = await _killed(system, number, size, world.folder)
            finally:
                await system.stop()
            yield Shown(f"kill -9 in a tool of {TOOL_SECONDS[size]:g} s: {system.name}", shown)
            if isinstance(system, Handmesh):
                for figure in _figures(system.name, shown, size):
                    yield figure


async def _others(world: World, size: str) -> list[System]:
    if size != "full":
        raise NotInstalledError("only a run at full size measures them")
    programs = await asyncio.to_thread(environment)
    dbos = Dbos(world.folder / "dbos", programs, world.model_url)
    return [dbos, LangGraph(world.folder / "langgraph", programs, world.model_url)]


def _figures(name: str, shown: dict[str, Any], size: str) -> list[Figure]:
    bound = TOOL_SECONDS[size] * (1 - PART) + AFTER_TOOL_SECONDS
    answer = shown["answer_s"] if shown["answer_s"] is not None else float("inf")
    wrong = abs(shown["executions"] - 1) + shown["acknowledged_inputs_lost"]
    return [
        Figure(f"{name}: kill -9 in a tool to the answer", "s", (answer,), bound),
        Figure(f"{name}: executions too many or too few, and inputs lost", "", (float(wrong),), 0.0),
    ]


async def _killed(system: System, number: int, size: str, folder: Path) -> dict[str, Any]:
    """Kills a system in its tool, and looks what becomes of its inputs."""
    await system.start()
    first, seconds = 1_000 * (number + 1), TOOL_SECONDS[size]
    await system.ask(first, Plan(f"echo {first} >> {system.ran}; sleep {seconds}", number=first).text)
    while not _executions(system, first, folder):
        await asyncio.sleep(0.02)
    await asyncio.sleep(seconds * PART)
    more = [first + 1 + at for at in range(MORE)]
    for each in more:
        await system.ask(each, Plan(number=each, delay_ms=1_000).text)
    killed = time.monotonic_ns()
    await system.kill()
    await system.start()
    served = time.monotonic_ns()
    end = killed + int((seconds + PATIENCE_SECONDS[size]) * 1e9)
    while time.monotonic_ns() < end and not {first, *more} <= (await system.answers()).keys():
        await asyncio.sleep(0.05)
    answers = await system.answers()
    return {
        "answer_s": round((answers[first] - killed) / 1e9, 2) if first in answers else None,
        "serves_again_s": round((served - killed) / 1e9, 2),
        "executions": _executions(system, first, folder),
        "acknowledged_inputs": 1 + MORE,
        "acknowledged_inputs_lost": len({first, *more} - answers.keys()),
    }


def _executions(system: System, number: int, folder: Path) -> int:
    """Counts what the tool has noted, in the file of the peer or in the sandboxes of the mesh."""
    files = [system.ran] if system.ran.is_absolute() else (folder / "mesh" / "sandbox").glob("**/workspace/ran")
    return sum(file.read_text().splitlines().count(str(number)) for file in files if file.exists())

"""Many at once: executions in one sandbox, and idle sandboxes on one machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.figure import Figure, Unmeasured
from bench.hands.world import World, p50, start

AT_ONCE = 64
MAKING_AT_ONCE = 4
OVERHEAD_MB = 30.0


async def measure(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of many at once."""
    async with start() as world:
        for backend in world.backends:
            yield await _executions(world, backend, 2 if size == "ci" else 5)
            yield await _sandboxes(world, backend, 30 if size == "ci" else 100)
        for backend, problem in world.problems.items():
            if problem:
                yield Unmeasured(f"{AT_ONCE} executions at once, {backend}", problem)
                yield Unmeasured(f"overhead of a sandbox, {backend}", problem)


async def _executions(world: World, backend: str, times: int) -> Figure:
    sandbox_id = await world.provision(f"{backend}-cold")
    right, taken = [], []
    for _ in range(times):
        begun = time.perf_counter()
        calls = [world.execute(sandbox_id, f"sleep 0.1; echo {number}; exit 7") for number in range(AT_ONCE)]
        results = await asyncio.gather(*calls)
        taken.append(time.perf_counter() - begun)
        right.append(
            float(sum(said.output.split("\n")[0] == str(at) and said.exit_code == 7 for at, said in enumerate(results)))
        )
    await world.release([sandbox_id])
    more = {"seconds": round(p50(taken), 3)}
    name = f"of {AT_ONCE} executions at once in one sandbox end rightly, {backend}"
    return Figure(name, "executions", tuple(right), float(AT_ONCE), least=True, more=more)


async def _sandboxes(world: World, backend: str, count: int) -> Figure | Unmeasured:
    name = f"overhead of each of {count} sandboxes, {backend}"
    room = asyncio.Semaphore(MAKING_AT_ONCE)

    async def make() -> str:
        async with room:
            sandbox_id = await world.provision(f"{backend}-cold")
            await world.execute(sandbox_id, "echo hi")  # one that has worked, not one that has only begun
            return sandbox_id

    begun = time.perf_counter()
    made = await asyncio.gather(*(make() for _ in range(count)))
    took = time.perf_counter() - begun
    try:
        parts = _containers(made) if backend == "docker" else _trees(world, made)
    except (FileNotFoundError, PermissionError) as problem:
        return Unmeasured(name, str(problem))
    finally:
        await world.release(made)
    more = {part: round(p50(values), 2) for part, values in parts.items()} | {"made_in_seconds": round(took, 1)}
    return Figure(name, "MB", tuple(map(sum, zip(*parts.values(), strict=True))), OVERHEAD_MB, more=more)


def _containers(made: list[str]) -> dict[str, list[float]]:
    from bench.hands import engine

    client = engine.client()
    try:
        shims = engine.shims()
        found = [engine.overhead(client, f"handmesh-{sandbox_id}", shims) for sandbox_id in made]
    finally:
        client.close()
    groups, resident = zip(*found, strict=True)
    return {"control_group_mb": list(groups), "shim_mb": list(resident)}


def _trees(world: World, made: list[str]) -> dict[str, list[float]]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _read(folder / "stat")):
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(folder.name))
    state = world.directory / "state" / "bubblewrap" / "sandboxes"
    roots = [int(json.loads((state / sandbox_id / "sandbox.json").read_text())["facts"]["pid"]) for sandbox_id in made]
    return {"proportional_mb": [_proportional(root, children) for root in roots]}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return ""


def _proportional(pid: int, children: dict[int, list[int]]) -> float:
    """Returns the memory of a process and all below it, with its share of what is shared, in MB."""
    own = [line for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines() if line.startswith("Pss:")]
    below = sum(_proportional(child, children) for child in children.get(pid, []))
    return (int(own[0].split()[1]) / 1024 if own else 0.0) + below

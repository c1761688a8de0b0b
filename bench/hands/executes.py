"""Execute of `echo`, beside an echo server, a spawn on this machine and `docker exec`, in interleaved blocks."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from bench.figure import Figure, Unmeasured
from bench.hands.world import World, p50, spawns, start, timed

CALLS = 30  # of a block
EXECS = 5
SPAWNS_ALLOWED = 2.5
FASTER = 15.0


async def measure(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of Execute."""
    async with start() as world:
        for backend, problem in world.problems.items():
            if problem:
                yield Unmeasured(f"Execute of echo, {backend}", problem)
        with ExitStack() as stack:
            docker = _docker_exec(stack) if "docker" in world.backends else None
            async for figure in _beside(world, docker, 8 if size == "ci" else 30):
                yield figure


def _docker_exec(stack: ExitStack) -> Any:
    from bench.hands import engine

    client = engine.client()
    stack.callback(client.close)
    made = stack.enter_context(engine.container(client))
    return lambda: engine.executed(client, made, EXECS)


async def _beside(world: World, docker: Any, blocks: int) -> AsyncIterator[Figure]:
    made = {backend: await world.provision(f"{backend}-cold") for backend in world.backends}
    rows: dict[str, list[float]] = {name: [] for name in ("echo", "spawn", "exec", *made)}
    for block in range(blocks + 1):
        measured = {"echo": p50(await timed(world.echoed, CALLS)), "spawn": p50(spawns(CALLS))}
        for backend, sandbox_id in made.items():
            measured[backend] = p50(await timed(_echo(world, sandbox_id), CALLS))
        if docker is not None:
            measured["exec"] = p50(docker())
        if block:  # the first one warms up
            for name, value in measured.items():
                rows[name].append(value)
    shown = {f"{name}_p50_ms": round(statistics.median(values), 3) for name, values in rows.items() if values}
    for backend in made:
        allowed = [echo + SPAWNS_ALLOWED * spawn for echo, spawn in zip(rows["echo"], rows["spawn"], strict=True)]
        ratios = tuple(took / most for took, most in zip(rows[backend], allowed, strict=True))
        name = f"Execute p50 : echo + {SPAWNS_ALLOWED} host spawns, {backend}"
        yield Figure(name, "ratio", ratios, 1.0, more=shown)
        if docker is not None:
            times = tuple(theirs / ours for theirs, ours in zip(rows["exec"], rows[backend], strict=True))
            yield Figure(f"docker exec p50 : Execute p50, {backend}", "ratio", times, FASTER, least=True, more=shown)


def _echo(world: World, sandbox_id: str) -> Any:
    async def call() -> None:
        result = await world.execute(sandbox_id, "echo hi")
        if result.output != "hi":
            raise RuntimeError(f"Execute said {result.output!r}")

    return call

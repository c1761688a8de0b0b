"""Provision: a warm claim beside an echo and beside a cold one, and a cold one beside a bare create and start."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from bench.figure import Figure, Unmeasured
from bench.hands.world import POOL, World, p50, start, timed

CLAIM_MS = 2.0
TIMES_FASTER = 50.0
BARE_FACTOR, BARE_MORE_MS = 1.15, 60.0


async def measure_cold(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of a Provision without a pool."""
    async with start() as world:
        if world.problems["docker"]:
            yield Unmeasured("cold Provision, docker", world.problems["docker"])
            return
        async for figure in _beside_bare(world, 8 if size == "ci" else 25):
            yield figure


async def measure_claims(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of a Provision from a pool."""
    async with start(pools=True) as world:
        for backend in world.backends:
            await world.filled(f"{backend}-warm")
            cold = await _cold(world, backend, 5 if size == "ci" else 15)
            async for figure in _claims(world, backend, cold, 3 if size == "ci" else 6):
                yield figure
        for backend, problem in world.problems.items():
            if problem:
                yield Unmeasured(f"warm claim, {backend}", problem)


async def _provisioned(world: World, environment: str) -> float:
    """Returns how long a Provision took, in ms, and releases its sandbox."""
    begun = time.perf_counter()
    made = await world.provision(environment)
    taken = (time.perf_counter() - begun) * 1000
    await world.release([made])
    return taken


async def _cold(world: World, backend: str, times: int) -> float:
    await _provisioned(world, f"{backend}-cold")  # the first one looks at the backend
    return p50([await _provisioned(world, f"{backend}-cold") for _ in range(times)])


async def _beside_bare(world: World, blocks: int) -> AsyncIterator[Figure]:
    from bench.hands import engine

    client: Any = engine.client()
    try:
        ratios, ours, bares = [], [], []
        await _provisioned(world, "docker-cold")  # the first one looks at the backend
        for _ in range(blocks):
            bare = p50([engine.started(client) for _ in range(2)])
            took = p50([await _provisioned(world, "docker-cold") for _ in range(2)])
            ratios.append(took / (BARE_FACTOR * bare + BARE_MORE_MS))
            ours.append(took)
            bares.append(bare)
    finally:
        client.close()
    shown = {"provision_p50_ms": round(p50(ours), 1), "bare_p50_ms": round(p50(bares), 1)}
    name = f"cold Provision : {BARE_FACTOR} x bare create and start + {BARE_MORE_MS:.0f} ms, docker"
    yield Figure(name, "ratio", tuple(ratios), 1.0, more=shown)


async def _claims(world: World, backend: str, cold: float, blocks: int) -> AsyncIterator[Figure]:
    environment = f"{backend}-warm"
    against_echo, against_cold, claims, echoes = [], [], [], []
    for block in range(blocks + 1):
        await world.filled(environment)
        await timed(world.echoed, 5)
        taken, echo, made = [], [], []
        for _ in range(POOL - 1):  # one is left: an empty pool would be cold
            echo += await timed(world.echoed, 3)
            begun = time.perf_counter()
            made.append(await world.provision(environment))
            taken.append((time.perf_counter() - begun) * 1000)
        await world.release(made)
        if block:
            claims.append(p50(taken))
            echoes.append(p50(echo))
            against_echo.append(claims[-1] / (echoes[-1] + CLAIM_MS))
            against_cold.append(cold / claims[-1])
    shown = {"claim_p50_ms": round(p50(claims), 3), "echo_p50_ms": round(p50(echoes), 3), "cold_p50_ms": round(cold, 1)}
    name = f"warm claim p50 : echo + {CLAIM_MS:.0f} ms, {backend}"
    yield Figure(name, "ratio", tuple(against_echo), 1.0, more=shown)
    name = f"cold Provision p50 : warm claim p50, {backend}"
    yield Figure(name, "ratio", tuple(against_cold), TIMES_FASTER, least=True, more=shown)

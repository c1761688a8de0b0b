"""Many sessions that call a tool at once: each with a connection, a token and a credential of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.figure import Figure
from bench.vault.world import World

SESSIONS = {"ci": 60, "full": 200}
AT_ONCE = 20  # that are made
ROUNDS = 3
MEMORY_MB = 250.0


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields the most memory that the service has had."""
    room = asyncio.Semaphore(AT_ONCE)

    async def woken() -> str:
        async with room:
            return (await world.woken()).grant

    grants = await asyncio.gather(*(woken() for _ in range(SESSIONS[size])))
    status = Path(f"/proc/{world.stage.mesh.pids['vault_proxy']}/status")
    before = _megabytes(status, "VmRSS")
    begun = time.perf_counter()
    for turn in range(ROUNDS):
        await asyncio.gather(*(world.execute(grant, f"toolu_{turn}_{number}") for number, grant in enumerate(grants)))
    shown = {
        "sessions": SESSIONS[size],
        "before_mb": round(before, 1),
        "after_mb": round(_megabytes(status, "VmRSS"), 1),
        "calls_per_second": round(ROUNDS * len(grants) / (time.perf_counter() - begun)),
    }
    yield Figure(
        "memory with many sessions at once, at most", "MB", (_megabytes(status, "VmHWM"),), MEMORY_MB, more=shown
    )


def _megabytes(status: Path, name: str) -> float:
    for line in status.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0

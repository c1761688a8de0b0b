"""How long a mesh takes to be healthy, first and warm, and how much memory it has before its first turn."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import handmesh.scripted_model
from bench.figure import Figure
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import MeshSettings, Scripted

FIRST_STARTS = 2
WARM_STARTS = 5
COUNTED = (
    "session",
    "harness",
    "sandbox",
    "vault_proxy",
    "nats",
    "openbao",
    "janitor",
)  # the scripted model stands for Claude
SCRIPT = Path(handmesh.scripted_model.__file__).parent / "default.yaml"


async def measure(size: str, only: str) -> AsyncIterator[Figure]:
    """Starts meshes in folders of their own, on free ports."""
    first: list[float] = []
    warm: list[float] = []
    memory: list[float] = []
    for _ in range(FIRST_STARTS):
        with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
            first.append(await _started(Path(folder), memory=None))
            if len(first) == FIRST_STARTS:
                warm.extend([await _started(Path(folder), memory) for _ in range(WARM_STARTS)])
    for figure in (
        Figure("up, first start, to healthy", "s", tuple(first), 6.0),
        Figure("up, warm, to healthy", "s", tuple(warm), 2.0),
        Figure("idle mesh before its first turn, resident", "MB", tuple(memory), 400.0),
    ):
        yield figure


async def _started(folder: Path, memory: list[float] | None) -> float:
    settings = MeshSettings(folder, Scripted(SCRIPT), os.environ, Ports.free(), log_level="warning")
    begun = time.perf_counter()
    async with await Mesh.start(settings) as mesh:
        took = time.perf_counter() - begun
        if memory is not None:
            memory.append(sum(_resident(mesh.pids[part]) for part in COUNTED))
    return took


def _resident(pid: int) -> float:
    """Returns a process's resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0

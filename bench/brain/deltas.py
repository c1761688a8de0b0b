"""How much later the first piece of an answer comes through the mesh than from the model's SDK alone.

Both arms ask the same model, one after the other, in blocks of turns. The model says when a request was there, and
takes 20 ms to its first piece: it is asked while the session is taken up, and nothing is shown before that is durable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from bench.brain.echo import echo
from bench.brain.model import Plan
from bench.brain.progress import telling
from bench.brain.watch import Watch
from bench.brain.world import World, first_piece, p50, percentile, start, timed
from bench.figure import Figure

BLOCKS = {"ci": 5, "full": 12}
TURNS = {"ci": 8, "full": 50}
WARM_UP = 10
LATER_P50_MS, LATER_P95_MS = 2.5, 4.0
ECHOES = 12.0
PLAN = Plan(pieces=3, delay_ms=20.0, every_ms=5.0)  # no model answers before the session is taken up


@dataclass(frozen=True)
class Block:
    """What one block of turns took, in ms, of both arms, and an echo beside them."""

    mesh: list[float]  # from the request's arrival at the model
    direct: list[float]
    mesh_whole: list[float]  # from the client's call
    direct_whole: list[float]
    echo: float


async def measure(size: str) -> AsyncIterator[Any]:
    """Measures blocks, the arms interleaved in each."""
    async with start(linger="0") as world, echo(world) as called:
        watch = await world.session()
        for _ in range(WARM_UP):
            await world.turn(watch, PLAN)
            await first_piece(world.sdk, PLAN)
        blocks = [
            await _block(world, watch, called, TURNS[size]) for _ in telling("blocks of turns", range(BLOCKS[size]))
        ]
    later50 = tuple(p50(block.mesh) - p50(block.direct) for block in blocks)
    later95 = tuple(percentile(block.mesh, 95) - percentile(block.direct, 95) for block in blocks)
    from_emit = tuple((p50(block.mesh_whole) - p50(block.direct_whole)) / block.echo for block in blocks)
    shown = {
        "mesh_p50_ms": round(p50([p50(block.mesh) for block in blocks]), 2),
        "direct_p50_ms": round(p50([p50(block.direct) for block in blocks]), 2),
    }
    yield Figure("first delta after the request left, p50, later than the SDK", "ms", later50, LATER_P50_MS, more=shown)
    yield Figure("first delta after the request left, p95, later than the SDK", "ms", later95, LATER_P95_MS)
    whole = {
        "mesh_p50_ms": round(p50([p50(block.mesh_whole) for block in blocks]), 2),
        "direct_p50_ms": round(p50([p50(block.direct_whole) for block in blocks]), 2),
        "echo_p50_ms": round(p50([block.echo for block in blocks]), 3),
    }
    yield Figure("first delta after EmitEvent, p50, later than the SDK", "echoes", from_emit, ECHOES, more=whole)


async def _block(world: World, watch: Watch, called: Any, turns: int) -> Block:
    mesh: list[float] = []
    direct: list[float] = []
    mesh_whole: list[float] = []
    direct_whole: list[float] = []
    echoes: list[float] = []
    for _ in range(turns):
        seen = len(watch.seen)
        sent = await world.turn(watch, PLAN)
        came, text = await watch.first_text(seen, 10)
        asked = int(text.split()[0])
        mesh.append((came - asked) / 1e6)
        mesh_whole.append((came - sent) / 1e6)
        call, asked, came = await first_piece(world.sdk, PLAN)
        direct.append((came - asked) / 1e6)
        direct_whole.append((came - call) / 1e6)
        echoes += await timed(called, 2)
    return Block(mesh, direct, mesh_whole, direct_whole, p50(echoes))

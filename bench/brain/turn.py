"""What a turn with one tool costs: unary calls, and time of the mesh, without the model's and the tool's.

Calls are counted where they arrive, in each of the four services, the client's own among them. The tool's time is
that of the same command run by `bash -c` on this machine. The model's is what its SDK alone takes for as many answers,
asked in between; what is left when only the time at the model is taken away is printed beside it.

A warm turn is the next one of a session that its harness still keeps. A woken one is of a session that it has let go
of: it is offered and taken up anew. Both have the same bounds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.brain.echo import echo
from bench.brain.model import Plan
from bench.brain.progress import telling
from bench.brain.shown import Shown
from bench.brain.watch import Watch
from bench.brain.world import TURN_SECONDS, World, first_piece, p50, start, timed
from bench.figure import Figure
from bench.log.world import fsync

COMMAND = "echo hi"
WARM_UP = 4
TURNS = {"ci": 12, "full": 200}
FIRST_TURNS = {"ci": 4, "full": 30}
WARM_CALLS, FIRST_CALLS = 8, 12
MESH_MS = 15.0
AFTER_SECONDS = 0.1  # what a turn leaves to be said after its end


@dataclass
class Measured:
    """What the turns of one kind took. `steps` are ms from one mark to the next, by its name."""

    mesh: list[float] = field(default_factory=list)
    with_sdk: list[float] = field(default_factory=list)
    calls: list[Counter[str]] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def figures(self, kind: str, bound: int) -> list[Any]:
        """Returns the number of calls, and where the time goes."""
        counts = tuple(float(sum(calls.values())) for calls in self.calls)
        usual = Counter(str(sorted(calls.items())) for calls in self.calls).most_common(1)[0][0]
        split = {name: round(p50(taken), 2) for name, taken in self.steps.items()}
        return [
            Figure(f"unary calls of a {kind} turn with one tool", "calls", counts, bound, more={"usual": usual}),
            Shown(f"where a {kind} turn's time goes, p50 in ms", split),
        ]


async def measure(size: str) -> AsyncIterator[Any]:
    """Has turns one after the other."""
    tool = _tool()
    warm, first, woken = Measured(), Measured(), Measured()
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        file = Path(folder) / "calls"
        async with start(counted=file) as world:
            await _turns(world, "warm", size, file, warm, tool)
            for number in telling("first turns", range(FIRST_TURNS[size])):
                await _turn(world, None, 5_000 + number, file, first, tool)
            async with echo(world) as called:
                echo_ms = p50(await timed(called, 100))
            fsync_ms = p50(fsync(Path(folder), 50))
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        file = Path(folder) / "calls"
        async with start(counted=file, linger="0") as world:
            await _turns(world, "woken", size, file, woken, tool)
    kinds = (("warm", warm, WARM_CALLS), ("woken", woken, WARM_CALLS), ("first", first, FIRST_CALLS))
    for figure in [figure for kind, of, bound in kinds for figure in of.figures(kind, bound)]:
        yield figure
    beside = {"tool_ms": round(tool, 2), "echo_ms": round(echo_ms, 3), "fsync_ms": round(fsync_ms, 3)}
    for kind, of, _ in kinds[:2]:
        more = {"with_the_sdk_ms": round(p50(of.with_sdk), 2), **beside}
        yield Figure(f"time of the mesh in a {kind} turn with one tool", "ms", tuple(of.mesh), MESH_MS, more=more)
    yield Shown("time of the mesh in a first turn with one tool", {"p50_ms": round(p50(first.mesh), 2)})


async def _turns(world: World, kind: str, size: str, file: Path, into: Measured, tool: float) -> None:
    """Has turns of one session, the first few of which do not count."""
    for number in range(WARM_UP):
        await world.turn(await world.session(), Plan(COMMAND, number=number))
    watch = await world.session()
    for number in telling(f"{kind} turns", range(WARM_UP + TURNS[size])):
        await _turn(world, watch, 1_000 + number, file, into if number >= WARM_UP else Measured(), tool)


async def _turn(world: World, watch: Watch | None, number: int, file: Path, into: Measured, tool: float) -> None:
    """Has a turn, of a session that is made for it when there is none, and adds up what it took."""
    plan = Plan(COMMAND, number=number)
    before = len(file.read_text().splitlines()) if file.exists() else 0
    seen = 0
    sent = time.monotonic_ns()
    if watch is None:
        watch = await world.session(plan)
        emitted = time.monotonic_ns()
    else:
        seen = len(watch.seen)
        await watch.session.send(plan.text)
        emitted = time.monotonic_ns()
    ended, _ = await watch.until("turn_ended", seen, TURN_SECONDS)
    await asyncio.sleep(AFTER_SECONDS)
    calls = [json.loads(line) for line in file.read_text().splitlines()[before:]]
    into.calls.append(Counter(_short(method) for method, *_ in calls))
    if not any(kind == "tool_finished" for _, kind, _ in watch.seen[seen:]):
        raise RuntimeError("the turn had no tool")
    asked = [(one, done) for found, one, done in await world.seen() if found == number]
    into.with_sdk.append((ended - sent - sum(done - one for one, done in asked)) / 1e6 - tool)
    into.mesh.append((ended - sent) / 1e6 - sum(await timed(lambda: first_piece(world.sdk, Plan()), 2)) - tool)
    marks = [(sent, "the client sends"), (emitted, "the client's call is answered"), (ended, "the client sees the end")]
    for method, kinds, came, done in calls:
        name = "+".join(kinds) or _short(method)
        marks += [(came, f"{name} comes"), (done, f"{name} is done")]
    for count, (one, done) in enumerate(asked, 1):
        marks += [(one, f"request {count} is at the model"), (done, f"answer {count} is sent")]
    marks.sort()
    for (begin, _), (end, name) in pairwise(marks):
        into.steps[f"until {name}"].append((end - begin) / 1e6)
    into.steps["all"].append((ended - sent) / 1e6)


def _short(method: str) -> str:
    service, _, name = method.rpartition("/")
    return f"{service.split('.')[1]}.{name}"


def _tool() -> float:
    """Returns what the command takes by itself, in ms."""
    taken = []
    for _ in range(30):
        begun = time.perf_counter()
        subprocess.run(["bash", "-c", COMMAND], stdout=subprocess.PIPE, check=True)
        taken.append((time.perf_counter() - begun) * 1000)
    return p50(taken)

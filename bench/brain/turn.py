"""What a turn with one tool costs: unary calls, and time of the mesh, without the model's and the tool's.

Calls are counted where they arrive, in each of the four services, the client's own among them. The tool's time is
that of the same command run by `bash -c` on this machine. The model's is from a request's arrival at the model to the
last byte of its answer.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.brain.model import Plan
from bench.brain.shown import Shown
from bench.brain.watch import Watch
from bench.brain.world import TURN_SECONDS, World, p50, start
from bench.figure import Figure

COMMAND = "echo hi"
WARM_UP = 4
TURNS = {"ci": 30, "full": 200}
FIRST_TURNS = {"ci": 6, "full": 30}
WARM_CALLS, FIRST_CALLS = 8, 12
MESH_MS = 15.0
AFTER_SECONDS = 0.1  # what a turn leaves to be said after its end


@dataclass
class Measured:
    """What the turns of one kind took. `steps` are ms by the step's name, in the order of a turn."""

    mesh: list[float] = field(default_factory=list)
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
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        file = Path(folder) / "calls"
        async with start(counted=file) as world:
            warm, first = Measured(), Measured()
            for number in range(WARM_UP):
                await world.turn(await world.session(), Plan(COMMAND, number=number))
            watch = await world.session()
            for number in range(WARM_UP + TURNS[size]):
                await _turn(world, watch, 1_000 + number, file, warm if number >= WARM_UP else Measured(), tool)
            for number in range(FIRST_TURNS[size]):
                await _turn(world, None, 5_000 + number, file, first, tool)
    for figure in warm.figures("warm", WARM_CALLS) + first.figures("first", FIRST_CALLS):
        yield figure
    tool_ms = {"tool_ms": round(tool, 2), "calls_are_counted": True}
    yield Figure("time of the mesh in a warm turn with one tool", "ms", tuple(warm.mesh), MESH_MS, more=tool_ms)
    yield Shown("time of the mesh in a first turn with one tool", {"p50_ms": round(p50(first.mesh), 2)})


async def _turn(world: World, watch: Watch | None, number: int, file: Path, into: Measured, tool: float) -> None:
    """Has a turn, of a session that is made for it when there is none, and adds up what it took."""
    import asyncio

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
    into.calls.append(Counter(_short(method) for method, _, _ in calls))
    asked = [row for row in await world.seen() if row[0] == number]
    (_, one, one_sent), (_, two, two_sent) = asked
    model = (one_sent - one + two_sent - two) / 1e6
    into.mesh.append((ended - sent) / 1e6 - model - tool)
    came = {kind: at for at, kind, _ in watch.seen[seen:]}
    execute = next((came, done) for method, came, done in calls if method.endswith("/Execute"))
    steps: Sequence[tuple[str, int, int]] = (
        ("message acknowledged", sent, emitted),
        ("to the model asked", sent, one),
        ("model answers", one, one_sent),
        ("to the hand asked", one_sent, execute[0]),
        ("hand executes", *execute),
        ("to the model asked again", execute[1], two),
        ("model answers again", two, two_sent),
        ("to the turn's end at the client", two_sent, ended),
        ("all", sent, ended),
    )
    for name, begin, end in steps:
        into.steps[name].append((end - begin) / 1e6)
    if "tool_finished" not in came:
        raise RuntimeError("the turn had no tool")


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

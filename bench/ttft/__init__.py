"""Time to the first token: sessions that have their container and clone before the model is asked, and this mesh.

Both arms have the same sessions with the same delays of the model. See `docs/ttft.md`. Rows, by `--only`, with commas:

direct-8              the model by its SDK alone
coupled-1, -8         container, clone and boot, then the model
decoupled-1, -8       this mesh; a sandbox is made when a tool is called, a repository is cloned when it is first seen
unseen-1              this mesh, where no repository was ever seen before
warm-1, -8            this mesh, with a pool of sandboxes, and every repository seen before
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.figure import Figure, Unmeasured
from bench.hands.world import IMAGE
from bench.ttft import ground, report, samples
from bench.ttft.mix import BIG_MB, SMALL_MB, WARM_UP, Task, tasks
from bench.ttft.samples import Row, Sample, ratios

FULL = {
    "direct-8": 200,
    "coupled-1": 60,
    "decoupled-1": 200,
    "unseen-1": 60,
    "warm-1": 60,
    "coupled-8": 60,
    "decoupled-8": 200,
    "warm-8": 60,
}
CI = {"direct-8": 40, "coupled-1": 20, "decoupled-1": 20, "decoupled-8": 40}
CUT_P50, CUT_P95 = 0.6, 0.9
OF_DIRECT = 1.1
Run = Callable[[Task], Awaitable[Sample]]


async def measure(
    size: str, only: str, keep: Path | None = None, docs: Path | None = None
) -> AsyncIterator[Figure | Row | Unmeasured | report.Written]:
    """Runs the rows that are wanted, then yields all rows that there are and what follows from them.

    `keep` is a file that rows are read from and written to; `docs` a folder whose `ttft.md` and `ttft.png` are written.
    """
    rows = samples.read(keep)
    problem = _missing()
    if problem:
        yield Unmeasured("time to the first token", problem)
        return
    counts = CI if size == "ci" else FULL
    with tempfile.TemporaryDirectory(prefix="handmesh-bench-") as folder:
        wanted = [] if only == "none" else only.split(",") if only else list(counts)
        urls = ground.repositories(Path(folder) / "upstream") if wanted else {}
        for name in wanted:
            todo = _left(rows, name, counts[name])
            root = Path(tempfile.mkdtemp(dir=folder))
            async for sample in _measured(name, todo, root, urls):
                rows[name] = rows[name].plus(sample)
                samples.write(keep, rows)
    for row in rows.values():
        yield row
    for figure in figures(rows):
        yield figure
    if docs is not None:
        yield report.write(docs, rows)


def figures(rows: dict[str, Row]) -> list[Figure]:
    """Returns what the rows are held to."""
    found = []
    for of_100, cut in ((50, CUT_P50), (95, CUT_P95)):
        if {"coupled-1", "decoupled-1"} <= rows.keys():
            ours, theirs = rows["decoupled-1"].tokens, rows["coupled-1"].tokens
            name = f"p{of_100} to the first token, one session at a time, decoupled : coupled"
            found.append(Figure(name, "ratio", ratios(ours, theirs, of_100), round(1 - cut, 2)))
    if {"direct-8", "decoupled-8"} <= rows.keys():
        both = rows["decoupled-8"].numbers & rows["direct-8"].numbers
        ours, theirs = rows["decoupled-8"].of(both).tokens, rows["direct-8"].of(both).tokens
        spread = ratios(ours, theirs, 95, paired=True)
        found.append(
            Figure("p95 to the first token, 8 at a time, decoupled : the SDK alone", "ratio", spread, OF_DIRECT)
        )
    return found


def _missing() -> str:
    """Says why nothing can be measured here, or nothing."""
    from docker.errors import DockerException

    from bench.hands import engine

    try:
        client = engine.client()
        client.inspect_image(IMAGE)
        client.close()
    except DockerException as error:
        return f"no Docker Engine with the base image ({type(error).__name__}); see `make image`"
    return ""


def _left(rows: dict[str, Row], name: str, count: int) -> list[Task]:
    """Returns which sessions of a row are to be run: the rest of one that was cut off, else all, and anew."""
    known = rows.setdefault(name, Row(name, ())).numbers
    left = [task for task in tasks(count) if task.number not in known]
    if left:
        return left
    rows[name] = Row(name, ())
    return tasks(count)


async def _measured(name: str, todo: Sequence[Task], root: Path, urls: dict[int, str]) -> AsyncIterator[Sample]:
    """Runs sessions of a row, so many at a time, on a ground of their own; yields each when it has ended."""
    arm, _, at_once = name.rpartition("-")
    warm_up = tasks(20, WARM_UP)
    async with AsyncExitStack() as stack:
        run = await _arm(stack, arm, root, urls, [*todo, *warm_up])
        sizes = {0, SMALL_MB, BIG_MB} if arm == "warm" else {0}
        for repository in sorted(sizes):  # the first sessions load libraries; in a warm mesh they also see repositories
            await run(next(task for task in warm_up if task.tool and task.repository == repository))
        async for sample in _together(run, todo, int(at_once)):
            yield sample


async def _arm(stack: AsyncExitStack, arm: str, root: Path, urls: dict[int, str], known: Sequence[Task]) -> Run:
    from bench.ttft import coupled, decoupled, direct

    if arm in ("direct", "coupled"):
        client = await stack.enter_async_context(ground.model(root, known))
        if arm == "direct":
            return lambda task: direct.alone(client, task)
        it = coupled.Coupled(root, client, urls)
        stack.callback(it.close)
        return it.run
    if arm == "unseen":
        await asyncio.to_thread(ground.copy_for, known, root.parent / "upstream")
    mesh = await stack.enter_async_context(ground.mesh(root, known, ground.POOL if arm == "warm" else 0))
    return decoupled.Decoupled(mesh, "hands", urls, unseen=arm == "unseen").run


async def _together(run: Run, todo: Sequence[Task], at_once: int) -> AsyncIterator[Sample]:
    """Runs sessions, each as soon as one of the `at_once` before it has ended."""
    room = asyncio.Semaphore(at_once)

    async def one(task: Task) -> Sample:
        async with room:  # which lets them in in their order
            return await run(task)

    async with asyncio.TaskGroup() as group:
        for done in asyncio.as_completed([group.create_task(one(task)) for task in todo]):
            yield await done

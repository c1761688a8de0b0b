"""A repository that was seen before, put into a workspace, beside a `git clone` of it."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.figure import Figure, Unmeasured
from bench.hands.world import World, p50, start
from handmesh.sandbox.v1 import sandbox_pb2 as pb

FILES = 3_000
MEGABYTES = 50
PART_OF_CLONE = 0.05
_AUTHOR = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "init.defaultBranch=main"]


def make_repository(folder: Path, megabytes: int, files: int, *, packed: bool) -> str:
    """Makes a repository of so many MB that do not compress in so many files; returns its URL.

    One that is not packed is as a commit leaves it: whoever clones waits until git has packed it.
    """
    folder.mkdir(parents=True)
    dice = random.Random(megabytes)
    for number in range(files):
        path = folder / f"part{number % 50:02}" / f"file{number:05}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dice.randbytes(megabytes * 1_000_000 // files))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "-c", "gc.auto=0", "commit", "--quiet", "--message", "all of it")
    if packed:
        git(folder, "gc", "--quiet")
    return f"file://{folder}"


def git(folder: Path, *arguments: str) -> None:
    """Runs git with nobody's configuration."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(folder), *_AUTHOR, *arguments]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


async def measure(size: str) -> AsyncIterator[Figure | Unmeasured]:
    """Yields the figures of repositories."""
    name = f"repository of {MEGABYTES} MB seen before : git clone"
    if shutil.which("git") is None:
        yield Unmeasured(name, "there is no git")
        return
    async with start() as world:
        url = make_repository(world.directory / "upstream" / "big", MEGABYTES, FILES, packed=True)
        clones = [_cloned(url, world.directory / f"clone{number}") for number in range(2 if size == "ci" else 5)]
        for backend in world.backends:
            yield await _planted(world, backend, url, p50(clones), 5 if size == "ci" else 15)
        for backend, problem in world.problems.items():
            if problem:
                yield Unmeasured(f"{name}, {backend}", problem)


def _cloned(url: str, folder: Path) -> float:
    begun = time.perf_counter()
    git(folder.parent, "clone", "--quiet", url, str(folder))
    taken = (time.perf_counter() - begun) * 1000
    shutil.rmtree(folder)
    return taken


async def _planted(world: World, backend: str, url: str, clone: float, times: int) -> Figure:
    resource = pb.Resource(mount_path="/workspace/big", git_repository=pb.GitRepository(url=url))
    taken, statuses, first = [], [], 0.0
    for number in range(times + 1):
        made = await world.provision(f"{backend}-cold")
        begun = time.perf_counter()
        await world.stub.PutResources(pb.PutResourcesRequest(sandbox_id=made, resources=[resource]))
        put = (time.perf_counter() - begun) * 1000
        looked = time.perf_counter()
        said = await world.execute(made, "cd big && git status --short | wc -l && git ls-files | wc -l")
        if said.output.split() != ["0", str(FILES)]:
            raise RuntimeError(f"the repository is not there: {said.output!r}")
        if number:
            taken.append(put)
            statuses.append((time.perf_counter() - looked) * 1000)
        else:
            first = put
        await world.release([made])
    shown = {
        "put_p50_ms": round(p50(taken), 1),
        "clone_p50_ms": round(clone, 1),
        "never_seen_ms": round(first, 1),
        "then_git_status_p50_ms": round(p50(statuses), 1),
    }
    ratios = tuple(each / clone for each in taken)
    name = f"repository of {MEGABYTES} MB seen before : git clone, {backend}"
    return Figure(name, "ratio", ratios, PART_OF_CLONE, more=shown)

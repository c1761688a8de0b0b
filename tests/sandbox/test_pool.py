"""Warm pools over sandboxes that are plain processes: what is given away, to whom, and what never is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from services.kit.errors import Exists, Gone, Invalid, Refused
from services.kit.ids import mint
from services.sandbox import pool, pool_core
from services.sandbox.backends import Backends
from services.sandbox.environments import BUILT_IN, Environments, with_default_pool
from services.sandbox.hand import File, HandSettings, SandboxInfo
from services.sandbox.pool import Pools
from services.sandbox.records import Records
from services.sandbox.sandboxes import Call, Sandboxes, Wanted
from tests.support.git import planting

SIZE = 3


def environments(size: int = SIZE, **changed: object) -> Environments:
    """The built-in ones, with a pool for `process`."""
    recipe = replace(BUILT_IN.recipes["process"], pool=size, **changed)  # type: ignore[arg-type]
    return Environments({**BUILT_IN.recipes, "process": recipe}, "process")


@dataclass
class Stand:
    """A service's inside, with a pool that is filled in the background."""

    state: Path
    backends: Backends
    pools: Pools
    sandboxes: Sandboxes

    async def provision(self, request_id: str = "", session_id: str = "", *files: File) -> SandboxInfo:
        """Asks for a sandbox."""
        return await self.sandboxes.provision(Wanted("process", session_id, "main", request_id, resources=tuple(files)))

    async def filled(self, size: int = SIZE) -> set[str]:
        """Waits until the pool is full, and returns the ids of what is free."""
        await until(lambda: self.pools.free("process") == size)
        return await self.free()

    async def free(self) -> set[str]:
        """Returns the ids of what is free."""
        return {info.labels.sandbox_id for info in await self.sandboxes.living("") if info.labels.pool}

    def signal(self, sandbox_id: str, number: int) -> None:
        """Sends a signal to a sandbox's runner."""
        record = Records(self.state / "process" / "sandboxes").get(sandbox_id)
        assert record is not None
        os.kill(int(record.facts["pid"]), number)


async def until(said: Callable[[], bool]) -> None:
    """Waits until something is so."""
    while not said():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def standing(state: Path, known: Environments, run: bool = True) -> AsyncIterator[Stand]:
    """A service's inside over a state folder. Its sandboxes stay."""
    backends = Backends(HandSettings(state, allow_unisolated=True))
    pools = Pools(backends, known)
    running = asyncio.create_task(pools.run()) if run else None
    yield Stand(state, backends, pools, Sandboxes(backends, known, pools, planting=planting(state)))
    if running is not None:
        running.cancel()
        await asyncio.wait({running})
    await backends.close()


@pytest.fixture
async def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    """A pool of three that is filled; what is left is released at the end."""
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.2)
    async with standing(tmp_path / "state", environments()) as it:
        await it.filled()
        yield it
    await cleared(it)


async def cleared(it: Stand) -> None:
    """Releases everything."""
    for info in await it.sandboxes.living(""):
        await it.sandboxes.release(info.labels.sandbox_id)


async def test_a_sandbox_comes_from_the_pool_and_the_pool_is_filled_again(stand: Stand) -> None:
    """It was made before it was asked for, has its owner's labels and files, and runs his commands."""
    free = await stand.filled()
    session = mint("sess")
    info = await stand.provision("r/main/1", session, File("/workspace/in", b"hello"))
    assert info.labels.sandbox_id in free and not info.labels.pool
    assert (info.labels.session_id, info.labels.hand, info.labels.request_id) == (session, "main", "r/main/1")
    call = Call(info.labels.sandbox_id, "bash", '{"command": "cat in"}')
    assert (await stand.sandboxes.execute(call)).text == "hello"
    assert info.labels.sandbox_id not in await stand.filled()


async def test_no_sandbox_has_two_owners(stand: Stand) -> None:
    """Forty requests at once over a pool of three, each said twice: one sandbox for each, cold ones in the end."""
    wanted = [(f"r{number}/main/1", mint("sess")) for number in range(40)]
    made = await asyncio.gather(*(stand.provision(*each) for each in wanted * 2))
    assert made[:40] == made[40:]
    assert [(info.labels.request_id, info.labels.session_id) for info in made[:40]] == wanted
    assert len({info.labels.sandbox_id for info in made}) == 40
    owned = {info.labels.sandbox_id for info in await stand.sandboxes.living("") if not info.labels.pool}
    assert owned == {info.labels.sandbox_id for info in made}


async def test_a_request_that_has_a_sandbox_takes_no_other(stand: Stand) -> None:
    """Said again, also for another session, it leaves the pool as it is."""
    info = await stand.provision("r/main/1", "sess_a")
    free = await stand.filled()
    assert await stand.provision("r/main/1", "sess_a") == info
    with pytest.raises(Exists):
        await stand.provision("r/main/1", "sess_b")
    assert (await stand.free(), stand.pools.free("process")) == (free, SIZE)


async def test_what_is_not_well_is_given_to_nobody(stand: Stand) -> None:
    """One has died, one is stopped, one was released behind the pool's back: none is handed out, all are replaced."""
    dead, stopped, released = sorted(await stand.filled())
    stand.signal(dead, signal.SIGKILL)
    stand.signal(stopped, signal.SIGSTOP)
    await stand.sandboxes.release(released)
    made = [await stand.provision() for _ in range(2)]
    ids = {info.labels.sandbox_id for info in made}
    assert ids.isdisjoint({dead, stopped, released})
    await until(lambda: not (stand.state / "process" / "sandboxes" / stopped).exists())
    assert (await stand.filled()).isdisjoint({dead, stopped, released})


async def test_a_free_sandbox_is_nobodys(stand: Stand) -> None:
    """It is listed as pooled, under no session; who knows its id can put nothing into it."""
    free = sorted(await stand.filled())[0]
    call = Call(free, "bash", '{"command": "echo mine > trap"}')
    for attempt in (
        stand.sandboxes.execute(call),
        stand.sandboxes.put(free, [File("/workspace/trap", b"")], 0),
        stand.sandboxes.cancel(free, "x", 0),
        stand.sandboxes.executions(free),
        stand.sandboxes.tools_of(free),
    ):
        with pytest.raises(Gone):
            await attempt
    assert [info.labels.session_id for info in await stand.sandboxes.living("")] == [""] * SIZE


async def test_a_claim_that_fails_leaves_nothing(stand: Stand) -> None:
    """A file that cannot be put: the sandbox is gone, the request is free, and the pool is filled."""
    files = [File("/workspace/a", b""), File("/workspace/b", b"")]
    before = await stand.filled()
    await stand.sandboxes.environments()
    bad = File("/workspace/a/../x", b"")
    with pytest.raises(Invalid):
        await stand.provision("r/main/1", "", bad)
    assert await stand.free() == before
    assert (await stand.provision("r/main/1", "", *files)).labels.sandbox_id in before


async def test_what_another_recipe_made_is_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service with a changed recipe gives none of the old ones away; one with a smaller pool destroys the rest."""
    async with standing(tmp_path, environments()) as it:
        old = await it.filled()
    async with standing(tmp_path, environments(env={"NEW": "1"})) as it:
        info = await it.provision()
        call = Call(info.labels.sandbox_id, "bash", '{"command": "echo $NEW"}')
        assert (await it.sandboxes.execute(call)).text == "1"
        new = await it.filled()
        while old & {entry.name for entry in (tmp_path / "process" / "sandboxes").iterdir()}:
            await asyncio.sleep(0.01)
    async with standing(tmp_path, environments(1, env={"NEW": "1"})) as it:
        (kept,) = await it.filled(1)
        while len(await it.free()) > 1:
            await asyncio.sleep(0.01)
        assert kept in new
        await cleared(it)


async def test_a_service_that_starts_again_takes_up_what_is_free(tmp_path: Path) -> None:
    """Nothing is made or destroyed, and what it gives away was made by the one before."""
    async with standing(tmp_path, environments()) as it:
        free = await it.filled()
    async with standing(tmp_path, environments()) as it:
        assert await it.filled() == free
        assert (await it.provision()).labels.sandbox_id in free
        await cleared(it)


async def test_a_drained_pool_is_empty(tmp_path: Path) -> None:
    """At the end of a service nothing free stays; what is somebody's does."""
    async with standing(tmp_path, environments()) as it:
        await it.filled()
        owned = await it.provision()
    await it.pools.drain()
    assert await it.sandboxes.living("") == [owned]
    assert it.pools.free("process") == 0
    await cleared(it)


async def test_a_pool_that_cannot_be_filled_waits_longer_and_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks meanwhile is told what is wrong."""
    failures: list[int] = []
    monkeypatch.setattr(pool_core, "pause", lambda count: failures.append(count) or 0.001)
    backends = Backends(HandSettings(tmp_path / "state", allow_unisolated=False))
    pools = Pools(backends, environments())
    running = asyncio.create_task(pools.run())
    await until(lambda: len(failures) > 2)
    with pytest.raises(Refused):
        wanted = Wanted("process")
        await Sandboxes(backends, environments(), pools, planting=planting(tmp_path)).provision(wanted)
    running.cancel()
    assert failures[:3] == [1, 2, 3]
    await asyncio.wait({running})


def test_the_default_environment_gets_a_pool_unless_it_has_one() -> None:
    """The setting is for the default one alone, and its own table goes before."""
    pooled = with_default_pool(BUILT_IN, 4)
    assert {name: recipe.pool for name, recipe in pooled.recipes.items()} == {"default": 4, "docker": 0, "process": 0}
    assert with_default_pool(environments(2), 4) == environments(2)

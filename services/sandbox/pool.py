"""Warm pools: free sandboxes of a recipe, made before they are wanted.

A free sandbox is one whose labels have `pool`. The hand keeps that, so a service that starts again takes up what was
free. What this module remembers is only which of them to try first; `Hand.claim` alone decides whose one is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.kit.errors import Exists, Gone, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox import pool_core
from services.sandbox.backends import Backends
from services.sandbox.environments import Environments
from services.sandbox.hand import Content, Hand, Labels, Recipe, SandboxInfo
from services.sandbox.runner_archive import archive

LOOK_SECONDS = 30.0  # between two looks at what is free
QUIET_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 2.0  # making one waits for a pause of the claims, but not for ever
MAKING_AT_ONCE = 2  # sandboxes, of all pools together: those who wait for a sandbox need the machine too
DROPPING_AT_ONCE = 8
DRAIN_SECONDS = 4.0  # at the end of the service; what is free still then is taken up by the next one

_log = Log("services.sandbox.pool")


@dataclass
class _Pool:
    """A recipe's pool. `free` are the ids to try, the one to try first leftmost."""

    recipe: Recipe
    fingerprint: str
    free: deque[str] = field(default_factory=deque)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)  # set when there may be one to make
    claimed: float = 0.0  # when one was given away last, of time.monotonic()


class Pools:
    """The pools of all recipes that ask for one."""

    def __init__(self, backends: Backends, environments: Environments) -> None:
        """Makes nothing: `run` does."""
        self._backends = backends
        recipes = [recipe for recipe in environments.recipes.values() if recipe.pool]
        self._pools = {recipe.name: _Pool(recipe, pool_core.fingerprint(recipe, archive())) for recipe in recipes}
        self._busy: set[str] = set()  # being claimed
        self._touched: set[str] = set()  # made or claimed since a look began: what the look has seen of them is old
        self._unfit: set[str] = set()  # could not be claimed: to be destroyed, if they are free
        self._making = asyncio.Semaphore(MAKING_AT_ONCE)  # bounds the load that nobody waits for

    def free(self, environment: str) -> int:
        """Counts the free sandboxes of an environment."""
        pool = self._pools.get(environment)
        return 0 if pool is None else len(pool.free)

    async def claim(self, recipe: Recipe, labels: Labels, files: Sequence[Content]) -> SandboxInfo | None:
        """Gives a free sandbox of the recipe to an owner; None when there is none that is well.

        Raises as `Hand.claim` does for what is wrong with the request.
        """
        pool = self._pools.get(recipe.name)
        if pool is None:
            return None
        hand = self._backends.hand(recipe.backend)
        while pool.free:
            candidate = pool.free.popleft()
            self._busy.add(candidate)
            self._touched.add(candidate)
            try:
                info = await hand.claim(candidate, labels, files)
            except (Gone, Unavailable) as error:
                _log.warning("free sandbox not given away", sandbox_id=candidate, reason=error.reason)
                self._unfit.add(candidate)
                continue
            except Exists:  # the request has another session's sandbox
                pool.free.appendleft(candidate)
                raise
            finally:
                self._busy.discard(candidate)
                pool.claimed = time.monotonic()
                pool.wanted.set()
            if info.labels.sandbox_id != candidate:  # the request has had one before
                pool.free.appendleft(candidate)
            return info
        return None

    async def run(self) -> None:
        """Takes up what is free, destroys what nobody will want, and fills the pools. For ever."""
        await self._look_safely()
        async with asyncio.TaskGroup() as tasks:
            for pool in self._pools.values():
                tasks.create_task(self._fill(pool))
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                await self._look_safely()

    async def _look_safely(self) -> None:
        try:
            await self._look()
        except Exception:  # the top of a task: whatever one look meets, there will be another
            _log.error("pools not looked at", exc_info=True)

    async def _look(self) -> None:
        self._touched = set(self._busy)
        unfit, self._unfit = self._unfit, set()
        found = {info.labels.sandbox_id: (hand, info.labels) for hand, info in await self._backends.listed()}
        well = [labels for _, labels in found.values() if labels.sandbox_id not in unfit | self._touched]
        sizes = {pool.fingerprint: pool.recipe.pool for pool in self._pools.values()}
        planned = pool_core.plan(well, sizes, time.time())
        for pool in self._pools.values():
            pool.free = deque([*planned.keep[pool.fingerprint], *(id for id in pool.free if id in self._touched)])
            pool.wanted.set()
        await self._drop([(found[id][0], id) for id in (*planned.drop, *unfit) if id in found])

    async def _drop(self, free: Sequence[tuple[Hand, str]]) -> None:
        """Destroys sandboxes, if they are free still."""
        room = asyncio.Semaphore(DROPPING_AT_ONCE)  # bounds what is asked of a backend at once

        async def drop(hand: Hand, sandbox_id: str) -> None:
            async with room:
                try:
                    info = await hand.find(sandbox_id)
                    if info is not None and info.labels.pool:
                        await hand.release(sandbox_id)
                except ServiceError as error:
                    _log.warning("free sandbox not destroyed", sandbox_id=sandbox_id, reason=error.reason)

        await asyncio.gather(*(drop(hand, sandbox_id) for hand, sandbox_id in free))

    async def _fill(self, pool: _Pool) -> None:
        """Makes sandboxes while there are too few, and waits longer after each failure."""
        failures = 0
        while True:
            if len(pool.free) >= pool.recipe.pool:
                pool.wanted.clear()
                await pool.wanted.wait()
                await _quiet(pool)
                continue
            try:
                await self._backends.hand(pool.recipe.backend).prepare(pool.recipe)  # before: it may take minutes
                async with self._making:
                    made = await self._make(pool)
                pool.free.append(made)  # to what is `free` now: a look may have replaced it
                failures = 0
                continue
            except ServiceError as error:
                reason, message = error.reason, error.message
            except Exception:  # the top of a task: one pool's trouble is nobody else's
                reason, message = "INTERNAL", "see the exception"
                _log.error("sandbox not pooled", environment=pool.recipe.name, exc_info=True)
            failures += 1
            seconds = pool_core.pause(failures)
            _log.warning(
                "pool not filled", environment=pool.recipe.name, reason=reason, message=message, again_in=seconds
            )
            await asyncio.sleep(seconds)

    async def _make(self, pool: _Pool) -> str:
        labels = Labels(self._backends.mint(), pool.recipe.name, time.time(), pool=pool.fingerprint)
        info = await self._backends.hand(pool.recipe.backend).provision(pool.recipe, labels)
        self._touched.add(info.labels.sandbox_id)
        return info.labels.sandbox_id

    async def drain(self) -> None:
        """Destroys what is free, for some seconds at most. To be called when `run` has ended."""
        for pool in self._pools.values():
            pool.free.clear()
        found = [(hand, info.labels) for hand, info in await self._backends.listed()]
        free = [(hand, labels.sandbox_id) for hand, labels in found if labels.pool]
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._drop(free)
        except TimeoutError:
            _log.warning("pools not drained", seconds=DRAIN_SECONDS)


async def _quiet(pool: _Pool) -> None:
    """Waits until nobody has claimed for a moment, or there is nothing left: a claim beside it would take longer."""
    until = time.monotonic() + LONGEST_WAIT_SECONDS
    while pool.free:
        rest = min(until, pool.claimed + QUIET_SECONDS) - time.monotonic()
        if rest <= 0:
            return
        await asyncio.sleep(rest)

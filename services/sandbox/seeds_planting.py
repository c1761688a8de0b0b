"""Puts repositories into sandboxes: finds the seed, pins it, has the hand show it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence

from services.kit.errors import Invalid
from services.sandbox import seeds_rules as rules
from services.sandbox.doors_gate import Gate
from services.sandbox.hand import Hand
from services.sandbox.seeds import Seeds
from services.sandbox.seeds_rules import Repository


class Planting:
    """The repositories of all sandboxes."""

    def __init__(self, seeds: Seeds) -> None:
        """Holds nothing that the seeds do not keep on the disk."""
        self._seeds = seeds
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def check(self, repositories: Sequence[Repository]) -> None:
        """Raises Invalid (`RESOURCE_INVALID`) for what is never fetched, without asking anybody."""
        for repository in repositories:
            self._seeds.check(repository)

    async def prepare(self, repositories: Sequence[Repository], door: bool = False) -> None:
        """Makes the seeds of what is public, while the sandbox is being made. Raises as `Seeds.seed`.

        `door` says that there will be a door for what is not: it is not asked for in public again and again.
        """
        wanted = [it for it in repositories if not (door and self._seeds.is_closed(it))]
        await asyncio.gather(*(self._seeds.seed(repository) for repository in wanted))

    async def plant(
        self, hand: Hand, sandbox_id: str, repositories: Sequence[Repository], gate: Gate | None = None
    ) -> None:
        """Puts repositories into a sandbox. Idempotent by path, also when the branch has moved meanwhile.

        `gate` leads to those that are not public.

        Raises as `Seeds.seed` and `Hand.plant`, and Invalid (`RESOURCE_INVALID`) for a path with another repository.
        """
        async with self._locks.setdefault(sandbox_id, asyncio.Lock()):  # two for one path would see each other's half
            for repository in repositories:
                await self._plant(hand, sandbox_id, repository, gate)

    async def _plant(self, hand: Hand, sandbox_id: str, repository: Repository, gate: Gate | None) -> None:
        pins, pin = self._seeds.pins, self._seeds.pins.get(sandbox_id, repository.path)
        if pin is not None:
            if (pin.url, pin.ref) != (repository.url, repository.ref):
                raise rules.refused(repository, "another repository is there")
            tree = self._seeds.known(pin.key)
        else:
            tree = (await self._seeds.seed(repository, sandbox_id, gate)).tree
        try:
            await hand.plant(sandbox_id, repository.path, tree)
        except Invalid:  # it is not there; after any other error it may be
            if pin is None:
                pins.remove(sandbox_id, repository.path)
            raise

    def forget(self, sandbox_id: str) -> None:
        """Takes note that a sandbox is gone. Idempotent."""
        self._seeds.pins.forget([sandbox_id])

    def planted(self) -> set[str]:
        """Returns the sandboxes that show any, as far as is known."""
        return self._seeds.pins.sandboxes()

    async def tidy(self, gone: set[str]) -> None:
        """Takes note of sandboxes that are gone, and removes what was left half made."""
        self._seeds.pins.forget(gone)
        await self._seeds.tidy()

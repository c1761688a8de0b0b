"""The `Place` port: what a backend supplies whose sandboxes have a runner. `RunnerHand` makes a hand of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from services.sandbox.hand import Recipe
from services.sandbox.records import Facts, Record

SOCKET = "runner.sock"


class Place(Protocol):
    """Where a runner runs: what a backend has to supply. It keeps no state but what `boot` returns."""

    name: str
    own_network: bool  # whether a sandbox's loopback is its own, so that doors can lead out of it

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`."""
        ...

    async def prepare(self, recipe: Recipe) -> None:
        """See `Hand.prepare`. Called before each `boot`, so it is quick when there is nothing to make."""
        ...

    async def boot(self, record: Record, recipe: Recipe) -> Facts:
        """Starts a runner that listens on `record.door / SOCKET` and outlives the service; returns how to find it.

        A runner whose record is never finished ends itself (`Config.claim_seconds`).
        """
        ...

    async def lives(self, record: Record) -> bool:
        """Tells whether the sandbox still runs."""
        ...

    async def destroy(self, record: Record) -> None:
        """Ends all that `boot` has started or made outside the record's folder. Idempotent, also half-way."""
        ...

    async def graft(self, record: Record, path: str, tree: Path) -> bool:
        """Mounts a directory as `Hand.plant` promises. False, and nothing is changed, where it cannot."""
        ...

    async def complaint(self, record: Record) -> str:
        """Returns a line for the operator on why a sandbox did not start. Empty when nothing is known."""
        ...

    async def tidy(self, known: Callable[[], Sequence[Record]]) -> None:
        """Destroys what it started for sandboxes that have no record any more.

        A record is made before `boot` is called: so list first what was started, then call `known`.
        """
        ...

    async def close(self) -> None:
        """Lets go of connections."""
        ...

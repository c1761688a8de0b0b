"""The steps by which a store that an older version has written becomes one of this version. Forward only.

A step has a number and a name for ever, and the store keeps which were taken: its level is the highest. A new step goes
to the end of `STEPS`; an old one is never changed. What a step must promise:

* It may be killed anywhere and be run again from its beginning, or from what it last saved: the end is the same.
* The version before goes on meanwhile, and after it: nothing that it reads is taken away. What only an older version
  needs is removed by a step of a later release.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.session.operator import Operator, StoreError

SCHEMA = "SCHEMA"  # the stream; the session service's user can read it and not write it
LEVEL = "schema.migrate.level"  # JSON {level, version}: up to which step, by whom


class Progress(Protocol):
    """Where a step's work has come to."""

    cursor: str
    """What an earlier run of the step saved last. Empty at its first run."""

    async def save(self, cursor: str, done: int, total: int) -> None:
        """Keeps how far the work is, for a run that goes on with it, and tells whoever waits."""


@dataclass(frozen=True)
class Step:
    """One change of what lies in the store."""

    number: int
    name: str
    apply: Callable[[Operator, Progress], Awaitable[None]]


async def _mark(operator: Operator, progress: Progress) -> None:
    """Changes nothing: that this step is taken is what the store did not say before."""


STEPS: tuple[Step, ...] = (Step(1, "the store says which steps it has taken", _mark),)
NEWEST = STEPS[-1].number


@dataclass(frozen=True)
class Level:
    """Up to which step a store was brought, and by which version."""

    number: int = 0
    version: str = ""

    @classmethod
    def of(cls, value: bytes) -> Level:
        """Reads what the store has; nothing is a store that was never brought anywhere."""
        if not value:
            return cls()
        told = json.loads(value)
        return cls(int(told["level"]), str(told["version"]))

    def pack(self) -> bytes:
        """Returns what the store has."""
        return json.dumps({"level": self.number, "version": self.version}).encode()


def too_new(level: Level, newest: int = NEWEST) -> str:
    """Says why a version that knows steps up to `newest` must not touch the store; nothing when it may."""
    if level.number <= newest:
        return ""
    return (
        f"handmesh {level.version} has brought the store to step {level.number}, and this version knows steps up to "
        f"{newest}. There is no way back: start handmesh {level.version} or a newer one, or restore a backup of NATS "
        "from before (docs/upgrade.md)"
    )


def to_do(level: Level, steps: Sequence[Step] = STEPS) -> list[Step]:
    """Returns the steps that the store has not taken, in order. Raises StoreError for a store of a newer version."""
    if said := too_new(level, steps[-1].number):
        raise StoreError(said)
    return [step for step in steps if step.number > level.number]

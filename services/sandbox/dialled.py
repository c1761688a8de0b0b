"""The port of the hands that dial out: workers connect, are sent work, and report. Values only; no wire.

One backend has it, beside `Hand`: `Backends.dialled` finds it. Errors are `ServiceError`s, as the contract of
`ConnectHand` and `ReportExecution` names them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.kit.errors import Invalid
from services.sandbox.hand import Order, Recipe, Result
from services.sandbox.tools import Tool

CHUNK_BYTES = 64 << 10  # of output in one report
TOOLS_BYTES = 256 << 10  # of all tools of a worker
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Held:
    """An execution that a worker has."""

    sandbox_id: str
    execution_id: str


@dataclass(frozen=True)
class Registration:
    """A worker as it presents itself. Its tenant and name are those of its token, which was checked."""

    tenant: str
    name: str
    token_id: str
    worker: str
    seat: str = ""
    description: str = ""
    tools: tuple[Tool, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: int = 1
    held: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """An execution that a worker has and that is waited for: it says the rest of its output from `next_offset` on."""

    held: Held
    next_offset: int
    cancelled: bool


@dataclass(frozen=True)
class Accepted:
    """The first answer to a registration."""

    lease: float
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True)
class Assigned:
    """Run this."""

    sandbox_id: str
    order: Order


@dataclass(frozen=True)
class Cancelled:
    """Kill this."""

    held: Held


@dataclass(frozen=True)
class Released:
    """Forget what was kept for this sandbox."""

    sandbox_id: str


@dataclass(frozen=True)
class Drained:
    """Take no more work, and connect again."""


Work = Accepted | Assigned | Cancelled | Released | Drained | None  # None is a sign of life


@dataclass(frozen=True)
class Report:
    """What a worker says. Without an execution: that it lives."""

    tenant: str
    name: str
    worker: str
    held: Held | None = None
    offset: int = 0
    chunk: bytes = b""
    result: Result | None = None
    draining: bool = False


@dataclass(frozen=True)
class Heard:
    """The answer to a report."""

    cancelled: bool = False
    next_offset: int = 0
    open_executions: int = 0


class DialledIn(Protocol):
    """Takes workers in."""

    def connect(self, registration: Registration) -> AsyncGenerator[Work, None]:
        """Registers a worker and yields its work, `Accepted` first. Its link is up until this is closed.

        Raises Invalid (`HAND_REGISTRATION_INVALID`), Full (`FULL`), Conflict (`WORKER_REPLACED`), Unavailable
        (`WORKER_SILENT`), Unauthenticated (`GRANT_INVALID`) once its token is revoked.
        """
        ...

    def report(self, report: Report) -> Heard:
        """Takes what a worker says; a result is durable on return. Idempotent.

        Raises Gone (`EXECUTION_UNKNOWN`, `WORKER_UNKNOWN`), Exists (`REPORT_CONTRADICTS`), Invalid (`REPORT_INVALID`).
        """
        ...

    def known(self, tenant: str) -> Sequence[Recipe]:
        """Returns a recipe for each hand of a tenant whose worker has ever connected, by name."""
        ...

    def revoke(self, token_id: str) -> None:
        """Ends the links of a token's workers. Their executions end as if the workers had died."""
        ...

    def drain(self) -> None:
        """Tells all workers that this service goes away."""
        ...


def shown(text: str) -> str:
    """Shortens what a stranger wrote, for an error's message."""
    text = _CONTROLS.sub("?", text)
    return text if len(text) <= 80 else text[:80] + "..."


def invalid(field: str, why: str) -> Invalid:
    """Returns what a worker is told that says of itself what cannot be."""
    return Invalid("HAND_REGISTRATION_INVALID", f"{field}: {why}", field=field)

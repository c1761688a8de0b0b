"""One execution, and the line of the journal that keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from services.kit.errors import Gone
from services.sandbox.hand import Order, Outcome


@dataclass(eq=False)
class Execution:
    """One run of a tool. `worker` is who was sent it, empty while it waits for one; `outcome` None until it has ended.

    `order` is what to run, as long as it has not ended.
    """

    sandbox_id: str
    execution_id: str
    name: str
    digest: str
    number: int
    start_time: float
    seconds: float
    order: Order | None = None
    worker: str = ""
    generation: int = 0
    cancelled: bool = False
    outcome: Outcome | None = None
    said: str = ""  # digest of the result as its worker said it; empty when it was settled without
    size: int = 0  # bytes of its result
    received: int = 0  # bytes of output
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, whenever something is new

    def tell(self) -> None:
        """Wakes whoever follows."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


def execution_of(sandbox_id: str, line: dict[str, Any]) -> Execution:
    """Returns what a line of the journal tells of."""
    id, outcome = line.pop("id"), line.pop("outcome")
    given, epoch = line.pop("input", None), line.pop("epoch_of", 0)
    order = None
    if not outcome:
        order = Order(id, line["name"], given, line["digest"], line["seconds"], epoch, line.get("generation", 0))
    return Execution(sandbox_id, id, order=order, outcome=Outcome(outcome) if outcome else None, **line)


def line_of(execution: Execution) -> dict[str, Any]:
    """Returns what the journal keeps of an execution: what is to be run, until it has ended."""
    order = execution.order
    return ({} if order is None else {"input": order.input, "epoch_of": order.epoch}) | {
        "id": execution.execution_id,
        "name": execution.name,
        "digest": execution.digest,
        "number": execution.number,
        "start_time": execution.start_time,
        "seconds": execution.seconds,
        "worker": execution.worker,
        "generation": execution.generation,
        "cancelled": execution.cancelled,
        "outcome": execution.outcome.name if execution.outcome is not None else "",
        "said": execution.said,
        "size": execution.size,
        "received": execution.received,
    }


def unknown_execution(execution_id: str) -> Gone:
    """Returns what is raised for an execution that nothing is known of."""
    return Gone("EXECUTION_UNKNOWN", "no such execution is known (any more)", execution_id=execution_id)

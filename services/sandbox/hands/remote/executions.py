"""What this service knows of the executions of one sandbox.

A line of the journal is written before what it tells of is done: whoever reads it later knows every execution that a
worker may have.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from services.kit.errors import Conflict, Exists, Gone
from services.sandbox.hand import ExecutionInfo, Limits, Order, Outcome, Result
from services.sandbox.hands.remote.execution import Execution, execution_of, line_of, unknown_execution
from services.sandbox.hands.remote.folder import Folder, Line

MOST_RESULTS = 10_000  # of a sandbox
MOST_FORGOTTEN = 100_000  # ids that are not run again although their result is not kept any more


class Executions:
    """The executions of one sandbox. Times are Unix seconds."""

    def __init__(self, sandbox_id: str, folder: Path, limits: Limits) -> None:
        """Reads what an earlier service has kept in the folder, which is made when there is something to keep."""
        self._sandbox_id = sandbox_id
        self._folder = Folder(folder)
        self._limits = limits
        self._known: OrderedDict[str, Execution] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._kept_bytes = 0
        self._number = 0
        self._epochs: dict[int, int] = {}  # generation -> the highest epoch seen
        self._generation = 0
        self._read()

    def get(self, execution_id: str) -> Execution | None:
        """Returns an execution whose result is kept, or that goes on."""
        return self._known.get(execution_id)

    def find(self, execution_id: str) -> Execution:
        """Returns an execution. Raises Gone (`EXECUTION_UNKNOWN`)."""
        found = self._known.get(execution_id)
        if found is None:
            raise unknown_execution(execution_id)
        return found

    def open(self) -> list[Execution]:
        """Lists those that have not ended."""
        return [each for each in self._known.values() if each.outcome is None]

    def all(self) -> tuple[ExecutionInfo, ...]:
        """Lists all, oldest first."""
        return tuple(
            ExecutionInfo(each.execution_id, each.name, each.start_time, each.outcome, each.generation)
            for each in self._known.values()
        )

    def fence(self, generation: int) -> None:
        """Lets nothing begin any more under a lower generation. Epochs begin anew with each."""
        if generation > self._generation:
            self._generation, self._epochs = generation, {}
            self._note({"fence": generation})

    def admit(self, epoch: int, generation: int = 0) -> bool:
        """Takes note of an epoch. False for one of an owner of before, whose epochs do not count.

        Raises Conflict (`EPOCH_STALE`) for a lower one; 0 is not fenced.
        """
        self.fence(generation)
        if 0 < generation < self._generation:
            return False
        highest = self._epochs.get(self._generation, 0)
        if epoch and epoch < highest:
            raise Conflict("EPOCH_STALE", "a newer harness owns the session", epoch=highest)
        if epoch > highest:
            self._epochs = {self._generation: epoch}
            self._note({"epoch": epoch})
        return True

    def begin(self, order: Order, now: float) -> tuple[Execution, bool]:
        """Returns the execution of an order, and whether it is new. It is kept by `assign`.

        Raises Exists (`EXECUTION_ID_REUSED`), Conflict (`EPOCH_STALE`, `GENERATION_CONFLICT`), Gone
        (`EXECUTION_UNKNOWN`).
        """
        id = order.execution_id
        mine = self.admit(order.epoch, order.generation)
        if id in self._forgotten:
            raise Gone("EXECUTION_UNKNOWN", "its result is not kept any more; it is not run again", execution_id=id)
        known = self._known.get(id)
        if known is not None:
            if known.digest and known.digest != order.digest:
                raise Exists("EXECUTION_ID_REUSED", "the id stands for another tool or input", execution_id=id)
            return known, False
        if not mine:
            text = "another session owns the sandbox"
            raise Conflict("GENERATION_CONFLICT", text, generation=self._generation)
        made = self._made(id, order.name, order.digest, now, order.seconds)
        made.order, made.generation = order, order.generation
        return made, True

    def _made(self, id: str, name: str, digest: str, now: float, seconds: float) -> Execution:
        self._number += 1
        made = Execution(self._sandbox_id, id, name, digest, self._number, now, seconds)
        self._known[id] = made
        return made

    def assign(self, execution: Execution, worker: str) -> None:
        """Notes that a worker is sent an execution, before it is; or that it waits for one, which has no name."""
        execution.worker = worker
        self._note(line_of(execution))

    def drop(self, execution: Execution) -> None:
        """Forgets an execution that no worker was sent: it is as if nobody had asked for it."""
        if self._known.get(execution.execution_id) is execution:
            del self._known[execution.execution_id]
        execution.tell()

    def cancel(self, execution_id: str, now: float) -> Execution | None:
        """Returns the execution, cancelled; None when its result is not kept any more.

        One that was not known ends here, and never starts.
        """
        known = self._known.get(execution_id)
        if known is None and execution_id not in self._forgotten:
            known = self._made(execution_id, "", "", now, 0.0)
            self.end(known, Result("interrupted before it was started", Outcome.INTERRUPTED))
        elif known is not None and known.outcome is None and not known.cancelled:
            known.cancelled = True
            self._note({"id": execution_id, "cancelled": True})
        return known

    def write(self, execution: Execution, offset: int, chunk: bytes) -> bool:
        """Takes output; says whether it is the one that is known already, as far as that is kept.

        What leaves a gap is not taken, and what is over the limit of a file is counted and not kept.
        """
        again = execution.received - offset
        if again < 0:
            return True
        kept = self.output(execution, offset, min(again, len(chunk)))
        if chunk[: len(kept)] != kept:
            return False
        fresh = chunk[again:]
        if fresh and execution.outcome is not None:
            return False
        if fresh:
            self._store(execution, fresh)
            execution.received += len(fresh)
            execution.tell()
        return True

    def _store(self, execution: Execution, data: bytes) -> None:
        data = data[: max(0, self._limits.output_file_bytes - execution.received)]
        if data:
            self._folder.add_output(execution.number, data)

    def output(self, execution: Execution, offset: int, length: int) -> bytes:
        """Returns what was kept of the output, from an offset on."""
        return self._folder.output(execution.number, offset, length)

    def end(self, execution: Execution, result: Result, said: str = "") -> None:
        """Keeps a result. Older ones make room for it."""
        data = json.dumps(asdict(result) | {"outcome": result.outcome.name}).encode()
        self._folder.write_result(execution.number, data)
        execution.outcome, execution.said, execution.size = result.outcome, said, len(data)
        execution.order = None
        self._note(line_of(execution))
        self._kept_bytes += len(data)
        self._make_room(execution)
        execution.tell()

    def _make_room(self, newest: Execution) -> None:
        """Forgets the oldest results when there are too many, and removes the oldest outputs."""
        most = self._limits.output_file_bytes
        if len(self._known) > MOST_RESULTS or self._kept_bytes > most:
            for oldest in self._ended(newest):
                if len(self._known) <= MOST_RESULTS and self._kept_bytes <= most:
                    break
                del self._known[oldest.execution_id]
                self._kept_bytes -= oldest.size
                self._forget(oldest.execution_id)
                self._note({"id": oldest.execution_id, "forgotten": True})
                self._folder.drop_result(oldest.number)
                self._folder.drop_output(oldest.number)
        if self._folder.output_bytes > 2 * most:
            for oldest in self._ended(newest):
                if self._folder.output_bytes <= 2 * most:
                    break
                self._folder.drop_output(oldest.number)

    def _ended(self, newest: Execution) -> list[Execution]:
        return [each for each in self._known.values() if each.outcome is not None and each is not newest]

    def _forget(self, execution_id: str) -> None:
        self._forgotten[execution_id] = None
        if len(self._forgotten) > MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def result(self, execution: Execution) -> Result:
        """Reads the result of an execution that has ended."""
        kept = json.loads(self._folder.result(execution.number))
        return Result(**kept | {"outcome": Outcome(kept["outcome"])})

    def _note(self, line: Line) -> None:
        self._folder.note(line, self._lines)

    def _lines(self) -> Iterator[Line]:
        """Yields all that counts."""
        yield {"fence": self._generation}
        yield from ({"epoch": epoch} for epoch in self._epochs.values())
        yield from ({"id": id, "forgotten": True} for id in self._forgotten)
        yield from map(line_of, self._known.values())

    def _read(self) -> None:
        for line in self._folder.lines():
            self._apply(line)
        for each in self._known.values():
            self._number = max(self._number, each.number)
            each.received = max(each.received, self._folder.found_output(each.number))
        self._kept_bytes = sum(each.size for each in self._known.values())

    def _apply(self, line: Line) -> None:
        if "fence" in line:
            self._generation, self._epochs = line["fence"], {}
            return
        if "epoch" in line:
            self._epochs = {self._generation: line["epoch"]}
            return
        id = line["id"]
        if "forgotten" in line:
            self._known.pop(id, None)
            self._forget(id)
        elif "cancelled" in line and len(line) == 2:
            if id in self._known:
                self._known[id].cancelled = True
        else:
            self._known[id] = execution_of(self._sandbox_id, line)

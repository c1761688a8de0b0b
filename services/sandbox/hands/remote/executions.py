"""What this service knows of the executions of one sandbox, in memory and on its disk.

    journal.jsonl     a line for each thing that must outlive this service: who was sent what, what it ended as
    <number>.result   what an execution said
    <number>.output   what it has said so far

A line is written before what it tells of is done: whoever reads the journal later knows every execution that a worker
may have. Lines are not synced: they outlive this process, and a crash of the machine cuts every worker's link anyway,
whose own memory then keeps it from running anything twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from services.kit.errors import Conflict, Exists, Gone
from services.sandbox.hand import ExecutionInfo, Limits, Order, Outcome, Result

MOST_RESULTS = 10_000  # of a sandbox
MOST_FORGOTTEN = 100_000  # ids that are not run again although their result is not kept any more
JOURNAL_BYTES = 4 << 20  # a journal that is longer is written anew, without what counts no more
JOURNAL = "journal.jsonl"


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


class Executions:
    """The executions of one sandbox. Times are Unix seconds."""

    def __init__(self, sandbox_id: str, folder: Path, limits: Limits) -> None:
        """Reads what an earlier service has kept in the folder, which is made when there is something to keep."""
        self._sandbox_id = sandbox_id
        self._folder = folder
        self._limits = limits
        self._known: OrderedDict[str, Execution] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._kept_bytes = 0
        self._output_bytes = 0
        self._journal_bytes = 0
        self._rewrite_bytes = JOURNAL_BYTES
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
        self._note(_line(execution))

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
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._folder / f"{execution.number}.output").open("ab") as file:
                file.write(data)
            self._output_bytes += len(data)

    def output(self, execution: Execution, offset: int, length: int) -> bytes:
        """Returns what was kept of the output, from an offset on."""
        path = self._folder / f"{execution.number}.output"
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
        return b""

    def end(self, execution: Execution, result: Result, said: str = "") -> None:
        """Keeps a result. Older ones make room for it."""
        data = json.dumps(asdict(result) | {"outcome": result.outcome.name}).encode()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / f"{execution.number}.result").write_bytes(data)
        execution.outcome, execution.said, execution.size = result.outcome, said, len(data)
        execution.order = None
        self._note(_line(execution))
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
                (self._folder / f"{oldest.number}.result").unlink(missing_ok=True)
                self._drop_output(oldest)
        if self._output_bytes > 2 * most:
            for oldest in self._ended(newest):
                if self._output_bytes <= 2 * most:
                    break
                self._drop_output(oldest)

    def _ended(self, newest: Execution) -> list[Execution]:
        return [each for each in self._known.values() if each.outcome is not None and each is not newest]

    def _drop_output(self, execution: Execution) -> None:
        path = self._folder / f"{execution.number}.output"
        with contextlib.suppress(FileNotFoundError):
            self._output_bytes -= path.stat().st_size
            path.unlink()

    def _forget(self, execution_id: str) -> None:
        self._forgotten[execution_id] = None
        if len(self._forgotten) > MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def result(self, execution: Execution) -> Result:
        """Reads the result of an execution that has ended."""
        kept = json.loads((self._folder / f"{execution.number}.result").read_bytes())
        return Result(**kept | {"outcome": Outcome(kept["outcome"])})

    def _note(self, line: dict[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        if self._journal_bytes > self._rewrite_bytes:
            self._rewrite()
        self._append(data)

    def _append(self, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        self._journal_bytes += len(data)

    def _rewrite(self) -> None:
        lines: list[dict[str, Any]] = [{"fence": self._generation}]
        lines += [{"epoch": epoch} for epoch in self._epochs.values()]
        lines += [{"id": id, "forgotten": True} for id in self._forgotten]
        lines += map(_line, self._known.values())
        new = self._folder / f"{JOURNAL}.new"
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        new.write_bytes(data)
        new.replace(self._folder / JOURNAL)
        self._journal_bytes = len(data)
        self._rewrite_bytes = max(JOURNAL_BYTES, 2 * len(data))

    def _read(self) -> None:
        try:
            data = (self._folder / JOURNAL).read_bytes()
        except FileNotFoundError:
            return
        self._journal_bytes = len(data)
        for line in data.splitlines():
            with contextlib.suppress(ValueError):  # torn by a crash of the machine
                self._apply(json.loads(line))
        for each in self._known.values():
            self._number = max(self._number, each.number)
            with contextlib.suppress(FileNotFoundError):
                stored = (self._folder / f"{each.number}.output").stat().st_size
                each.received = max(each.received, stored)
                self._output_bytes += stored
        self._kept_bytes = sum(each.size for each in self._known.values())

    def _apply(self, line: dict[str, Any]) -> None:
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
            self._known[id] = _execution(self._sandbox_id, line)


def _execution(sandbox_id: str, line: dict[str, Any]) -> Execution:
    id, outcome = line.pop("id"), line.pop("outcome")
    given, epoch = line.pop("input", None), line.pop("epoch_of", 0)
    order = None
    if not outcome:
        order = Order(id, line["name"], given, line["digest"], line["seconds"], epoch, line.get("generation", 0))
    return Execution(sandbox_id, id, order=order, outcome=Outcome(outcome) if outcome else None, **line)


def _line(execution: Execution) -> dict[str, Any]:
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

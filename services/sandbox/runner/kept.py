"""What a runner keeps of executions: as much of those that have ended as there is room for, the newest."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from .problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .execution import Execution

MAX_RECORDS = 10_000  # of executions, with a result
MEMORY_BYTES = 16 << 20  # of results in memory, all together
MAX_FORGOTTEN = 100_000  # ids without a result, so that none of them runs twice; 64 bytes each


class Room(NamedTuple):
    """How much is kept. Sizes are bytes, and each may be exceeded by the newest alone."""

    outputs: int  # of output on the disk
    answers: int  # of results on the disk
    records: int = MAX_RECORDS
    memory: int = MEMORY_BYTES
    forgotten: int = MAX_FORGOTTEN


class _Shelf:
    """Ids with their sizes, oldest first, and the sum of these."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def put(self, id: str, size: int) -> None:
        if size:
            self._sizes[id] = size
            self._total += size

    def take(self, id: str) -> None:
        self._total -= self._sizes.pop(id, 0)

    def surplus(self) -> Iterable[str]:
        """Takes out the oldest while there is too much and more than one."""
        while self._total > self._limit and len(self._sizes) > 1:
            id, size = self._sizes.popitem(last=False)
            self._total -= size
            yield id


class Kept:
    """The executions by id. What one costs does not depend on how many there are."""

    def __init__(self, room: Room) -> None:
        """Holds nothing yet."""
        self._runs: dict[str, Execution] = {}
        self._records = _Shelf(room.records)
        self._memory = _Shelf(room.memory)
        self._outputs = _Shelf(room.outputs)
        self._answers = _Shelf(room.answers)
        self._forgotten: OrderedDict[int, None] = OrderedDict()
        self._most_forgotten = room.forgotten

    def all(self) -> Iterable[Execution]:
        """Returns those that are known, the oldest first."""
        return self._runs.values()

    def find(self, id: str) -> Execution | None:
        """Returns an execution; None for an id that was never used.

        Raises Problem (EXECUTION_UNKNOWN) when it has been and its result is forgotten: nobody may run it again.
        """
        if self.forgot(id):
            raise Problem("EXECUTION_UNKNOWN", "the execution has ended, and its result is not kept any more")
        return self._runs.get(id)

    def forgot(self, id: str) -> bool:
        """Says whether an id has been used by one whose result is forgotten."""
        return hash(id) in self._forgotten

    def add(self, run: Execution) -> None:
        """Takes one whose id is new."""
        self._runs[run.order.id] = run

    def ended(self, run: Execution) -> None:
        """Counts what is kept of one that has ended, and makes room. It is told to followers before."""
        id = run.order.id
        self._records.put(id, 1)
        self._memory.put(id, run.in_memory)
        self._outputs.put(id, run.stored)
        self._answers.put(id, run.answer_stored)
        for old in self._outputs.surplus():
            self._runs[old].forget_output()  # its result stays
        for shelf in (self._answers, self._memory, self._records):
            for old in shelf.surplus():
                self._forget(old)

    def _forget(self, id: str) -> None:
        self._runs.pop(id).forget()
        for shelf in (self._records, self._memory, self._outputs, self._answers):
            shelf.take(id)
        self._forgotten[hash(id)] = None
        if len(self._forgotten) > self._most_forgotten:
            self._forgotten.popitem(last=False)

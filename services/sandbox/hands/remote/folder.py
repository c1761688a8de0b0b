"""The folder of a sandbox's executions: a journal, results and outputs.

    journal.jsonl     a line for each thing that must outlive this service: who was sent what, what it ended as
    <number>.result   what an execution said
    <number>.output   what it has said so far

Lines are not synced: they outlive this process, and a crash of the machine cuts every worker's link anyway, whose own
memory then keeps it from running anything twice.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

JOURNAL = "journal.jsonl"
JOURNAL_BYTES = 4 << 20  # one that is longer is written anew, without what counts no more

Line = dict[str, Any]


class Folder:
    """Reads and writes. The folder is made when there is something to keep."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._journal_bytes = 0
        self._rewrite_bytes = JOURNAL_BYTES
        self.output_bytes = 0  # of all outputs that are kept

    def lines(self) -> Iterator[Line]:
        """Yields the lines of the journal, but for one that a crash of the machine has torn."""
        try:
            data = (self._path / JOURNAL).read_bytes()
        except FileNotFoundError:
            return
        self._journal_bytes = len(data)
        for line in data.splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

    def note(self, line: Line, whole: Callable[[], Iterable[Line]]) -> None:
        """Adds a line. `whole` returns all that counts, for a journal that has become too long."""
        if self._journal_bytes > self._rewrite_bytes:
            self._rewrite(whole())
        data = json.dumps(line).encode() + b"\n"
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        self._journal_bytes += len(data)

    def _rewrite(self, lines: Iterable[Line]) -> None:
        new = self._path / f"{JOURNAL}.new"
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        new.write_bytes(data)
        new.replace(self._path / JOURNAL)
        self._journal_bytes = len(data)
        self._rewrite_bytes = max(JOURNAL_BYTES, 2 * len(data))

    def write_result(self, number: int, data: bytes) -> None:
        """Keeps a result."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._path / f"{number}.result").write_bytes(data)

    def result(self, number: int) -> bytes:
        """Reads a result."""
        return (self._path / f"{number}.result").read_bytes()

    def drop_result(self, number: int) -> None:
        """Removes a result."""
        (self._path / f"{number}.result").unlink(missing_ok=True)

    def add_output(self, number: int, data: bytes) -> None:
        """Keeps more output."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._path / f"{number}.output").open("ab") as file:
            file.write(data)
        self.output_bytes += len(data)

    def output(self, number: int, offset: int, length: int) -> bytes:
        """Reads output; what is not kept is empty."""
        with contextlib.suppress(FileNotFoundError), (self._path / f"{number}.output").open("rb") as file:
            file.seek(offset)
            return file.read(length)
        return b""

    def found_output(self, number: int) -> int:
        """Returns how much output an earlier service has kept, and counts it from now on."""
        try:
            size = (self._path / f"{number}.output").stat().st_size
        except FileNotFoundError:
            return 0
        self.output_bytes += size
        return size

    def drop_output(self, number: int) -> None:
        """Removes output."""
        path = self._path / f"{number}.output"
        with contextlib.suppress(FileNotFoundError):
            self.output_bytes -= path.stat().st_size
            path.unlink()

"""One run of a tool: from its start to the result that is kept."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import processes, shell, spare
from .output import MEMORY_BYTES, Output, chunk_of, open_regular, read_chunk
from .result import LOST, Ending, compose

if TYPE_CHECKING:
    from .config import Config

_READ_BYTES = 256 << 10
_PIPE_BYTES = 1 << 20
_RESULT = "result.json"
_MAX_RESULT_BYTES = 64 << 20
_END_SECONDS = 3.0  # how long killed processes may take to go before the result is given all the same


class Order(NamedTuple):
    """What was asked for. `digest` tells two orders with one id apart."""

    id: str
    name: str
    input: dict[str, Any]
    digest: str
    timeout: float  # seconds
    generation: int = 0  # of the sandbox's owner


class Execution:
    """Runs while its first process lives, then ends while what that one left is being killed, then has a result."""

    def __init__(self, order: Order, number: int, config: Config, oom: list[processes.Watched]) -> None:
        """Holds an execution that has not started; its files go into a folder named by its number.

        `oom` are the files that count what the kernel has killed for want of memory.
        """
        self.order = order
        self.until = 0.0  # monotonic; when its time is up
        self.folder = os.path.join(config.records, str(number))
        self.output_path = os.path.join(self.folder, "output")
        self.started_at = time.time()
        self.pid = 0
        self.mark = ""
        self.pipe = -1
        self.deadline = 0.0  # monotonic; of what it does now: run, or end
        self.status: int | None = None  # of its first process, as of waitpid
        self.answer_stored = 0  # bytes of the result on the disk
        self.outcome = ""  # empty until there is a result
        self.stored = 0  # bytes of output on the disk, once it has ended
        self.stopped: str | None = None  # why it was killed: TIMEOUT, INTERRUPTED, FLOOD
        self._config = config
        self._oom = oom
        self._output: Output | None = None
        self._side = -1
        self._answer = b""  # the line with the result; empty when that lies on the disk
        self._seal = 0  # of the line; keyed by a secret of this process, so no tool can make another line that has it
        self._held = b""  # the whole output of one that has ended, when it has no file
        self._oom_kills = 0

    def start(self, ready: spare.Spare) -> bool:
        """Begins in a process that was made ready. False when that one is dead."""
        config, order = self._config, self.order
        content = {"name": order.name, "input": order.input}
        text = order.input["command"].encode("utf-8") if ready.is_shell else json.dumps(content).encode("ascii")
        self._oom_kills = processes.oom_kills(self._oom)
        if not ready.give(text):
            return False
        self._output = self._output or Output(self.output_path, config.output_text_bytes, config.output_file_bytes)
        self.pid, self.pipe, self.mark, self._side = ready.pid, ready.pipe, ready.mark, ready.side
        self.until = self.until or time.monotonic() + order.timeout  # also of one that has to start again
        self.deadline = self.until
        return True

    @property
    def running(self) -> bool:
        """Whether its first process may still live."""
        return self.status is None and not self.outcome

    def read(self) -> int:
        """Takes some of what its processes have written: how many bytes. -1 when there will be no more."""
        assert self._output is not None
        try:
            data = os.read(self.pipe, _READ_BYTES)
        except BlockingIOError:
            return 0
        self._output.write(data)
        if self._output.total > self._config.output_total_bytes:
            self.stop("FLOOD")
        return len(data) or -1

    def stop(self, why: str) -> None:
        """Kills its first process and that one's group; the sweep that follows gets the rest."""
        if self.running and self.stopped is None:
            self.stopped = why
            self.deadline = time.monotonic() + _END_SECONDS
            processes.kill_group(self.pid)
            processes.kill(self.pid)

    def exited(self, status: int) -> None:
        """Takes note that its first process has ended. What that one wrote is in the pipe; later bytes are not its."""
        self.status = status
        self.deadline = time.monotonic() + _END_SECONDS
        taken = 0
        while taken <= _PIPE_BYTES:
            count = self.read()
            if count <= 0:
                break
            taken += count

    def begun(self) -> bool:
        """Tells whether it has begun with its order. What was killed while it waited has not, and did nothing."""
        return os.fstat(self._side).st_size > 0

    def take_back(self) -> None:
        """Forgets a process that has never begun, so that another can start."""
        os.close(self._side)
        os.close(self.pipe)
        self.status = None

    def finish(self) -> bytes:
        """Makes the result and keeps it. Returns what the shell has left as its state, empty when that is nothing."""
        assert self._output is not None
        command = self.order.name == "bash"
        side = _contents(self._side, shell.MAX_STATE_BYTES if command else spare.MAX_ANSWER_BYTES)
        os.close(self._side)
        os.close(self.pipe)
        self.pipe = -1
        self._output.close()
        self.stored, self._held = self._output.stored, self._output.held or b""
        self.order = self.order._replace(input={})  # it can be large, and nobody asks for it again
        self._keep(compose(self._ending(command, side)))
        return side if command and side and self.stopped is None else b""

    def _ending(self, command: bool, side: bytes | None) -> Ending:
        assert self._output is not None
        return Ending(
            command=command,
            text=self._output.text(),
            status=self.status,
            stopped=self.stopped,
            out_of_memory=processes.oom_kills(self._oom) > self._oom_kills,
            side=side,
            timeout=self.order.timeout,
            seconds=round(time.time() - self.started_at, 6),
            truncated=self._output.truncated,
            spill_path=self.output_path if self._output.stored else "",
            memory_bytes=self._config.memory_bytes,
            output_total_bytes=self._config.output_total_bytes,
            state_limit=shell.MAX_STATE_BYTES,
        )

    def settle(self, outcome: str, text: str) -> None:
        """Ends an execution that needs no process."""
        self._keep({"text": text, "outcome": outcome, "seconds": 0.0})

    def _keep(self, result: dict[str, Any]) -> None:
        """Keeps the result: a large one on the disk, where it costs no memory, unless that is full."""
        self.outcome = result["outcome"]
        self._output = None
        self._answer = json.dumps({"result": result}).encode("ascii") + b"\n"
        self._seal = hash(self._answer)
        if len(self._answer) > MEMORY_BYTES:
            try:
                os.makedirs(self.folder, exist_ok=True)
                with open(os.path.join(self.folder, _RESULT), "xb") as file:
                    file.write(self._answer)
                self.answer_stored, self._answer = len(self._answer), b""
            except OSError:
                pass

    @property
    def in_memory(self) -> int:
        """How many bytes of its result and its output are kept in memory, once it has ended."""
        return len(self._answer) + len(self._held)

    def answer(self) -> bytes:
        """Returns the line that tells the result of an execution that has ended."""
        if self._answer:
            return self._answer
        try:
            with open_regular(os.path.join(self.folder, _RESULT)) as file:
                answer = file.read(_MAX_RESULT_BYTES)
        except OSError:  # a tool of the runner's own user took it away,
            return LOST
        return answer if hash(answer) == self._seal else LOST  # or put another there

    def forget(self) -> None:
        """Removes all that is kept of an execution that has ended. Who still follows it is told that it is lost."""
        self.forget_output()
        self._answer = self._held = b""
        for remove, path in ((os.unlink, os.path.join(self.folder, _RESULT)), (os.rmdir, self.folder)):
            try:
                remove(path)
            except OSError:
                pass  # it was never kept

    def forget_output(self) -> None:
        """Removes the output of an execution that has ended; its result stays."""
        self.stored = 0
        try:
            os.unlink(self.output_path)
        except OSError:
            pass  # there was none

    def chunk(self, offset: int) -> tuple[str, int]:
        """Returns output from an offset on, see `output.chunk_of`."""
        held = self._output.held if self._output is not None else self._held
        if held is None or self.stored:
            return read_chunk(self.output_path, offset, bool(self.outcome))
        return chunk_of(held[offset:], offset, bool(self.outcome))


def _contents(descriptor: int, limit: int) -> bytes | None:
    """Reads a file in memory, all but its first byte. None when it holds more than the limit."""
    size = os.fstat(descriptor).st_size
    return None if size > limit else os.pread(descriptor, size, 1)

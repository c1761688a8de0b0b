"""An execution that a worker has: what it says, until all of it was acknowledged."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from handmesh.hand.answers import Result, ToolError, message_of, result_of
from handmesh.hand.call import Call
from handmesh.hand.tools import Hand
from handmesh.sandbox.v1 import tool_pb2

CHUNK_BYTES = 64 << 10
OUTPUT_BYTES = 64 << 20
"""Most output that waits for a link. What a tool writes beyond is not kept; its result is."""

SAID_BYTES = 50 << 10
"""What of its output a tool that is ended early has as its result: the first so many bytes."""

Key = tuple[str, str]
_log = logging.getLogger("handmesh.hand")


@dataclass(eq=False)
class Execution:
    """One run. `start` is the offset of what lies in `waiting`: all before it was acknowledged."""

    sandbox_id: str
    execution_id: str
    start: int = 0
    waiting: bytearray = field(default_factory=bytearray)
    said: bytearray = field(default_factory=bytearray)
    result: tool_pb2.ToolResult | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Task[None] | None = None
    reporting: asyncio.Task[None] | None = None
    interrupted: bool = False

    @property
    def key(self) -> Key:
        """Names it among all."""
        return self.sandbox_id, self.execution_id

    def write(self, output: str | bytes) -> None:
        """Takes more output, from the loop's own thread."""
        data = output.encode("utf-8", "replace") if isinstance(output, str) else output
        self.waiting += data[: max(0, OUTPUT_BYTES - len(self.waiting))]
        self.said += data[: max(0, SAID_BYTES - len(self.said))]
        self.news.set()

    def acknowledged(self, next_offset: int) -> None:
        """Forgets what the mesh has."""
        if next_offset > self.start:
            del self.waiting[: next_offset - self.start]
            self.start = next_offset

    def next(self) -> tuple[int, bytes, tool_pb2.ToolResult | None]:
        """Returns what to report next: an offset, a chunk, and the result once no more output comes after the chunk."""
        chunk = bytes(self.waiting[:CHUNK_BYTES])
        return self.start, chunk, self.result if len(chunk) == len(self.waiting) else None

    async def run(self, hand: Hand, call: Call) -> None:
        """Runs the tool to its end, whatever that is."""
        self.result = message_of(await self._ended(hand, call))
        self.ended.set()
        self.news.set()

    async def _ended(self, hand: Hand, call: Call) -> Result:
        try:
            async with asyncio.timeout(call.seconds) as limit:
                return result_of(await hand.execute(call))
        except TimeoutError as error:
            if limit.expired():
                return Result(self._early(f"timed out after {call.seconds:g} s"), "TIMEOUT")
            return Result(f"{type(error).__name__}: {error}", "TOOL_ERROR")
        except asyncio.CancelledError:
            if not self.interrupted:
                raise
            return Result(self._early("interrupted"), "INTERRUPTED")
        except ToolError as error:
            return Result(str(error), "TOOL_ERROR")
        except Exception as error:  # a tool's own mistake: the model is told, and so is the log
            _log.exception("the tool %s failed", call.name)
            return Result(f"{type(error).__name__}: {error}", "TOOL_ERROR")

    def _early(self, why: str) -> str:
        """Returns what the tool had said, and why it said no more."""
        said = self.said.decode("utf-8", "replace").rstrip("\n")
        return f"{said}\n[{why}]" if said else why

    def interrupt(self) -> None:
        """Ends it early. A tool that is not async ends by itself, and nobody waits for it."""
        self.interrupted = True
        if self.running is not None:
            self.running.cancel()

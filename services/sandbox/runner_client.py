"""Speaks to runners over their unix sockets. The other side may be a sandbox gone wrong: nothing it says is trusted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, cast

from services.kit.errors import Conflict, Exists, Full, Gone, Invalid, ServiceError, Unavailable

ANSWER_SECONDS = 10.0  # for anything but the end of an execution
MAX_LINE_BYTES = 32 << 20
MAX_IDLE = 256  # connections that are kept, of all runners together
_AHEAD_BYTES = 256 << 10  # of whole lines that nobody has taken yet: then the runner waits

_KINDS: Mapping[str, type[ServiceError]] = {
    "EXECUTION_ID_REUSED": Exists,
    "EXECUTION_UNKNOWN": Gone,
    "EPOCH_STALE": Conflict,
    "GENERATION_CONFLICT": Conflict,
    "FULL": Full,
    "TOOL_UNKNOWN": Invalid,
    "TOOL_INPUT_INVALID": Invalid,
    "ID_INVALID": Invalid,
    "ARGUMENT_INVALID": Invalid,
    "RESOURCE_INVALID": Invalid,
    "FILE_NOT_FOUND": Gone,
}


class Unreachable(Exception):
    """The runner does not answer: it is gone, or it does not run."""


class Runners:
    """Connections to runners by socket. One that has been answered is kept for the next request to that runner."""

    def __init__(self) -> None:
        """Connects to nothing."""
        self._idle: OrderedDict[Path, list[_Line]] = OrderedDict()  # the runner that was asked last is the last

    async def ask(self, socket: Path, request: Mapping[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Sends a request that has one answer, and returns it. Raises Unreachable, and what the runner refuses with."""
        async with contextlib.aclosing(self.lines(socket, request, seconds)) as answers:
            async for answer in answers:
                return answer
        raise Unreachable("it said nothing")

    async def lines(
        self, socket: Path, request: Mapping[str, Any], seconds: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Sends a request and yields what is answered, for so many seconds at most. To be closed by who stops early.

        A request may reach the runner twice: each is one that can be said again.
        """
        until = asyncio.get_running_loop().time() + seconds
        line: _Line | None = None
        try:
            line, data = await self._asked(socket, json.dumps(request).encode("ascii") + b"\n", until)
            while data:
                answer = said(data)
                if "chunk" not in answer:  # the last of this answer
                    self._keep(socket, line)
                    line = None
                    yield answer
                    return
                yield answer
                data = await line.next(until)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: a line that is too long, or no JSON
            raise Unreachable(type(error).__name__) from None
        finally:
            if line is not None:
                line.close()

    async def _asked(self, socket: Path, request: bytes, until: float) -> tuple[_Line, bytes]:
        """Sends a request. Returns the connection and the first line of the answer, which is empty without any."""
        while True:
            line = self._taken(socket)
            kept = line is not None
            line = line or await _connected(socket, until)
            try:
                data = await line.ask(request, until)
            except BaseException:
                line.close()
                raise
            if data or not kept:
                return line, data
            line.close()  # it ended while it was idle

    def _taken(self, socket: Path) -> _Line | None:
        lines = self._idle.get(socket)
        return lines.pop() if lines else None

    def _keep(self, socket: Path, line: _Line) -> None:
        self._idle.setdefault(socket, []).append(line)
        self._idle.move_to_end(socket)
        if sum(map(len, self._idle.values())) > MAX_IDLE:
            self.forget(next(iter(self._idle)))

    def forget(self, socket: Path) -> None:
        """Closes the idle connections to a runner."""
        for line in self._idle.pop(socket, ()):
            line.close()

    def close(self) -> None:
        """Closes all idle connections."""
        for socket in list(self._idle):
            self.forget(socket)


class _Line(asyncio.Protocol):
    """A connection that carries lines. The runner has to wait when nobody takes what it says."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._seen = 0  # bytes in which there is no end of a line
        self._paused = False
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if b"\n" in data:
            self._wake()
        if len(self._data) > _AHEAD_BYTES and b"\n" in self._data:
            self._pause(True)
        elif len(self._data) > MAX_LINE_BYTES:
            self.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._ended = True
        self._wake()

    def _pause(self, wanted: bool) -> None:
        if wanted is not self._paused and self._transport is not None and not self._ended:
            self._paused = wanted
            self._transport.pause_reading() if wanted else self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def ask(self, request: bytes, until: float) -> bytes:
        """Sends a request, and returns the first line of the answer, as `next` does."""
        assert self._transport is not None
        self._transport.write(request)
        return await self.next(until)

    async def next(self, until: float) -> bytes:
        """Returns the next line. Empty when the connection has ended. Raises TimeoutError."""
        while (end := self._data.find(b"\n", self._seen)) < 0:
            self._seen = len(self._data)
            if self._ended:
                return b""
            self._waiting = asyncio.get_running_loop().create_future()
            self._pause(False)
            async with asyncio.timeout_at(until):
                await self._waiting
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        self._seen = 0
        return line

    def close(self) -> None:
        """Ends the connection at once."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()


async def _connected(socket: Path, until: float) -> _Line:
    """Connects through the folder's descriptor: a socket's path may have 107 bytes only."""
    folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        async with asyncio.timeout_at(until):
            _, line = await asyncio.get_running_loop().create_unix_connection(
                _Line, f"/proc/self/fd/{folder}/{socket.name}"
            )
    finally:
        os.close(folder)
    return line


def said(line: bytes) -> dict[str, Any]:
    """Reads an answer. Raises what the runner refuses with, and ValueError for what is no answer."""
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("no object")
    reason = answer.get("error")
    if reason is None:
        return answer
    kind = _KINDS.get(str(reason))
    if kind is None:
        raise Unavailable("BACKEND_UNAVAILABLE", "the sandbox's runner refuses for an unknown reason")
    numbers = {name: int(answer[name]) for name in ("epoch", "generation") if name in answer}
    raise kind(str(reason), str(answer.get("message", ""))[:500], **numbers)

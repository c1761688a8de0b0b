"""Runs programs of this machine, outside every sandbox, for a bounded time whatever they and their children do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from services.kit.logs import Log

MAX_SAID_BYTES = 8 << 20  # held of what a program says
REST_SECONDS = 1.0  # for the rest of its output once it has ended: a process that it left behind may hold that open
KILL_SECONDS = 5.0  # for the kernel to end what was killed
LOOK_SECONDS = 0.2  # between two looks at what it does
_COMPLAINT_BYTES = 2_000  # kept of what it complains: the end
_PIECE_BYTES = 64 << 10
_log = Log("services.sandbox.programs")

Take = Callable[[bytes], None]
Look = Callable[[], Awaitable[None]]


class SaidTooMuch(Exception):
    """A program has said more than is held."""


@dataclass(frozen=True)
class Ended:
    """How a program ended. `code` is None when it was killed for the time that it took."""

    code: int | None
    said: bytes
    complaint: bytes


class Program:
    """A program that was started, with a session and process group of its own.

    It is waited for by a descriptor of the process: a process of asyncio has ended only when all that it has started
    has closed its output, and uvloop runs Python between fork and exec.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, told: bool = False) -> None:
        """Starts a program that finds its input at its end; or waits for it, and is told by `end`."""
        stdin = subprocess.PIPE if told else subprocess.DEVNULL
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=dict(env), cwd="/", stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True, bufsize=0
        )
        self._descriptor = os.pidfd_open(self._process.pid)
        self._said, self._complaint = bytearray(), bytearray()

    @property
    def lives(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    async def end(self, seconds: float, told: bytes = b"", take: Take | None = None, look: Look | None = None) -> Ended:
        """Waits for its end, for so many seconds; then nothing that it has started is left. To be called once.

        `told`, at most 64 KiB, is its input. `take` is given what it says, else that is in the answer; `look` is called
        now and then. Raises SaidTooMuch, and what these two raise.
        """
        code: int | None = None
        out = asyncio.create_task(_read(self._process.stdout, take or self._hold))
        err = asyncio.create_task(_read(self._process.stderr, self._hold_complaint))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    self._tell(told)
                    code = await self._ended(out, look)
        finally:
            await self._kill((out, err))
        return Ended(code, bytes(self._said), bytes(self._complaint))

    async def drop(self) -> None:
        """Ends one that is not wanted."""
        await self._kill(())

    def _tell(self, told: bytes) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as file:
                file.write(told)

    async def _ended(self, out: asyncio.Task[None], look: Look | None) -> int | None:
        waiting = asyncio.create_task(self._exited())
        try:
            while not waiting.done():
                both = [waiting] if out.done() else [waiting, out]
                await asyncio.wait(both, timeout=LOOK_SECONDS if look else None, return_when=asyncio.FIRST_COMPLETED)
                if out.done():
                    out.result()
                if look is not None:
                    await look()
            await asyncio.wait([out], timeout=REST_SECONDS)
            if out.done():
                out.result()
            return self._process.poll()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _exited(self) -> None:
        loop = asyncio.get_running_loop()
        exited = loop.create_future()
        loop.add_reader(self._descriptor, exited.cancel)
        try:
            await asyncio.wait([exited])
        finally:
            loop.remove_reader(self._descriptor)

    async def _kill(self, readers: Sequence[asyncio.Task[None]]) -> None:
        if self.lives or not all(reader.done() for reader in readers):  # else nothing of it holds its pipes
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(KILL_SECONDS):
                if self.lives:
                    await self._exited()
                await asyncio.gather(*readers, return_exceptions=True)
        except TimeoutError:
            _log.error("program not ended", pid=self._process.pid)
        await asyncio.gather(*readers, return_exceptions=True)  # a timeout has cancelled them
        self._process.poll()
        os.close(self._descriptor)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _hold(self, data: bytes) -> None:
        self._said += data
        if len(self._said) > MAX_SAID_BYTES:
            raise SaidTooMuch

    def _hold_complaint(self, data: bytes) -> None:
        self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]


async def run(
    command: Sequence[str],
    env: Mapping[str, str],
    seconds: float,
    take: Take | None = None,
    look: Look | None = None,
) -> Ended:
    """Starts a program and waits for its end, as `Program` does."""
    return await Program(command, env).end(seconds, take=take, look=look)


async def _read(pipe: IO[bytes] | None, take: Take) -> None:
    assert pipe is not None
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    try:
        while piece := await stream.read(_PIECE_BYTES):
            take(piece)
    finally:
        transport.close()

"""What the checks of all peers have in common: a check, its verdict, and the peer as a process of ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from handmesh.client import HandmeshError

S = TypeVar("S")


class FailedError(Exception):
    """The peer does not do what it must. The text says what was seen."""


class SkippedError(Exception):
    """A check cannot be made. The text says what it needs."""


def expect(holds: bool, otherwise: str) -> None:
    """Raises FailedError unless something holds."""
    if not holds:
        raise FailedError(otherwise)


@dataclass(frozen=True)
class Check(Generic[S]):
    """One of them: what must hold, and what finds out. `times` as long as others it may take."""

    says: str
    run: Callable[[S], Awaitable[None]]
    times: int = 1


async def check_all(
    subject: S, checks: Sequence[Check[S]], only: Sequence[int], seconds: float, say: Callable[[str], None]
) -> int:
    """Runs checks in order, all or some by their numbers, and says how each ended; returns how many failed."""
    failed = 0
    for number, each in enumerate(checks, 1):
        if only and number not in only:
            continue
        begun = time.monotonic()
        verdict, why = await _verdict(subject, each, seconds)
        failed += verdict == "FAILED"
        say(f"{number:2} {verdict:7} {each.says} ({time.monotonic() - begun:.1f} s){why and ': ' + why}")
    return failed


async def _verdict(subject: S, each: Check[S], seconds: float) -> tuple[str, str]:
    try:
        async with asyncio.timeout(seconds * each.times):
            await each.run(subject)
    except TimeoutError:
        return "FAILED", f"what it waits for has not come in {seconds:g} s"
    except SkippedError as lack:
        return "SKIPPED", str(lack)
    except (FailedError, HandmeshError) as problem:
        return "FAILED", str(problem)
    except ExceptionGroup as several:
        return "FAILED", "; ".join(map(str, several.exceptions))
    return "OK", ""


class Worker:
    """The peer as a process of ours. Without a command somebody else runs it, and it cannot be killed."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it. It connects when it can."""
        if self._command:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, process_group=0
            )

    @property
    def can_be_killed(self) -> bool:
        """Whether it is ours."""
        return bool(self._command)

    async def kill(self) -> None:
        """Kills it, and whatever it has started, with SIGKILL."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._process = None

    def lives(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is None or self._process.returncode is None

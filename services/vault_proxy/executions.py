"""Executions by their ids: a second call with an id gets the first one's result, for ten minutes, within bounds.

An execution with an id goes on when its caller is gone; its result waits for the next one that asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.kit.errors import Exists, Full, Gone, ServiceError
from services.kit.logs import Log
from services.vault_proxy.core.answer import Answer, Outcome
from services.vault_proxy.unwound import unwound

KEPT_SECONDS = 600.0
MOST_KEPT = 20_000  # results, of all sessions
KEPT_BYTES = 64 * 1024 * 1024  # of results, of all sessions
MOST_RUNNING = 64  # of one session at once
SAID_CHARACTERS = 32 * 1024  # what an execution says of its progress
CLOSE_SECONDS = 0.5

_log = Log("services.vault_proxy.executions")
_UNSURE = "The server may have done some of it."
NEVER_STARTED = Answer("The call was cancelled before it started.", Outcome.INTERRUPTED)
INTERRUPTED = Answer(f"The call was cancelled. {_UNSURE}", Outcome.INTERRUPTED)

Say = Callable[[str], None]  # what a call says while it runs
Work = Callable[[Say], Awaitable[Answer]]
Key = tuple[str, str]  # session id, execution id


class MayHaveRun(Exception):
    """Ends an execution of which nobody can tell what it did: its id is not used again.

    Raised from the ServiceError that callers are told. Every other ServiceError means that nothing was done, and the
    same call may be made again under the same id.
    """


def digest_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Returns what tells one call from another: the tool and its input, whatever its spelling."""
    canonical = json.dumps([name, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(eq=False)
class _Execution:
    digest: str | None  # None: cancelled before it was known
    result: asyncio.Future[Answer]
    task: asyncio.Task[None] | None = None
    until: float = 0.0  # when it is forgotten, once it has ended
    size: int = 0
    said: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced when more is said, or it has ended

    def say(self, more: str) -> None:
        """Adds to what it says. Past SAID_CHARACTERS nothing more is heard."""
        if not self.result.done() and len(self.said) + len(more) <= SAID_CHARACTERS:
            self.said += more
            self.wake()

    def told(self) -> Answer:
        """Returns the result, or raises what it ended with: each caller a copy, so that the kept one holds nobody's
        frames."""
        problem = self.result.exception()
        if problem is None:
            return self.result.result()
        assert isinstance(problem, Exception), "the future is never cancelled"
        raise unwound(problem)

    def wake(self) -> None:
        """Wakes who watches it."""
        self.news.set()
        self.news = asyncio.Event()


class Executions:
    """Runs work and remembers results. `seconds` is how long one execution may take."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[Key, _Execution] = {}
        self._ended: OrderedDict[Key, _Execution] = OrderedDict()  # oldest first
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._nameless = itertools.count()

    async def run(self, key: Key, digest: str, work: Work, attach_only: bool) -> Answer:
        """Returns the result of the execution of this id, starting it unless it is known or `attach_only`.

        Raises Gone (`EXECUTION_UNKNOWN`), Exists (`EXECUTION_ID_REUSED`), Full, or what `work` raises.
        """
        execution = self._find(key)
        if execution is None:
            if attach_only:
                raise Gone("EXECUTION_UNKNOWN", "no such execution is known", execution_id=key[1])
            execution = self._start(key, digest, work)
        elif execution.digest not in (None, digest):
            raise Exists("EXECUTION_ID_REUSED", "the id stands for another call", execution_id=key[1])
        await asyncio.wait({execution.result})
        return execution.told()

    async def run_once(self, session_id: str, work: Work) -> Answer:
        """Runs work without an id: it ends with its caller."""
        key = (session_id, f" {next(self._nameless)}")  # no chosen id has a space
        execution = self._start(key, "", work)
        try:
            await asyncio.wait({execution.result})
            return execution.told()
        finally:
            self.cancel(key)
            self._forget(key)

    async def watch(self, key: Key, skip: int) -> AsyncIterator[str | Answer]:
        """Yields what an execution says of its progress, from a number of characters on, and its result at the end.

        Raises Gone (`EXECUTION_UNKNOWN`), or what the execution ended with.
        """
        execution = self._find(key)
        if execution is None:
            raise Gone("EXECUTION_UNKNOWN", "no such execution is known", execution_id=key[1])
        while True:
            news = execution.news
            if more := execution.said[skip:]:
                skip += len(more)
                yield more
            if execution.result.done():
                break
            await news.wait()
        yield execution.told()

    def cancel(self, key: Key) -> None:
        """Ends an execution as interrupted; one that is not known never starts, one that has ended stays as it is."""
        execution = self._find(key)
        if execution is None:
            self._settle(key, _Execution(None, asyncio.get_running_loop().create_future()), NEVER_STARTED)
        elif key in self._running:
            self._give_up(key, execution, INTERRUPTED)

    def end_session(self, session_id: str) -> None:
        """Ends everything that runs for a session."""
        for key in [key for key in self._running if key[0] == session_id]:
            self.cancel(key)

    def _find(self, key: Key) -> _Execution | None:
        now = time.monotonic()
        while self._ended and next(iter(self._ended.values())).until <= now:
            self._forget(next(iter(self._ended)))
        return self._running.get(key) or self._ended.get(key)

    def _start(self, key: Key, digest: str, work: Work) -> _Execution:
        if sum(1 for session_id, _ in self._running if session_id == key[0]) >= MOST_RUNNING:
            raise Full("FULL", f"{MOST_RUNNING} calls of the session run already", retry_after=1)
        execution = _Execution(digest, asyncio.get_running_loop().create_future())
        self._running[key] = execution
        execution.task = asyncio.create_task(self._perform(key, execution, work), name=f"execution {key[1]}")
        self._tasks.add(execution.task)
        execution.task.add_done_callback(self._tasks.discard)
        return execution

    async def _perform(self, key: Key, execution: _Execution, work: Work) -> None:
        late = Answer(f"The call took more than {self._seconds:g} s and was given up. {_UNSURE}", Outcome.TIMEOUT)
        # A timer and no `asyncio.timeout`: the result must not wait until the work has ended its clean-up.
        timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up, key, execution, late)
        try:
            answer: Answer | Exception = await work(execution.say)
        except asyncio.CancelledError:
            self._settle(key, execution, INTERRUPTED)
            raise
        except Exception as problem:  # the top of a task: the callers are told
            if not isinstance(problem, ServiceError | MayHaveRun):
                _log.error("an execution failed", exc_info=True)  # what is kept of it has no traceback
            answer = problem
        finally:
            timer.cancel()
        self._settle(key, execution, answer)

    def _give_up(self, key: Key, execution: _Execution, answer: Answer) -> None:
        self._settle(key, execution, answer)
        if execution.task is not None:
            execution.task.cancel()

    def _settle(self, key: Key, execution: _Execution, answer: Answer | Exception) -> None:
        """Gives the execution its result, if it has none, and remembers it."""
        if execution.result.done():
            return
        self._running.pop(key, None)
        if isinstance(answer, Answer):
            execution.result.set_result(answer)
            execution.wake()
            execution.size = len(answer.output) + len(answer.content_json) + len(execution.said)
        else:
            told = answer.__cause__ if isinstance(answer, MayHaveRun) else answer
            assert isinstance(told, Exception), "MayHaveRun is raised from what happened"
            execution.result.set_exception(unwound(told))
            execution.result.exception()  # nobody may be waiting any more
            execution.wake()
            if isinstance(answer, ServiceError):
                return
        execution.until = time.monotonic() + KEPT_SECONDS
        self._ended[key] = execution
        self._bytes += execution.size
        while self._bytes > KEPT_BYTES or len(self._ended) > MOST_KEPT:
            self._forget(next(iter(self._ended)))

    def _forget(self, key: Key) -> None:
        execution = self._ended.pop(key, None)
        if execution is not None:
            self._bytes -= execution.size

    async def close(self) -> None:
        """Cancels what runs."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

"""The sessions that this process is at work on: takes them up, and knows what each does. Kept in memory only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from services.harness.ports import HarnessType, Ports, SessionLog
from services.kit.errors import Conflict, Full, Gone, Refused, ServiceError, Unavailable
from services.kit.logs import Log

_log = Log("services.harness.runs")


class Outcome(Enum):
    """What taking a session up did."""

    STARTED = 1
    ALREADY_AWAKE = 2
    NOTHING_TO_DO = 3


@dataclass
class Run:
    """One session at work (see `Progress`)."""

    session_id: str
    epoch: int = 0
    doing: str = "reading"
    start_time: float = field(default_factory=time.time)
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Outcome] | None = None

    def took_up(self, epoch: int) -> None:
        self.epoch = epoch
        self.taken.set()

    def step(self, name: str) -> None:
        self.doing = name


class Runs:
    """At most `capacity` runs at once; one for each session."""

    def __init__(
        self,
        types: Mapping[str, HarnessType],
        open_log: Callable[[str], SessionLog],
        ports: Ports,
        instance: str,
        capacity: int,
    ) -> None:
        self.capacity = capacity
        self.draining = False
        self._types = types
        self._open_log = open_log
        self._ports = ports
        self._instance = instance
        self._runs: dict[str, Run] = {}

    def list(self) -> list[Run]:
        """Returns the runs, oldest first."""
        return list(self._runs.values())

    async def take_up(self, session_id: str, harness: str) -> Outcome:
        """Takes a session up in the background; returns as soon as it is this harness's, or is not.

        `harness` is the session's type. Raises Full, Gone, Refused for a type that is not here, and Unavailable while
        draining.
        """
        if session_id in self._runs:
            return Outcome.ALREADY_AWAKE
        run = self._begin(session_id, harness)
        assert run.task is not None
        taken = asyncio.create_task(run.taken.wait())
        await asyncio.wait({taken, run.task}, return_when=asyncio.FIRST_COMPLETED)
        taken.cancel()
        return Outcome.STARTED if run.taken.is_set() else run.task.result()

    async def work(self, session_id: str, harness: str) -> bool:
        """Takes a session up and waits until the run has ended. Tells whether it ended well."""
        run = self._runs.get(session_id) or self._begin(session_id, harness)
        assert run.task is not None
        try:
            await asyncio.shield(run.task)
        except ServiceError as problem:
            return isinstance(problem, Gone)
        return True

    def _begin(self, session_id: str, harness: str) -> Run:
        kind = self._types.get(harness)
        if kind is None:
            raise Refused("HARNESS_TYPE_UNKNOWN", f"there is no harness type {harness} here", harness=harness)
        if self.draining:
            raise Unavailable("DRAINING", "this harness is going away; ask another")
        if len(self._runs) >= self.capacity:
            raise Full("FULL", f"this harness is at work on {self.capacity} sessions, its limit", retry_after=1.0)
        run = self._runs[session_id] = Run(session_id)
        run.task = asyncio.create_task(self._run(run, kind), name=f"run {session_id}")
        run.task.add_done_callback(_heard)
        return run

    async def _run(self, run: Run, kind: HarnessType) -> Outcome:
        try:
            await kind.run(self._open_log(run.session_id), self._ports, self._instance, run)
        except Conflict as conflict:
            _log.info("another harness was faster", session_id=run.session_id, reason=conflict.reason)
            return Outcome.ALREADY_AWAKE
        finally:
            del self._runs[run.session_id]
        return Outcome.STARTED if run.taken.is_set() else Outcome.NOTHING_TO_DO

    async def drain(self, seconds: float) -> None:
        """Takes nothing new, lets runs end for a while, then leaves the rest to other harnesses."""
        self.draining = True
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if not tasks:
            return
        _, unfinished = await asyncio.wait(tasks, timeout=seconds)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)


def _heard(task: asyncio.Task[Outcome]) -> None:
    """Says what ended a run that nobody waits for."""
    if not task.cancelled() and (problem := task.exception()) is not None:
        if isinstance(problem, ServiceError):
            _log.warning("run ended", task=task.get_name(), reason=problem.reason)
        else:
            _log.error("run failed", task=task.get_name(), failure=type(problem).__name__)

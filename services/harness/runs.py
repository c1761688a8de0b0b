"""The sessions that this process is at work on: takes them up, and knows what each does. Kept in memory only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from handmesh.session.v1.event_pb2 import Event
from services.harness.condition import Condition
from services.harness.ports import ASKING, LINGERING, HarnessType, Ports, SessionLog
from services.kit import tracing
from services.kit.errors import Conflict, Full, Gone, Refused, ServiceError, Unavailable
from services.kit.logs import Log

_log = Log("services.harness.runs")

AT_ONCE = 0.0  # a time that has come


@dataclass(frozen=True)
class Running:
    """A tool call that a run waits for, since when."""

    tool_use_id: str
    tool: str
    hand: str
    start_time: float


@dataclass
class Run:
    """One session at work (see `Progress`)."""

    session_id: str
    harness: str = ""
    epoch: int = 0
    doing: str = "reading"
    start_time: float = field(default_factory=time.time)
    step_time: float = field(default_factory=time.time)
    running: tuple[Running, ...] = ()
    moved_on: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[float | None] | None = None
    linger: Callable[[], float] = lambda: 0.0
    condition: Condition = field(default_factory=lambda: Condition(time.time))

    def took_up(self, epoch: int) -> None:
        self.epoch = epoch

    def step(self, name: str) -> None:
        self.doing = name
        self.step_time = time.time()
        self.moved_on.set()

    def calls(self, calls: Sequence[tuple[str, str, str]]) -> None:
        since = {each.tool_use_id: each.start_time for each in self.running}
        now = time.time()
        self.running = tuple(Running(*each, start_time=since.get(each[0], now)) for each in calls)


@dataclass(frozen=True)
class Ended:
    """How a run ended. `refused`: another harness should try. `wake_time`: when to offer the session again (Unix time,
    seconds), if not only when something happens."""

    refused: bool = False
    wake_time: float | None = None


class Runs:
    """At most `capacity` runs at once; one for each session."""

    def __init__(
        self,
        types: Mapping[str, HarnessType],
        open_log: Callable[[str, Sequence[Event]], SessionLog],
        ports: Ports,
        instance: str,
        capacity: int,
        linger: float = 0.0,
    ) -> None:
        self.capacity = capacity
        self._linger = linger
        self.draining = False
        self._types = types
        self._open_log = open_log
        self._ports = ports
        self._instance = instance
        self._runs: dict[str, Run] = {}

    def list(self) -> list[Run]:
        """Returns the runs, oldest first."""
        return list(self._runs.values())

    def is_working(self, session_id: str) -> bool:
        """Says whether a session is at work here, and not only kept."""
        return session_id in self._runs and self._runs[session_id].doing != LINGERING

    def check(self, harness: str) -> None:
        """Raises what speaks against one more run: Refused for a type that is not here, Unavailable while draining,
        Full."""
        if harness not in self._types:
            raise Refused("HARNESS_TYPE_UNKNOWN", f"there is no harness type {harness} here", harness=harness)
        if self.draining:
            raise Unavailable("DRAINING", "this harness is going away; ask another")
        if len(self._runs) >= self.capacity:
            raise Full("FULL", f"this harness is at work on {self.capacity} sessions, its limit", retry_after=1.0)

    async def work(self, session_id: str, harness: str, newest: Sequence[Event] = ()) -> Ended:
        """Takes a session up and waits until the run has ended. Raises as `check`, and what broke the run.

        `newest` is what was offered of the log (see `SessionLog`).
        """
        run = self._runs.get(session_id) or self._begin(session_id, harness, newest)
        assert run.task is not None
        await asyncio.wait({run.task})
        if run.task.cancelled():
            return Ended(wake_time=AT_ONCE)
        try:
            return Ended(wake_time=run.task.result())
        except ServiceError as problem:
            return Ended(refused=not isinstance(problem, Gone))

    def _begin(self, session_id: str, harness: str, newest: Sequence[Event]) -> Run:
        self.check(harness)
        run = self._runs[session_id] = Run(session_id, harness, linger=self._patience)
        run.task = asyncio.create_task(self._run(run, self._types[harness], newest), name=f"run {session_id}")
        run.task.add_done_callback(_heard)
        return run

    def _patience(self) -> float:
        """How long a session may be kept that needs nobody: not at all when half the room is taken."""
        return self._linger if len(self._runs) <= self.capacity // 2 else 0.0

    async def _run(self, run: Run, kind: HarnessType, newest: Sequence[Event]) -> float | None:
        tracing.continue_from("")  # what a turn belongs to, its log says
        tracing.about(run.session_id)
        try:
            return await kind.run(self._open_log(run.session_id, newest), self._ports, self._instance, run)
        except Conflict as conflict:
            _log.info("another harness was faster", session_id=run.session_id, reason=conflict.reason)
            return None
        finally:
            del self._runs[run.session_id]

    async def drain(self, seconds: float) -> None:
        """Takes nothing new and leaves what there is to other harnesses.

        An answer of the model that is on its way is waited for, for a while: it is paid for. All else goes on where it
        is, such as a tool in its hand, and whoever takes the session up next gets it.
        """
        self.draining = True
        await asyncio.gather(*(self._leave(run, seconds) for run in self.list()))

    async def _leave(self, run: Run, seconds: float) -> None:
        assert run.task is not None
        if run.doing == ASKING:
            run.moved_on.clear()
            moved = asyncio.create_task(run.moved_on.wait())
            await asyncio.wait({run.task, moved}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
        run.task.cancel()
        await asyncio.wait({run.task})


def _heard(task: asyncio.Task[float | None]) -> None:
    """Says what ended a run that nobody waits for."""
    if not task.cancelled() and (problem := task.exception()) is not None:
        if isinstance(problem, ServiceError):
            _log.warning("run ended", task=task.get_name(), reason=problem.reason)
        else:
            _log.error("run failed", task=task.get_name(), failure=type(problem).__name__)

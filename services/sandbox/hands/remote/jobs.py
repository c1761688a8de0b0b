"""Who gets which call, and how long is waited for whom.

A job goes from waiting (in its station's queue) to a worker, and then to its end; each step is noted in its sandbox's
journal first. Nothing here waits between looking and doing, so no two steps meet halfway.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from services.kit.errors import Full
from services.sandbox.dialled import Assigned, Cancelled, Held, Released
from services.sandbox.hand import Bounds, Outcome, Result
from services.sandbox.hands.remote.execution import Execution
from services.sandbox.hands.remote.workers import Job, Key, Station, Stations, Worker

MOST_WAITING = 1_000  # jobs of one hand that no worker has yet
MOST_UNREAD = 1_000  # by a worker, before it is not told any more of sandboxes that are released
CANCEL_SECONDS = 10.0  # a worker has so long to end what was cancelled
NEVER_STARTED = Result("interrupted before it was started", Outcome.INTERRUPTED)


class Jobs(ABC):
    """The jobs that go on."""

    def __init__(self, stations: Stations, bounds: Bounds) -> None:
        self._stations = stations
        self._bounds = bounds
        self._jobs: dict[tuple[str, str], Job] = {}

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @abstractmethod
    def _heard(self, worker: Worker) -> None:
        """Notes that something was heard of a worker, and sees to it that its silence is noticed."""

    @abstractmethod
    def _lose(self, worker: Worker, why: str) -> None:
        """Forgets a worker, and ends what it had."""

    def take(self, job: Job) -> None:
        """Takes a new execution. Raises Full (`FULL`)."""
        station = self._stations.at(job.key)
        if len(station.waiting) >= MOST_WAITING:
            raise Full("FULL", f"{MOST_WAITING} calls wait for the hand {job.key[1]}", retry_after=5.0)
        self._jobs[job.id] = job
        worker = station.next_for(job) if not station.waiting else None
        if worker is not None:
            self._send(job, worker)
        else:
            self._wait(job)
            self._dispatch(station)

    def adopt(self, job: Job) -> None:
        """Takes up an execution of an earlier service: it waits, or a worker that may still come back has it."""
        self._jobs[job.id] = job
        if not job.execution.worker:
            self._wait(job)
            return
        station = self._stations.at(job.key)
        worker = station.workers.setdefault(job.execution.worker, Worker(job.execution.worker, job.key))
        worker.jobs[job.id] = job
        if worker.link is None:
            self._heard(worker)

    def job(self, sandbox_id: str, execution_id: str) -> Job | None:
        """Returns an execution that goes on."""
        return self._jobs.get((sandbox_id, execution_id))

    def _wait(self, job: Job) -> None:
        job.book.assign(job.execution, "")
        self._stations.at(job.key).waiting.append(job)
        now = self._loop.time()
        job.until, job.alone_until = now + self._bounds.queue, now + self._bounds.offline
        self._look_again(job)

    def _look_again(self, job: Job) -> None:
        job.again(self._loop.call_later(self._bounds.offline / 3, self._still_waiting, job))

    def _still_waiting(self, job: Job) -> None:
        """Gives up a job that no worker takes: soon when there is none, after the queue's time when all are busy."""
        now, name = self._loop.time(), job.key[1]
        if any(worker.takes(job) for worker in self._stations.at(job.key).workers.values()):
            job.alone_until = now + self._bounds.offline
        if now < min(job.until, job.alone_until):
            self._look_again(job)
            return
        why = f"no worker of the hand {name} is connected"
        if now < job.alone_until:
            why = f"all workers of the hand {name} were busy for {self._bounds.queue:g} s"
        self._settle(job, Result(f"{why}: nothing was run", Outcome.TOOL_ERROR))

    def _dispatch(self, station: Station) -> None:
        """Sends what waits to those who have room, the oldest first."""
        for job in list(station.waiting):
            if not station.has_room():
                return
            worker = station.next_for(job)
            if worker is not None:
                station.waiting.remove(job)
                self._send(job, worker)

    def _send(self, job: Job, worker: Worker) -> None:
        assert job.order is not None and worker.link is not None
        job.book.assign(job.execution, worker.id)
        worker.jobs[job.id] = job
        worker.link.send(Assigned(job.execution.sandbox_id, job.order))
        self._watch_end(job)

    def _watch_end(self, job: Job) -> None:
        """Sees to it that an execution ends some time after its limit, as long as its worker is linked."""
        job.again(self._loop.call_later(job.execution.seconds + self._bounds.late, self._late, job))

    def _late(self, job: Job) -> None:
        worker = self._worker_of(job)
        if worker is None or worker.link is None:
            return  # how long is waited for a worker that is away, `_look` says
        self.cancel(job)
        self._settle(job, Result("its worker did not end it in time: it may still run", Outcome.UNKNOWN))

    def _worker_of(self, job: Job) -> Worker | None:
        return self._stations.at(job.key).workers.get(job.execution.worker)

    def cancel(self, job: Job) -> None:
        """Has a job killed. One that no worker has ends here; one whose worker is away, as unknown."""
        worker = self._worker_of(job)
        if not job.execution.worker:
            self._settle(job, NEVER_STARTED)
        elif worker is None or worker.link is None:
            text = "interrupted while its worker was away: it may have run"
            self._settle(job, Result(text, Outcome.UNKNOWN))
        else:
            worker.link.send(Cancelled(Held(*job.id)))
            job.again(self._loop.call_later(CANCEL_SECONDS, self._not_killed, job))

    def _not_killed(self, job: Job) -> None:
        text = "interrupted, but its worker does not say that it has stopped: it may still run"
        self._settle(job, Result(text, Outcome.UNKNOWN))

    def _settle(self, job: Job, result: Result, said: str = "") -> None:
        """Ends a job, unless it has ended."""
        if job.execution.outcome is not None:
            return
        self._drop(job)
        job.book.end(job.execution, result, said)
        self._dispatch(self._stations.at(job.key))

    def _drop(self, job: Job) -> None:
        job.again(None)
        self._jobs.pop(job.id, None)
        station = self._stations.at(job.key)
        if job in station.waiting:
            station.waiting.remove(job)
        worker = self._worker_of(job)
        if worker is not None:
            worker.jobs.pop(job.id, None)
            if not worker.jobs and worker.link is None:
                self._lose(worker, "")

    def release(self, sandbox_id: str, key: Key, open_ones: Sequence[Execution]) -> None:
        """Forgets a sandbox's jobs, and tells the workers of its hand."""
        for execution in open_ones:
            job = self._jobs.get((sandbox_id, execution.execution_id))
            if job is not None:
                self._drop(job)
            execution.outcome = Outcome.UNKNOWN
            execution.tell()
        station = self._stations.get(key)
        for worker in station.linked() if station is not None else ():
            if worker.link is not None and worker.link.backlog < MOST_UNREAD:
                worker.link.send(Released(sandbox_id))
        if station is not None:
            self._dispatch(station)

"""Who is connected, and who gets which call. What is promised is said in `dialled.DialledIn`.

A job goes from waiting (in its station's queue) to a worker, and then to its end; each step is noted in its sandbox's
journal first. Nothing here waits between looking and doing, so no two steps meet halfway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from services.kit.errors import Conflict, Exists, Full, Gone, Invalid, Unauthenticated, Unavailable
from services.kit.logs import Log
from services.sandbox.dialled import (
    CHUNK_BYTES,
    Accepted,
    Assigned,
    Cancelled,
    Drained,
    Heard,
    Held,
    Registration,
    Released,
    Report,
    Wanted,
    Work,
)
from services.sandbox.hand import Bounds, Outcome, Result
from services.sandbox.hands.remote import core
from services.sandbox.hands.remote.executions import Execution
from services.sandbox.hands.remote.workers import Job, Key, Link, Station, Stations, Worker

MOST_WORKERS = 1_024  # of a tenant, linked
MOST_STATIONS = 1_000  # hands of a tenant
MOST_WAITING = 1_000  # jobs of one hand that no worker has yet
MOST_UNREAD = 1_000  # by a worker, before it is not told any more of sandboxes that are released
CANCEL_SECONDS = 10.0  # a worker has so long to end what was cancelled
_log = Log("services.sandbox.remote")


class Switchboard:
    """All stations, and the jobs that go on."""

    def __init__(self, stations: Stations, bounds: Bounds) -> None:
        self._stations = stations
        self._bounds = bounds
        self._jobs: dict[tuple[str, str], Job] = {}
        self._draining = False

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    # Workers

    async def connect(self, said: Registration) -> AsyncGenerator[Work, None]:
        """See `DialledIn.connect`."""
        await asyncio.to_thread(core.check, said)  # schemas may be long
        worker, link, accepted = self._register(said)
        try:
            yield accepted
            self._dispatch(self._stations.at(worker.key))
            while True:
                yield await link.next(self._bounds.lease / 3)
        finally:
            if worker.link is link:
                self._unlink(worker)

    def _register(self, said: Registration) -> tuple[Worker, Link, Accepted]:
        if self._draining:
            raise Unavailable("DRAINING", "this service is going away; connect again", retry_after=1.0)
        key = (said.tenant, said.name)
        of_tenant = self._stations.of(said.tenant)
        if self._stations.get(key) is None and len(of_tenant) >= MOST_STATIONS:
            raise Full("FULL", f"a tenant has at most {MOST_STATIONS} hands", limit=MOST_STATIONS)
        if sum(len(station.linked()) for station in of_tenant) >= MOST_WORKERS:
            raise Full("FULL", f"a tenant has at most {MOST_WORKERS} workers at once", retry_after=5.0)
        station = self._stations.keep(key, said)
        self._take_seat(station, said)
        worker = station.workers.setdefault(said.worker, Worker(said.worker, key))
        replaced = Conflict("WORKER_REPLACED", "the worker has connected again")
        if worker.link is not None:
            worker.link.end(replaced)
        worker.said, worker.link, worker.draining = said, Link(), False
        worker.tools = frozenset(tool.name for tool in said.tools)
        self._heard(worker)
        accepted = Accepted(self._bounds.lease, self._reattach(worker, said.held))
        _log.info("worker connected", tenant=said.tenant, hand=said.name, worker=said.worker, held=len(said.held))
        return worker, worker.link, accepted

    def _take_seat(self, station: Station, said: Registration) -> None:
        """Ends what the one before had, who is no more."""
        for other in list(station.workers.values()):
            if other.id != said.worker and said.seat and other.said is not None and other.said.seat == said.seat:
                if other.link is not None:
                    other.link.end(Conflict("WORKER_REPLACED", "another worker has taken this one's seat"))
                    other.link = None
                self._lose(other, "another worker has taken the seat of the one that had it")

    def _reattach(self, worker: Worker, held: Sequence[Held]) -> tuple[Wanted, ...]:
        """Goes on with what the worker has; what it was sent and does not have has never come, and waits again."""
        wanted = []
        has = {(each.sandbox_id, each.execution_id) for each in held}
        for each in held:
            job = worker.jobs.get((each.sandbox_id, each.execution_id))
            if job is not None:
                wanted.append(Wanted(each, job.execution.received, job.execution.cancelled))
                self._watch_end(job)
        for job in [job for id, job in worker.jobs.items() if id not in has]:
            del worker.jobs[job.id]
            self._wait(job)
        return tuple(wanted)

    def _heard(self, worker: Worker) -> None:
        worker.heard = self._loop.time()
        if worker.timer is None:
            worker.timer = self._loop.call_later(self._bounds.lease / 3, self._look, worker)

    def _look(self, worker: Worker) -> None:
        """Ends the link of a worker that is silent, and gives up one that is away for too long."""
        worker.timer = None
        silent = self._loop.time() - worker.heard
        if worker.link is not None and silent > self._bounds.lease:
            worker.link.end(Unavailable("WORKER_SILENT", f"nothing was heard for {self._bounds.lease:g} s"))
            self._unlink(worker)
        if worker.link is None and silent > self._bounds.reattach:
            self._lose(worker, f"its worker was not heard of for {self._bounds.reattach:g} s")
            return
        wait = self._bounds.lease / 3 if worker.link is not None else max(self._bounds.reattach - silent, 0.0) + 0.001
        worker.timer = self._loop.call_later(wait, self._look, worker)

    def _unlink(self, worker: Worker) -> None:
        worker.link = None
        _log.info("worker away", hand=worker.key[1], worker=worker.id, open=len(worker.jobs))
        if not worker.jobs:
            self._lose(worker, "its worker has gone away")

    def _lose(self, worker: Worker, why: str) -> None:
        """Forgets a worker; nobody can tell what has become of what it had."""
        if worker.timer is not None:
            worker.timer.cancel()
        station = self._stations.at(worker.key)
        if station.workers.get(worker.id) is worker:
            del station.workers[worker.id]
        for job in list(worker.jobs.values()):
            self._settle(job, Result(f"{why}: it may have run, and it is not run again", Outcome.UNKNOWN))

    def revoke(self, token_id: str) -> None:
        """See `DialledIn.revoke`."""
        for station in self._stations.known():
            for worker in list(station.workers.values()):
                if worker.said is None or worker.said.token_id != token_id:
                    continue
                if worker.link is not None:
                    worker.link.end(Unauthenticated("GRANT_INVALID", "the hand's token was revoked"))
                    worker.link = None
                self._lose(worker, "its worker's token was revoked")

    def drain(self) -> None:
        """See `DialledIn.drain`."""
        self._draining = True
        for station in self._stations.known():
            for worker in station.linked():
                if worker.link is not None:
                    worker.link.send(Drained())
                    worker.link.end(Unavailable("DRAINING", "this service is going away; connect again"))

    def close(self) -> None:
        """Ends all links, and waits for nobody any more."""
        for station in self._stations.known():
            for worker in station.workers.values():
                if worker.timer is not None:
                    worker.timer.cancel()
                if worker.link is not None:
                    worker.link.end(Unavailable("DRAINING", "this service is going away; connect again"))
        for job in self._jobs.values():
            job.again(None)

    # Jobs

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
            self._settle(job, Result("interrupted before it was started", Outcome.INTERRUPTED))
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

    # Reports

    def report(self, said: Report) -> Heard | None:
        """See `DialledIn.report`. None for an execution that does not go on: its hand answers for it."""
        station = self._stations.get((said.tenant, said.name))
        worker = station.workers.get(said.worker) if station is not None else None
        if worker is not None and worker.link is not None:
            self._heard(worker)
            worker.draining = worker.draining or said.draining
        if said.held is None:
            if worker is None or worker.link is None:
                raise Gone("WORKER_UNKNOWN", "the worker is not connected; connect again")
            return Heard(open_executions=len(worker.jobs))
        job = None if worker is None else worker.jobs.get((said.held.sandbox_id, said.held.execution_id))
        return None if job is None or worker is None else self._take_report(job, said, worker)

    def _take_report(self, job: Job, said: Report, worker: Worker) -> Heard:
        execution = job.execution
        check_chunk(said)
        if not job.book.write(execution, said.offset, said.chunk):
            raise contradicts(execution.execution_id)
        if execution.received > job.total_bytes:
            self.cancel(job)
            text = f"killed: it wrote more than {job.total_bytes} bytes of output"
            self._settle(job, Result(text, Outcome.TOOL_ERROR))
        elif said.result is not None and said.offset + len(said.chunk) <= execution.received:
            result = core.sound(said.result, job.text_bytes)
            self._settle(job, result, core.digest(said.result))
        return Heard(execution.cancelled, execution.received, len(worker.jobs))


def check_chunk(said: Report) -> None:
    """Raises Invalid (`REPORT_INVALID`)."""
    if said.offset < 0 or len(said.chunk) > CHUNK_BYTES:
        what = "offset" if said.offset < 0 else "chunk"
        raise Invalid("REPORT_INVALID", f"an offset is at least 0, a chunk has at most {CHUNK_BYTES} bytes", field=what)


def unknown(held: Held) -> Gone:
    """Returns what a worker is told of what is not its own: to forget it."""
    return Gone("EXECUTION_UNKNOWN", "nobody waits for that execution here", execution_id=held.execution_id)


def contradicts(execution_id: str) -> Exists:
    """Returns what a worker is told that says something else than before."""
    return Exists("REPORT_CONTRADICTS", "another output or result was acknowledged", execution_id=execution_id)

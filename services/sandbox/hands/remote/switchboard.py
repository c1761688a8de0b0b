"""Who is connected, and what workers say. What is promised is said in `dialled.DialledIn`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from services.kit.errors import Conflict, Exists, Full, Gone, Invalid, Unauthenticated, Unavailable
from services.kit.logs import Log
from services.sandbox.dialled import (
    CHUNK_BYTES,
    Accepted,
    Drained,
    Heard,
    Held,
    Registration,
    Report,
    Wanted,
    Work,
)
from services.sandbox.hand import Bounds, Outcome, Result
from services.sandbox.hands.remote import core
from services.sandbox.hands.remote.jobs import NEVER_STARTED, Jobs
from services.sandbox.hands.remote.workers import Job, Link, Station, Stations, Worker

MOST_WORKERS = 1_024  # of a tenant, linked
MOST_STATIONS = 1_000  # hands of a tenant
_log = Log("services.sandbox.remote")


class Switchboard(Jobs):
    """All stations: workers that come and go, and what they say."""

    def __init__(self, stations: Stations, bounds: Bounds) -> None:
        super().__init__(stations, bounds)
        self._draining = False

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
        """Goes on with what the worker has; what it was sent and does not have has never come, and waits again.

        What was cancelled meanwhile ends instead.
        """
        wanted = []
        has = {(each.sandbox_id, each.execution_id) for each in held}
        for each in held:
            job = worker.jobs.get((each.sandbox_id, each.execution_id))
            if job is not None:
                wanted.append(Wanted(each, job.execution.received, job.execution.cancelled))
                self._watch_end(job)
        for job in [job for id, job in worker.jobs.items() if id not in has]:
            del worker.jobs[job.id]
            if job.execution.cancelled:
                self._settle(job, NEVER_STARTED)
            else:
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

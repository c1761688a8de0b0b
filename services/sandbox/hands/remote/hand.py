"""A `Hand` (see there) whose sandboxes are a word: that a session uses the workers of a name.

Any number of sandboxes may use one hand. What a worker makes of a sandbox's id, to keep sessions apart or not, is its
own affair.

Longer than a module should be: a short method for each promise of the port.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from services.kit.errors import Exists, Gone, Refused, Unavailable
from services.sandbox.dialled import Heard, Registration, Report, Work
from services.sandbox.hand import (
    Bounds,
    Chunk,
    Content,
    ExecutionInfo,
    Labels,
    Limits,
    Order,
    Recipe,
    Result,
    SandboxInfo,
)
from services.sandbox.hands.remote import core
from services.sandbox.hands.remote.bare import Bare, cannot
from services.sandbox.hands.remote.execution import Execution, unknown_execution
from services.sandbox.hands.remote.executions import Executions
from services.sandbox.hands.remote.switchboard import Switchboard, check_chunk, contradicts, unknown
from services.sandbox.hands.remote.workers import Job, Key, Stations
from services.sandbox.records import Record, Records, finished
from services.sandbox.runner.config import CHUNK_BYTES
from services.sandbox.runner.output import chunk_of
from services.sandbox.tools import Tool

NAME = "remote"
UNENFORCED = ("isolation: a hand that dials out is what its owner runs", "memory", "cpus", "processes", "disk")


class RemoteHand(Bare):
    """Sandboxes of the hands that dial out."""

    def __init__(self, state_dir: Path, bounds: Bounds) -> None:
        """Goes on with what an earlier one has left in the folder."""
        self._state = state_dir
        self._records = Records(state_dir / "sandboxes")
        self._stations = Stations(state_dir / "hands")
        self._switchboard = Switchboard(self._stations, bounds)
        self._known: dict[str, Record] = {}
        self._books: dict[str, Executions] = {}
        self._adopted = False
        self._leaving: set[str] = set()  # being released: nobody finds them any more

    # DialledIn

    async def connect(self, registration: Registration) -> AsyncGenerator[Work, None]:
        """See `DialledIn.connect`."""
        self._adopt()
        async with aclosing(self._switchboard.connect(registration)) as works:
            async for work in works:
                yield work

    def report(self, report: Report) -> Heard:
        """See `DialledIn.report`."""
        self._adopt()
        heard = self._switchboard.report(report)
        return heard if heard is not None else self._said_again(report)

    def _said_again(self, said: Report) -> Heard:
        """Answers for an execution that has ended: with the same as before, or that nobody waits for it."""
        assert said.held is not None
        try:
            record = self._record(said.held.sandbox_id)
        except Gone:
            raise unknown(said.held) from None
        book = self._book(record)
        known = book.get(said.held.execution_id)
        if known is None or not known.said or known.worker != said.worker or _key(record) != (said.tenant, said.name):
            raise unknown(said.held)
        check_chunk(said)
        same = said.result is None or core.digest(said.result) == known.said
        if not same or not book.write(known, said.offset, said.chunk):
            raise contradicts(known.execution_id)
        return Heard(known.cancelled, known.received)

    def known(self, tenant: str) -> Sequence[Recipe]:
        """See `DialledIn.known`."""
        return [_recipe(tenant, each.key[1], each.description) for each in self._stations.of(tenant) if each.tools]

    def revoke(self, token_id: str) -> None:
        """See `DialledIn.revoke`."""
        self._switchboard.revoke(token_id)

    def drain(self) -> None:
        """See `DialledIn.drain`."""
        self._switchboard.drain()

    # Hand

    def tools(self, recipe: Recipe) -> tuple[Tool, ...]:
        """See `Hand.tools`."""
        return self._tools((recipe.tenant, recipe.worker), recipe.tools)

    def tools_in(self, info: SandboxInfo) -> tuple[Tool, ...]:
        """See `Hand.tools_in`: those of the worker that connected last."""
        return self._tools(_key(self._record(info.labels.sandbox_id)), info.tools)

    def _tools(self, key: Key, names: Sequence[str]) -> tuple[Tool, ...]:
        station = self._stations.get(key)
        if station is None or not station.tools:
            raise _offline(key[1])
        return tuple(tool for tool in station.tools if not names or tool.name in names)

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`: whether a worker is connected."""
        _check(recipe)
        station = self._stations.get((recipe.tenant, recipe.worker))
        if station is None or not any(core.matches(_labels(it.said), recipe.labels) for it in station.linked()):
            raise _offline(recipe.worker)
        return UNENFORCED

    async def prepare(self, recipe: Recipe) -> None:
        """See `Hand.prepare`: there is nothing to make."""
        _check(recipe)

    async def provision(self, recipe: Recipe, labels: Labels, files: Sequence[Content] = ()) -> SandboxInfo:
        """See `Hand.provision`. Nothing is waited for: workers may come later."""
        _check(recipe)
        if files:
            cannot("files")
        found = self._records.by_request(labels.request_id) if labels.request_id else None
        if found is not None and found.sandbox_id not in self._leaving:
            if _owner(found.info.labels) != _owner(labels):
                raise Exists("REQUEST_ID_REUSED", "the request made a sandbox for another owner or environment")
            return found.info
        facts: dict[str, str | int] = {
            "tenant": recipe.tenant,
            "name": recipe.worker,
            "labels": json.dumps(dict(recipe.labels)),
            "text": recipe.limits.output_text_bytes,
            "file": recipe.limits.output_file_bytes,
            "total": recipe.limits.output_total_bytes,
        }
        made = self._records.create(SandboxInfo(labels, NAME, recipe.tools, recipe.limits.seconds))
        record = self._records.save(finished(Record(made.info, made.folder, True, facts), UNENFORCED))
        self._known[record.sandbox_id] = record
        return record.info

    async def relabel(self, sandbox_id: str, before: Labels, after: Labels) -> SandboxInfo:
        """See `Hand.relabel`."""
        changed = self._known[sandbox_id] = self._records.relabel(self._record(sandbox_id), before, after)
        return changed.info

    async def fence(self, sandbox_id: str, generation: int) -> None:
        """See `Hand.fence`. Workers know nothing of it: they are sent what may run."""
        self._book(self._record(sandbox_id)).fence(generation)

    async def start(self, sandbox_id: str, order: Order) -> bool:
        """See `Hand.start`."""
        return self._start(self._record(sandbox_id), order)[1]

    def _start(self, record: Record, order: Order) -> tuple[Execution, bool]:
        self._adopt()
        book = self._book(record)
        execution, new = book.begin(order, time.time())
        if new:
            try:
                self._switchboard.take(self._job(record, book, execution))
            except BaseException:
                book.drop(execution)
                raise
        return execution, new

    def _job(self, record: Record, book: Executions, execution: Execution) -> Job:
        facts = record.facts
        return Job(
            execution, book, _key(record), json.loads(str(facts["labels"])), int(facts["text"]), int(facts["total"])
        )

    async def run(self, sandbox_id: str, order: Order) -> Result:
        """See `Hand.run`."""
        record = self._record(sandbox_id)
        execution, _ = self._start(record, order)
        return await self._ended(record, execution)

    async def _ended(self, record: Record, execution: Execution) -> Result:
        while execution.outcome is None:
            self._still_there(record, execution)
            await execution.changed.wait()
        self._still_there(record, execution)
        return self._book(record).result(execution)

    def _still_there(self, record: Record, execution: Execution) -> None:
        """Raises Gone when the sandbox was released, or the execution's result had to go, meanwhile."""
        self._record(record.sandbox_id)
        if self._book(record).get(execution.execution_id) is not execution:
            raise unknown_execution(execution.execution_id)

    async def follow(
        self, sandbox_id: str, execution_id: str, offset: int | None = None
    ) -> AsyncIterator[Chunk | Result]:
        """See `Hand.follow`."""
        self._adopt()
        record = self._record(sandbox_id)
        book = self._book(record)
        execution = book.find(execution_id)
        at = offset
        while at is not None:
            changed, ended = execution.changed, execution.outcome is not None
            self._still_there(record, execution)
            text, after = chunk_of(book.output(execution, at, CHUNK_BYTES), at, ended)
            if text:
                yield Chunk(text, after)
            at = after
            if not text and ended:
                break
            if not text:
                await changed.wait()
        yield await self._ended(record, execution)

    async def cancel(self, sandbox_id: str, execution_id: str, epoch: int = 0, generation: int = 0) -> None:
        """See `Hand.cancel`."""
        self._adopt()
        record = self._record(sandbox_id)
        book = self._book(record)
        book.admit(epoch, generation)
        known = book.get(execution_id)
        if known is not None and known.cancelled:
            return
        execution = book.cancel(execution_id, time.time())
        job = self._switchboard.job(sandbox_id, execution_id)
        if execution is not None and execution.outcome is None and job is not None:
            self._switchboard.cancel(job)

    async def executions(self, sandbox_id: str) -> tuple[ExecutionInfo, ...]:
        """See `Hand.executions`."""
        return self._book(self._record(sandbox_id)).all()

    async def release(self, sandbox_id: str) -> None:
        """See `Hand.release`. Workers are told, so that they end what they run for it."""
        record = self._records.get(sandbox_id)
        if record is None or sandbox_id in self._leaving:
            return
        self._adopt()
        book = self._book(record)
        self._books.pop(sandbox_id, None)
        self._known.pop(sandbox_id, None)
        self._leaving.add(sandbox_id)
        try:
            self._switchboard.release(sandbox_id, _key(record), book.open())
            await asyncio.to_thread(self._records.remove, record.folder)
        finally:
            self._leaving.discard(sandbox_id)

    async def find(self, sandbox_id: str) -> SandboxInfo | None:
        """See `Hand.find`."""
        try:
            return self._record(sandbox_id).info
        except Gone:
            return None

    async def list(self) -> tuple[SandboxInfo, ...]:
        """See `Hand.list`."""
        kept = [record for record in self._records.all() if record.ready and record.sandbox_id not in self._leaving]
        return tuple(record.info for record in kept)

    async def tidy(self) -> None:
        """See `Hand.tidy`."""
        for folder in self._records.unfinished():
            await asyncio.to_thread(self._records.remove, folder)

    async def close(self) -> None:
        """See `Hand.close`."""
        self._switchboard.close()

    # Records

    def _record(self, sandbox_id: str) -> Record:
        record = self._known.get(sandbox_id)
        if record is None:
            record = None if sandbox_id in self._leaving else self._records.get(sandbox_id)
            if record is None or not record.ready:
                raise _gone(sandbox_id)
            self._known[sandbox_id] = record
        return record

    def _book(self, record: Record) -> Executions:
        book = self._books.get(record.sandbox_id)
        if book is None:
            limits = Limits(output_text_bytes=int(record.facts["text"]), output_file_bytes=int(record.facts["file"]))
            book = Executions(record.sandbox_id, record.folder / "executions", limits)
            self._books[record.sandbox_id] = book
        return book

    def _adopt(self) -> None:
        """Takes up, once, what an earlier service has sent to workers: before any of them says a word."""
        if self._adopted:
            return
        self._adopted = True
        for record in self._records.all():
            if record.ready:
                book = self._book(record)
                for execution in book.open():
                    self._switchboard.adopt(self._job(record, book, execution))


def _recipe(tenant: str, name: str, description: str) -> Recipe:
    return Recipe(name, NAME, description, worker=name, tenant=tenant)


def _check(recipe: Recipe) -> None:
    """Raises Refused (`CAPABILITY_MISSING`) for a recipe that wants of a remote hand what it has not."""
    if not recipe.worker:
        raise Refused("CAPABILITY_MISSING", "a remote environment needs `worker`, the hand's name", backend=NAME)
    for word, wanted in (("network", recipe.network), ("pool", recipe.pool), ("env", recipe.env)):
        if wanted:
            cannot(word)


def _offline(name: str) -> Unavailable:
    return Unavailable("HAND_OFFLINE", f"no worker of the hand {name} is connected", name=name)


def _gone(sandbox_id: str) -> Gone:
    return Gone("SANDBOX_GONE", "the sandbox is not there any more; provision another", sandbox_id=sandbox_id)


def _key(record: Record) -> Key:
    return str(record.facts["tenant"]), str(record.facts["name"])


def _labels(said: Registration | None) -> Mapping[str, str]:
    return said.labels if said is not None else {}


def _owner(labels: Labels) -> tuple[str, str, str]:
    return labels.environment, "" if labels.standing else labels.session_id, labels.tenant

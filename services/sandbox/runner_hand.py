"""A hand over places where a runner runs. What differs between backends is only the place: see `place.Place`.

Longer than a module should be: a short method for each promise of the port.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from services.kit import failpoints
from services.kit.errors import Exists, Gone, Invalid, Unavailable
from services.kit.ids import mint
from services.kit.logs import Log
from services.sandbox.hand import (
    CAPABILITIES,
    WORKSPACE,
    Chunk,
    Content,
    ExecutionInfo,
    File,
    Labels,
    Order,
    Outcome,
    Recipe,
    Result,
    SandboxInfo,
)
from services.sandbox.place import SOCKET, Place
from services.sandbox.records import Record, Records, finished
from services.sandbox.runner_client import Runners, Unreachable
from services.sandbox.runner_doors import RunnerDoors
from services.sandbox.runner_files import RunnerFiles
from services.sandbox.tools import NAMES, Tool, offered

START_SECONDS = 60.0  # from a place that was made to a runner that answers
PUT_SECONDS = 30.0
PING_SECONDS = 1.0  # a free sandbox that has not answered by then is given to nobody
LATE_SECONDS = 30.0  # past an execution's limit, after which its runner is taken to be stuck
_POLL_SECONDS = 0.005
_DEATH_LOOKS, _DEATH_SECONDS = 20, 0.05
_log = Log("services.sandbox.runner_hand")


class RunnerHand(RunnerFiles, RunnerDoors):
    """A `Hand` (see there) over a place and the folder of its records."""

    capabilities = CAPABILITIES

    def __init__(self, place: Place, records: Records) -> None:
        """Goes on with the sandboxes that the records tell of."""
        self._place = place
        self._records = records
        self._runners = Runners()
        self._known: dict[str, Record] = {}  # finished ones, to save reading the disk at each call
        self._unfinished: set[str] = set()  # sandboxes that are being made here: not to be tidied away
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[str] = set()  # sandboxes that are being destroyed here: nobody finds them any more
        self._making: dict[str, asyncio.Task[SandboxInfo]] = {}  # by request id; whoever asks again waits with it

    def tools(self, recipe: Recipe) -> tuple[Tool, ...]:
        """See `Hand.tools`."""
        return offered(recipe.tools)

    def tools_in(self, info: SandboxInfo) -> tuple[Tool, ...]:
        """See `Hand.tools_in`."""
        return offered(info.tools)

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`."""
        self._check_network(recipe.network)
        return await self._place.check(recipe)

    async def prepare(self, recipe: Recipe) -> None:
        """See `Hand.prepare`."""
        await self.check(recipe)
        await self._place.prepare(recipe)

    async def provision(self, recipe: Recipe, labels: Labels, files: Sequence[Content] = ()) -> SandboxInfo:
        """See `Hand.provision`."""
        return await self._once(labels, lambda: self._make(recipe, labels, files))

    async def claim(self, sandbox_id: str, labels: Labels, files: Sequence[Content] = ()) -> SandboxInfo:
        """See `Hand.claim`."""
        return await self._once(labels, lambda: self._take(sandbox_id, labels, files))

    async def _once(self, labels: Labels, make: Callable[[], Coroutine[Any, Any, SandboxInfo]]) -> SandboxInfo:
        """Makes a request's sandbox unless it has one. Whoever asks meanwhile waits with it."""
        if not labels.request_id:
            return await make()
        making = self._making.get(labels.request_id)
        while making is not None and not making.done():
            with contextlib.suppress(Gone):  # it was a claim that came too late, of a sandbox that is not this call's
                return _same(await asyncio.shield(making), labels)
            making = self._making.get(labels.request_id)
        making = asyncio.create_task(self._find_or(labels.request_id, make))
        self._making[labels.request_id] = making
        making.add_done_callback(lambda made: self._made(labels.request_id, made))
        return _same(await asyncio.shield(making), labels)  # a caller that goes away leaves the others their sandbox

    def _made(self, request_id: str, task: asyncio.Task[SandboxInfo]) -> None:
        if self._making.get(request_id) is task:  # else another has begun since
            del self._making[request_id]

    async def _find_or(self, request_id: str, make: Callable[[], Coroutine[Any, Any, SandboxInfo]]) -> SandboxInfo:
        found = self._records.by_request(request_id)
        if found is not None and found.ready:
            return found.info
        if found is not None:  # the service died while it made it, so nobody was told of it
            await self._remove(found)
        return await make()

    async def _take(self, sandbox_id: str, labels: Labels, files: Sequence[Content]) -> SandboxInfo:
        free: Record | None = await self._record(sandbox_id)
        if free is not None and free.info.labels.pool:
            await self._pinged(free)
            free = self._known.get(sandbox_id)  # as it is after that wait; there is no other until it is saved
        if free is None or not free.info.labels.pool:
            raise _gone(sandbox_id)
        owned = replace(free.info, labels=replace(labels, sandbox_id=sandbox_id, pool=""))
        record = self._records.save(replace(free, info=owned, ready=not files))
        self._known[sandbox_id] = record
        if files:
            await self._fill(record, files)
        _log.info("sandbox claimed", sandbox_id=sandbox_id, backend=self._place.name, session_id=labels.session_id)
        return owned

    async def _pinged(self, record: Record) -> None:
        try:
            await self._runners.ask(record.door / SOCKET, {"op": "ping"}, PING_SECONDS)
        except Unreachable:
            raise _gone(record.sandbox_id) from None

    async def _fill(self, record: Record, files: Sequence[Content]) -> None:
        """Puts files into a sandbox that was claimed, and finishes it."""
        self._unfinished.add(record.sandbox_id)
        try:
            await self._put(record, files)
            self._known[record.sandbox_id] = self._records.save(replace(record, ready=True))
        except BaseException:
            await asyncio.shield(self._remove(record))
            raise
        finally:
            self._unfinished.discard(record.sandbox_id)

    async def _make(self, recipe: Recipe, labels: Labels, files: Sequence[Content]) -> SandboxInfo:
        unenforced = await self.check(recipe)
        await self._place.prepare(recipe)
        info = SandboxInfo(labels, self._place.name, recipe.tools or NAMES, recipe.limits.seconds)
        record = self._records.create(info)
        self._unfinished.add(record.sandbox_id)
        try:
            record = self._records.save(replace(record, facts=await self._place.boot(record, recipe)))
            failpoints.hit("sandbox.sandbox_booted")
            await self._answering(record)
            await self._put(record, files)
            record = self._records.save(finished(record, unenforced))
        except BaseException as error:
            if isinstance(error, Unavailable):
                why = await self._place.complaint(record)
                _log.error("sandbox not made", sandbox_id=record.sandbox_id, backend=self._place.name, why=why)
            await asyncio.shield(self._remove(record))
            raise
        finally:
            self._unfinished.discard(record.sandbox_id)
        self._known[record.sandbox_id] = record
        _log.info("sandbox made", sandbox_id=record.sandbox_id, backend=self._place.name, session_id=labels.session_id)
        return record.info

    async def _answering(self, record: Record) -> None:
        """Waits until the runner answers."""
        loop = asyncio.get_running_loop()
        until = loop.time() + START_SECONDS
        while True:
            with contextlib.suppress(Unreachable):
                await self._runners.ask(record.door / SOCKET, {"op": "ping"}, until - loop.time())
                return
            if loop.time() > until or not await self._place.lives(record):
                raise Unavailable("BACKEND_UNAVAILABLE", "the sandbox did not start", backend=self._place.name)
            await asyncio.sleep(_POLL_SECONDS)

    async def relabel(self, sandbox_id: str, before: Labels, after: Labels) -> SandboxInfo:
        """See `Hand.relabel`."""
        changed = self._known[sandbox_id] = self._records.relabel(await self._record(sandbox_id), before, after)
        return changed.info

    async def fence(self, sandbox_id: str, generation: int) -> None:
        """See `Hand.fence`."""
        await self._ask(await self._record(sandbox_id), {"op": "fence", "generation": generation})

    async def put(self, sandbox_id: str, files: Sequence[Content]) -> None:
        """See `Hand.put`."""
        await self._put(await self._record(sandbox_id), files)

    async def _put(self, record: Record, files: Sequence[Content]) -> None:
        for file in files:
            if not isinstance(file, File):
                await self._send(record, file)
                continue
            path = str(PurePosixPath(file.path).relative_to(WORKSPACE))
            data = base64.b64encode(file.content).decode("ascii")
            given = {"path": path, "data": data, "mode": file.mode, "offset": file.offset}
            result = await self._run(record, Order(mint("put"), "_put", given, "", PUT_SECONDS))
            if result.outcome is not Outcome.OK:
                raise Invalid("RESOURCE_INVALID", f"it cannot be put there: {result.text}", mount_path=file.path)

    async def plant(self, sandbox_id: str, path: str, tree: Path) -> None:
        """See `Hand.plant`."""
        record = await self._record(sandbox_id)
        if not await self._place.graft(record, path, tree):
            await self._copy(record, path, tree)

    async def start(self, sandbox_id: str, order: Order) -> bool:
        """See `Hand.start`."""
        answer = await self._ask(await self._record(sandbox_id), _request("start", order))
        return bool(answer.get("started"))

    async def run(self, sandbox_id: str, order: Order) -> Result:
        """See `Hand.run`."""
        return await self._run(await self._record(sandbox_id), order)

    async def _run(self, record: Record, order: Order) -> Result:
        try:
            most = record.info.seconds + LATE_SECONDS
            return _result((await self._runners.ask(record.door / SOCKET, _request("run", order), most))["result"])
        except (Unreachable, KeyError, TypeError, ValueError):
            raise await self._lost(record) from None

    async def follow(
        self, sandbox_id: str, execution_id: str, offset: int | None = None
    ) -> AsyncIterator[Chunk | Result]:
        """See `Hand.follow`."""
        async for said in self._follow(await self._record(sandbox_id), execution_id, offset):
            yield said

    async def _follow(self, record: Record, execution_id: str, offset: int | None) -> AsyncIterator[Chunk | Result]:
        request = {"op": "follow", "id": execution_id, "offset": offset}
        most = record.info.seconds + LATE_SECONDS
        try:
            async with contextlib.aclosing(self._runners.lines(record.door / SOCKET, request, most)) as answers:
                async for answer in answers:
                    if "result" in answer:
                        yield _result(answer["result"])
                        return
                    yield Chunk(str(answer["chunk"]), int(answer["next"]))
        except (Unreachable, KeyError, TypeError, ValueError):
            raise await self._lost(record) from None
        raise await self._lost(record)

    async def cancel(self, sandbox_id: str, execution_id: str, epoch: int = 0, generation: int = 0) -> None:
        """See `Hand.cancel`."""
        record = await self._record(sandbox_id)
        await self._ask(record, {"op": "cancel", "id": execution_id, "epoch": epoch, "generation": generation})

    async def executions(self, sandbox_id: str) -> tuple[ExecutionInfo, ...]:
        """See `Hand.executions`."""
        answer = await self._ask(await self._record(sandbox_id), {"op": "list"})
        return tuple(
            ExecutionInfo(
                execution_id=str(row["id"]),
                name=str(row["name"]),
                start_time=float(row["started_at"]),
                outcome=Outcome(row["outcome"]) if row["outcome"] else None,
                generation=int(row.get("generation", 0)),
            )
            for row in answer["executions"]
            if not row["name"].startswith("_")  # the service's own
        )

    async def release(self, sandbox_id: str) -> None:
        """See `Hand.release`."""
        record = self._records.get(sandbox_id)
        if record is not None:
            await self._remove(record)
            _log.info("sandbox released", sandbox_id=sandbox_id, backend=self._place.name)

    async def find(self, sandbox_id: str) -> SandboxInfo | None:
        """See `Hand.find`."""
        try:
            return (await self._record(sandbox_id)).info
        except Gone:
            return None

    async def list(self) -> tuple[SandboxInfo, ...]:
        """See `Hand.list`."""
        kept = [record for record in self._records.all() if record.ready and record.sandbox_id not in self._leaving]
        return tuple([record.info for record in kept if await self._place.lives(record)])

    async def tidy(self) -> None:
        """See `Hand.tidy`."""
        for folder in self._records.unfinished():
            await asyncio.to_thread(self._records.remove, folder)
        for sandbox_id in [record.sandbox_id for record in self._records.all()]:
            record = self._records.get(sandbox_id)  # as it is by now: others were waited for
            if record is None or sandbox_id in self._unfinished or sandbox_id in self._leaving:
                continue
            if not (record.ready and await self._place.lives(record)):
                await self._remove(record)
        await self._place.tidy(self._records.all)

    async def close(self) -> None:
        """See `Hand.close`."""
        await asyncio.gather(*self._making.values(), *self._removing.values(), return_exceptions=True)
        self._runners.close()
        await self._place.close()

    async def _remove(self, record: Record) -> None:
        """Removes a sandbox, once for all who want it gone."""
        removing = self._removing.get(record.sandbox_id)
        if removing is None:
            removing = self._removing[record.sandbox_id] = asyncio.create_task(self._destroy(record))
            removing.add_done_callback(lambda _: self._removing.pop(record.sandbox_id))
        await asyncio.shield(removing)

    async def _destroy(self, record: Record) -> None:
        self._known.pop(record.sandbox_id, None)
        self._runners.forget(record.door / SOCKET)
        self._leaving.add(record.sandbox_id)
        try:
            await self._place.destroy(record)
            failpoints.hit("sandbox.place_destroyed")
            await asyncio.to_thread(self._records.remove, record.folder)
        finally:
            self._leaving.discard(record.sandbox_id)

    async def _record(self, sandbox_id: str) -> Record:
        record = self._known.get(sandbox_id)
        if record is None:
            record = None if sandbox_id in self._leaving else self._records.get(sandbox_id)
            if record is None or not record.ready:
                raise _gone(sandbox_id)
            self._known[sandbox_id] = record
        return record

    async def _ask(self, record: Record, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self._runners.ask(record.door / SOCKET, request)
        except Unreachable:
            raise await self._lost(record) from None

    async def _lost(self, record: Record) -> Gone | Unavailable:
        """Returns what to raise when a runner has not answered. One that has just died may still look alive."""
        for _ in range(_DEATH_LOOKS):
            if not await self._place.lives(record):
                self._known.pop(record.sandbox_id, None)
                return _gone(record.sandbox_id)
            await asyncio.sleep(_DEATH_SECONDS)
        return Unavailable("BACKEND_UNAVAILABLE", "the sandbox does not answer", backend=self._place.name)


def _gone(sandbox_id: str) -> Gone:
    return Gone("SANDBOX_GONE", "the sandbox is not there any more; provision another", sandbox_id=sandbox_id)


def _same(info: SandboxInfo, labels: Labels) -> SandboxInfo:
    """Returns a request's sandbox, unless the request was another's."""
    if _owner(info.labels) != _owner(labels):
        raise Exists("REQUEST_ID_REUSED", "the request made a sandbox for another owner or environment")
    return info


def _owner(labels: Labels) -> tuple[str, str, str]:
    """Returns whose a request is: a standing hand's is its tenant's, whichever session has it."""
    return labels.environment, "" if labels.standing else labels.session_id, labels.tenant


def _request(operation: str, order: Order) -> dict[str, Any]:
    return {
        "op": operation,
        "id": order.execution_id,
        "name": order.name,
        "input": dict(order.input),
        "digest": order.digest,
        "timeout_ms": order.seconds * 1000.0,
        "epoch": order.epoch,
        "generation": order.generation,
    }


def _result(said: Mapping[str, Any]) -> Result:
    return Result(
        text=str(said["text"]),
        outcome=Outcome(said["outcome"]),
        seconds=float(said["seconds"]),
        content_json=str(said.get("content", "")),
        exit_code=said.get("exit_code"),
        signal=said.get("signal"),
        truncated=bool(said.get("truncated", False)),
        spill_path=str(said.get("spill_path", "")),
    )

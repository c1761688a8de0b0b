"""A worker: connects to a mesh, runs what it is sent, and says what came of it; again and again, until it is stopped.

While the link is down executions go on, and what they say is kept; it is said when the link is up again. The mesh
sends an execution to one worker, once: a worker that ends takes what it had with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import secrets
from typing import TYPE_CHECKING

import grpc

from handmesh.client.channels import Link
from handmesh.client.errors import HandmeshError, raised
from handmesh.hand.call import Call
from handmesh.hand.execution import Execution, Key
from handmesh.hand.place import Place
from handmesh.hand.refusals import FINAL, HandRefused
from handmesh.hand.tools import Hand
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub

if TYPE_CHECKING:
    from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceAsyncStub

KEEPALIVE_MS = 3_000
FIRST_SECONDS, MOST_SECONDS = 0.2, 5.0  # between two attempts to connect
LEASE_SECONDS = 10.0  # until the mesh names its own
REPORT_SECONDS = 10.0  # for one report
CHUNKS_SECONDS = 0.05  # output that comes faster than that is said together
DRAIN_SECONDS = 0.2  # between two looks whether nothing is open any more
_SERVICE = "handmesh.sandbox.v1.SandboxService"
_log = logging.getLogger("handmesh.hand")


class Worker:
    """One worker of a hand."""

    def __init__(self, hand: Hand, place: Place) -> None:
        """Connects to nothing yet."""
        self._hand = hand
        self._place = place
        self._id = f"{place.name}-{secrets.token_hex(8)}"
        self._executions: dict[Key, Execution] = {}
        self._known: dict[Key, None] = {}  # begun or cancelled here, also what is forgotten: never begun again
        self._link = Link(place.address, place.token, place.ca_file, [(_SERVICE, "ConnectHand")], KEEPALIVE_MS)
        self._stub: SandboxServiceAsyncStub = SandboxServiceStub(self._link.channel)
        self._lease = LEASE_SECONDS
        self._linked = asyncio.Event()
        self._draining = asyncio.Event()
        self._stream: grpc.aio.UnaryStreamCall[pb.ConnectHandRequest, pb.ConnectHandResponse] | None = None
        self._refused: HandRefused | None = None

    @property
    def linked(self) -> asyncio.Event:
        """Is set while the mesh can send work."""
        return self._linked

    @property
    def draining(self) -> bool:
        """Whether it goes away."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Takes no more work: `run` returns when all that was begun has ended and is said."""
        self._draining.set()

    async def run(self) -> None:
        """Serves until it is drained. Raises HandRefused."""
        beating = asyncio.create_task(self._beat())
        wait = FIRST_SECONDS
        try:
            while not self._is_done():
                if await self._connected():
                    wait = FIRST_SECONDS
                if self._refused is not None:
                    raise self._refused
                if not self._is_done():
                    await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                    wait = min(wait * 2, MOST_SECONDS)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def _is_done(self) -> bool:
        return self._draining.is_set() and not self._executions

    async def _connected(self) -> bool:
        """Serves one stream to its end; says whether the mesh had taken the worker."""
        request = pb.ConnectHandRequest(
            name=self._place.name,
            tools=[tool.message() for tool in self._hand.tools()],
            labels=self._place.labels,
            capacity=self._hand.capacity,
            worker=self._id,
            seat=self._place.seat,
            description=self._hand.description[:1024],
            executions=[pb.HeldExecution(sandbox_id=one, execution_id=two) for one, two in self._executions],
        )
        self._stream = stream = self._stub.ConnectHand(request, metadata=self._link.metadata)
        taken = False
        try:
            while True:
                async with asyncio.timeout(self._lease):
                    message = await stream.read()
                if not isinstance(message, pb.ConnectHandResponse):
                    break
                taken = True
                await self._do(message)
                self._linked.set()
            raise_for(await stream.code(), await stream.details() or "")
        except TimeoutError:
            _log.warning("nothing was heard for %g s; connecting again", self._lease)
        except grpc.aio.AioRpcError as error:
            self._lost(raised(error))
        except HandmeshError as error:
            self._lost(error)
        except asyncio.CancelledError:
            if not stream.cancelled() or (task := asyncio.current_task()) is None or task.cancelling():
                raise
        finally:
            self._linked.clear()
            stream.cancel()
        return taken

    def _lost(self, error: HandmeshError) -> None:
        if error.code in FINAL:
            self._refused = HandRefused(error)
        else:
            _log.warning("the link is down: %s; connecting again", error.reason)

    async def _do(self, message: pb.ConnectHandResponse) -> None:
        match message.WhichOneof("work"):
            case "accepted":
                self._lease = message.accepted.lease.ToTimedelta().total_seconds() or LEASE_SECONDS
                self._go_on(message.accepted)
                _log.info("connected as %s", self._place.name)
            case "execute":
                self._begin(message.execute)
            case "cancel":
                self._cancel((message.cancel.sandbox_id, message.cancel.execution_id))
            case "release":
                await self._release(message.release.sandbox_id)
            case "drain":
                _log.info("the server goes away; connecting again")

    def _go_on(self, accepted: pb.HandAccepted) -> None:
        wanted = {(each.sandbox_id, each.execution_id): each for each in accepted.executions}
        for key, execution in list(self._executions.items()):
            if key not in wanted:
                self._forget(execution)
                continue
            execution.acknowledged(wanted[key].next_offset)
            if wanted[key].cancelled:
                execution.interrupt()
            execution.news.set()

    def _begin(self, request: pb.ExecuteRequest) -> None:
        key = (request.sandbox_id, request.execution_id)
        if key in self._known:
            return
        self._know(key)
        execution = self._executions[key] = Execution(*key)
        loop = asyncio.get_running_loop()

        def write(output: str | bytes) -> None:  # tools that are not async call from their own threads
            loop.call_soon_threadsafe(execution.write, output)

        seconds = request.timeout.ToNanoseconds() / 1e9
        call = Call(request.name, json.loads(request.input or "{}"), *key, seconds, write)
        execution.running = asyncio.create_task(execution.run(self._hand, call))
        execution.reporting = asyncio.create_task(self._report(execution))

    def _know(self, key: Key) -> None:
        self._known[key] = None
        if len(self._known) > 100_000:
            del self._known[next(iter(self._known))]

    def _cancel(self, key: Key) -> None:
        self._know(key)
        execution = self._executions.get(key)
        if execution is not None:
            execution.interrupt()

    async def _release(self, sandbox_id: str) -> None:
        for key, execution in list(self._executions.items()):
            if key[0] == sandbox_id:
                self._forget(execution)
        try:
            await self._hand.released(sandbox_id)
        except Exception:  # the hand's own mistake; the others go on
            _log.exception("a sandbox was not released")

    def _forget(self, execution: Execution) -> None:
        self._executions.pop(execution.key, None)
        for task in (execution.running, execution.reporting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _report(self, execution: Execution) -> None:
        """Says what an execution says, until all was acknowledged."""
        while True:
            await execution.news.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHUNKS_SECONDS):
                    await execution.ended.wait()
            execution.news.clear()
            if await self._said(execution):
                self._forget(execution)
                return

    async def _said(self, execution: Execution) -> bool:
        """Says what is new; returns whether that was all, or nobody wants it."""
        while True:
            offset, chunk, result = execution.next()
            if not chunk and result is None:
                return False
            request = pb.ReportExecutionRequest(
                sandbox_id=execution.sandbox_id,
                execution_id=execution.execution_id,
                offset=offset,
                chunk=chunk,
                result=result,
                worker=self._id,
            )
            try:
                heard = await self._tell(request)
            except HandmeshError as error:
                if error.code in ("NOT_FOUND", "ALREADY_EXISTS", "INVALID_ARGUMENT", "PERMISSION_DENIED"):
                    _log.warning("%s is not wanted: %s", execution.execution_id, error.reason)
                    return True
                await asyncio.sleep(FIRST_SECONDS)
                await self._linked.wait()
                continue
            execution.acknowledged(heard.next_offset)
            if heard.cancelled:
                execution.interrupt()
            if result is not None and heard.next_offset >= offset + len(chunk):
                return True

    async def _tell(self, request: pb.ReportExecutionRequest) -> pb.ReportExecutionResponse:
        return await self._link.call(self._stub.ReportExecution, request, timeout=REPORT_SECONDS)

    async def _beat(self) -> None:
        """Gives signs of life; at the end says that this worker goes away, until nothing is open any more."""
        while True:
            drained = self._draining.is_set()
            if not drained:
                try:
                    async with asyncio.timeout(self._lease / 3):
                        await self._draining.wait()
                except TimeoutError:
                    pass
            if not self._linked.is_set():
                await asyncio.sleep(DRAIN_SECONDS)
                continue
            try:
                heard = await self._tell(pb.ReportExecutionRequest(worker=self._id, draining=self._draining.is_set()))
            except HandmeshError as error:
                if error.reason == "WORKER_UNKNOWN" and self._stream is not None:
                    self._stream.cancel()
            else:
                if drained and not heard.open_executions and not self._executions and self._stream is not None:
                    self._stream.cancel()
            if self._draining.is_set():
                await asyncio.sleep(DRAIN_SECONDS)

    async def close(self) -> None:
        """Ends what still runs, and the link."""
        tasks = [
            task for each in self._executions.values() for task in (each.running, each.reporting) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._hand.stopped()
        except Exception:  # the hand's own mistake
            _log.exception("the hand was not stopped")
        await self._link.close()


def raise_for(code: grpc.StatusCode, details: str) -> None:
    """Raises for a stream that has ended; without an error it has ended, too."""
    raise HandmeshError(code.name if code is not grpc.StatusCode.OK else "UNAVAILABLE", details, code=code.name)

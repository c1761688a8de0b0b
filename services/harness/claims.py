"""Dials the session service for sessions that need a harness, and keeps the claim open while working on one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import grpc

from handmesh.replicas.ranking import PIN_KEY
from handmesh.session.v1.session_pb2 import ClaimWorkRequest, ClaimWorkResponse, ReleaseWorkRequest
from services.harness.condition import SESSION, Condition
from services.harness.runs import Ended, Runs
from services.kit import failpoints
from services.kit.channels import raised
from services.kit.errors import ServiceError, Unavailable
from services.kit.logs import Log

RECONNECT_SECONDS = 0.2
RELEASE_SECONDS = 10.0
SILENCE_SECONDS = 15.0  # the session service sends a sign of life every 5 s
LEAVE_SECONDS = 1.0  # that the session service has to hear that this harness takes no more, and what it leaves

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

_log = Log("services.harness.claims")


class Claims:
    """One stream of offers for the process. `types` are the harness types that this process can be."""

    def __init__(self, stub: SessionServiceAsyncStub, runs: Runs, types: list[str], instance: str) -> None:
        self._stub = stub
        self._runs = runs
        self._types = types
        self._instance = instance
        self._pin = ((PIN_KEY, instance),)  # a claim is given back where it was made, if that replica is there
        self._working: set[asyncio.Task[None]] = set()
        self._keeping: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self.condition = Condition(time.time)

    def start(self) -> None:
        """Keeps a stream open from now on, over restarts of the session service."""
        self._keeping = asyncio.create_task(self._keep(self._runs.capacity), name="claims")

    async def drain(self, seconds: float) -> None:
        """Takes no more, and gives back what is at work (see `Runs.drain`), so that others have it at once."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(seconds), name="drain")
        await asyncio.shield(self._draining)

    async def close(self) -> None:
        """Closes the stream."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    async def _drain(self, seconds: float) -> None:
        self._runs.draining = True
        offered = self._keeping
        self._heard.clear()
        self._keeping = asyncio.create_task(self._keep(0), name="last claims")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._heard.wait()  # what is at work belongs to the new stream now
        if offered is not None:
            offered.cancel()
            await asyncio.wait({offered})
        await self._runs.drain(seconds)
        if self._working:
            await asyncio.wait(self._working, timeout=LEAVE_SECONDS)

    async def _keep(self, capacity: int) -> None:
        while True:
            try:
                await self._listen(capacity)
            except grpc.aio.AioRpcError as error:
                problem = raised(error)
                self.condition.failed(SESSION, problem)
                _log.warning("claims broke off", reason=problem.reason)
            except TimeoutError:
                silent = Unavailable("SESSION_UNAVAILABLE", "the stream of offers fell silent")
                silent.answered = False
                self.condition.failed(SESSION, silent)
                _log.warning("claims fell silent")
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self, capacity: int) -> None:
        call = self._stub.ClaimWork(
            ClaimWorkRequest(
                capacity=capacity,
                harness_types=self._types,
                instance=self._instance,
                working_session_ids=[run.session_id for run in self._runs.list()],
            ),
            metadata=self._pin,
            wait_for_ready=True,
        )
        try:
            offers = aiter(call)
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    offer = await anext(offers, None)
                if offer is None:
                    return
                self._heard.set()
                self.condition.passed(SESSION)
                if offer.session_id:
                    task = asyncio.create_task(self._work(offer))
                    self._working.add(task)
                    task.add_done_callback(self._working.discard)
        finally:
            call.cancel()

    async def _work(self, offer: ClaimWorkResponse) -> None:
        try:
            ended = await self._runs.work(offer.session_id, offer.harness, offer.events)
        except ServiceError as problem:
            _log.info("offer refused", session_id=offer.session_id, reason=problem.reason)
            ended = Ended(refused=True)
        except Exception as problem:
            _log.error("run failed", session_id=offer.session_id, failure=type(problem).__name__, exc_info=True)
            ended = Ended(refused=True)
        failpoints.hit("harness.run_ended")
        await self._release(offer, ended)

    async def _release(self, offer: ClaimWorkResponse, ended: Ended) -> None:
        request = ReleaseWorkRequest(claim_id=offer.claim_id, session_id=offer.session_id, refused=ended.refused)
        if ended.wake_time is not None:
            request.wake_time.FromNanoseconds(int(ended.wake_time * 1e9))
        try:
            await self._stub.ReleaseWork(request, metadata=self._pin, timeout=RELEASE_SECONDS)
        except grpc.aio.AioRpcError as error:
            _log.warning("claim not released", claim_id=offer.claim_id, reason=raised(error).reason)

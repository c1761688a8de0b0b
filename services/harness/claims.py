"""Dials the session service for sessions that need a harness, and keeps the claim open while working on one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from handmesh.session.v1.session_pb2 import ClaimWorkRequest, ClaimWorkResponse, ReleaseWorkRequest
from services.harness.runs import Runs
from services.kit import failpoints
from services.kit.channels import raised
from services.kit.errors import ServiceError
from services.kit.logs import Log

RECONNECT_SECONDS = 0.2
RELEASE_SECONDS = 10.0
SILENCE_SECONDS = 15.0  # the session service sends a sign of life every 5 s

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
        self._working: set[asyncio.Task[None]] = set()

    async def keep(self) -> None:
        """Keeps the stream open until it is cancelled, over restarts of the session service."""
        while True:
            try:
                await self._listen()
            except grpc.aio.AioRpcError as error:
                _log.warning("claims broke off", reason=raised(error).reason)
            except TimeoutError:
                _log.warning("claims fell silent")
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen(self) -> None:
        call = self._stub.ClaimWork(
            ClaimWorkRequest(
                capacity=self._runs.capacity,
                harness_types=self._types,
                instance=self._instance,
                working_session_ids=[run.session_id for run in self._runs.list()],
            ),
            wait_for_ready=True,
        )
        try:
            offers = aiter(call)
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    offer = await anext(offers, None)
                if offer is None:
                    return
                if offer.session_id:
                    task = asyncio.create_task(self._work(offer))
                    self._working.add(task)
                    task.add_done_callback(self._working.discard)
        finally:
            call.cancel()

    async def _work(self, offer: ClaimWorkResponse) -> None:
        try:
            refused = not await self._runs.work(offer.session_id, offer.harness)
        except ServiceError as problem:
            _log.info("offer refused", session_id=offer.session_id, reason=problem.reason)
            refused = True
        except Exception as problem:
            _log.error("run failed", session_id=offer.session_id, failure=type(problem).__name__, exc_info=True)
            refused = True
        failpoints.hit("harness.run_ended")
        await self._release(offer.claim_id, refused)

    async def _release(self, claim_id: str, refused: bool) -> None:
        request = ReleaseWorkRequest(claim_id=claim_id, refused=refused)
        try:
            await self._stub.ReleaseWork(request, timeout=RELEASE_SECONDS)
        except grpc.aio.AioRpcError as error:
            _log.warning("claim not released", claim_id=claim_id, reason=raised(error).reason)

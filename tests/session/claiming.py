"""A harness's side of the work queue, as the tests of it play it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from tests.session.running import Service, replied, turn_ended

NOBODY = 0.4  # seconds in which no offer must come


class Harness:
    """A harness's open stream of offers. Each test has a harness type of its own, for stores are shared."""

    def __init__(
        self, service: Service, kind: str, capacity: int = 1, working: tuple[str, ...] = (), instance: str = ""
    ) -> None:
        self.service = service
        self.call = service.harness.ClaimWork(
            pb.ClaimWorkRequest(capacity=capacity, harness_types=[kind], working_session_ids=working, instance=instance)
        )
        self._offers: asyncio.Queue[pb.ClaimWorkResponse] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for offer in self.call:
                if offer.session_id:
                    self._offers.put_nowait(offer)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            return

    async def offer(self) -> pb.ClaimWorkResponse:
        """Waits for an offer."""
        async with asyncio.timeout(20):
            return await self._offers.get()

    async def nothing(self) -> None:
        """Waits a moment in which nothing must be offered."""
        try:
            async with asyncio.timeout(NOBODY):
                offer = await self._offers.get()
        except TimeoutError:
            return
        raise AssertionError(f"offered: {offer}")

    async def release(self, offer: pb.ClaimWorkResponse, **fields: Any) -> bool:
        answer = await self.service.harness.ReleaseWork(pb.ReleaseWorkRequest(claim_id=offer.claim_id, **fields))
        return bool(answer.offered_again)

    async def close(self) -> None:
        """Breaks the stream off, as the death of the harness does."""
        self.call.cancel()
        await asyncio.wait({self._reading})


@asynccontextmanager
async def harness(service: Service, kind: str, capacity: int = 1, **more: Any) -> AsyncIterator[Harness]:
    one = Harness(service, kind, capacity, **more)
    try:
        yield one
    finally:
        await one.close()


async def make(service: Service, kind: str, *events: ev.Event) -> str:
    return await service.create(*events, config=SessionConfig(harness=kind))


async def settle(service: Service, session: str) -> None:
    """Does what a harness does: takes the session up, answers, ends the turn."""
    epoch, _ = await service.wake(session)
    await service.emit(session, replied(read=epoch), epoch)
    await service.emit(session, turn_ended(epoch + 1), epoch)

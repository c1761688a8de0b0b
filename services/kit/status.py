"""StatusService: since when this process serves, and when it stood still."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable

from handmesh.status.v1 import status_pb2 as pb
from handmesh.status.v1.status_pb2_grpc import StatusServiceServicer
from services.kit.guard import Context

NAME = "handmesh.status.v1.StatusService"
TICK_SECONDS = 0.5
STALL_SECONDS = 2.0  # between two ticks: the process stood still
MOST_STALLS = 20
INSTANCE_BYTES = 4


class Status(StatusServiceServicer):
    """Serves `handmesh.status.v1.StatusService`. `now` is Unix time, in seconds; `steady` nobody sets."""

    def __init__(self, now: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._steady = steady
        self._instance = secrets.token_hex(INSTANCE_BYTES)
        self._began = now()
        self._seen = steady()
        self._stalls: deque[tuple[float, float]] = deque(maxlen=MOST_STALLS)

    async def watch(self) -> None:
        """Notes when this process stands still, until cancelled."""
        self._began, self._seen = self._now(), self._steady()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Says that the process is at work."""
        seen, self._seen = self._seen, self._steady()
        if self._seen - seen > STALL_SECONDS:
            now = self._now()
            self._stalls.append((now - (self._seen - seen), now))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        self.tick()  # what is asked first after a stop tells of it
        answer = pb.GetStatusResponse(instance=self._instance)
        answer.serve_time.FromNanoseconds(int(self._began * 1e9))
        answer.now.FromNanoseconds(int(self._now() * 1e9))
        for begin, end in self._stalls:
            stall = answer.stalls.add()
            stall.begin_time.FromNanoseconds(int(begin * 1e9))
            stall.end_time.FromNanoseconds(int(end * 1e9))
        return answer

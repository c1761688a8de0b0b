"""HarnessService: messages in, runs, messages out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from handmesh.harness.v1 import harness_pb2 as pb
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceServicer
from services.harness.ports import HarnessType
from services.harness.runs import Runs
from services.kit.guard import Context

DRAIN_SECONDS = 4.0


class HarnessServicer(HarnessServiceServicer):
    """Serves `handmesh.harness.v1.HarnessService`."""

    def __init__(self, runs: Runs, types: dict[str, HarnessType], type_of: Callable[[str], Awaitable[str]]) -> None:
        self._runs = runs
        self._type_of = type_of
        self._types = types
        self._draining: asyncio.Task[None] | None = None

    async def Wake(self, request: pb.WakeRequest, context: Context) -> pb.WakeResponse:
        outcome = await self._runs.take_up(request.session_id, await self._type_of(request.session_id))
        return pb.WakeResponse(outcome=pb.WakeOutcome.Value(f"WAKE_OUTCOME_{outcome.name}"))

    async def ListHarnessTypes(
        self, request: pb.ListHarnessTypesRequest, context: Context
    ) -> pb.ListHarnessTypesResponse:
        types = sorted(self._types.items())
        return pb.ListHarnessTypesResponse(
            types=[pb.HarnessType(name=name, description=kind.description) for name, kind in types]
        )

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        answer = pb.ListRunsResponse(capacity=self._runs.capacity, draining=self._runs.draining)
        for run in self._runs.list():
            row = answer.runs.add(session_id=run.session_id, epoch=run.epoch, step=run.doing)
            row.start_time.FromNanoseconds(int(run.start_time * 1e9))
        return answer

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        if self._draining is None:
            self._draining = asyncio.create_task(self._runs.drain(DRAIN_SECONDS))
        return pb.DrainResponse()

"""HarnessService: messages in, runs, messages out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from handmesh.harness.v1 import harness_pb2 as pb
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceServicer
from handmesh.session.v1.session_pb2 import (
    OFFER_OUTCOME_CLAIMED,
    OFFER_OUTCOME_NOT_NEEDED,
    OFFER_OUTCOME_OFFERED,
    OfferWorkResponse,
)
from services.harness.condition import Condition, Hindrance
from services.harness.owners import Owners
from services.harness.runs import Runs
from services.harness.types import Listed
from services.kit.guard import Context
from services.kit.identity import current as caller

_OUTCOMES = {
    OFFER_OUTCOME_OFFERED: pb.WAKE_OUTCOME_STARTED,
    OFFER_OUTCOME_CLAIMED: pb.WAKE_OUTCOME_ALREADY_AWAKE,
    OFFER_OUTCOME_NOT_NEEDED: pb.WAKE_OUTCOME_NOTHING_TO_DO,
}


class HarnessServicer(HarnessServiceServicer):
    """Serves `handmesh.harness.v1.HarnessService`."""

    def __init__(
        self,
        runs: Runs,
        types: Sequence[Listed],
        offer: Callable[[str, str | None], Awaitable[OfferWorkResponse]],
        drain: Callable[[], Coroutine[Any, Any, None]],
        condition: Condition,
        owners: Owners,
    ) -> None:
        """`offer` takes a session and the tenant whose it is to be."""
        self._owners = owners
        self._condition = condition
        self._runs = runs
        self._offer = offer
        self._types = types
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None

    async def Wake(self, request: pb.WakeRequest, context: Context) -> pb.WakeResponse:
        tenant = caller().tenant
        if self._runs.is_working(request.session_id) and await self._owners.tenant_of(request.session_id) == tenant:
            return pb.WakeResponse(outcome=pb.WAKE_OUTCOME_ALREADY_AWAKE)
        found = await self._offer(request.session_id, tenant)
        if found.outcome == OFFER_OUTCOME_OFFERED:
            self._runs.check(found.harness)
        return pb.WakeResponse(outcome=_OUTCOMES[found.outcome])

    async def ListHarnessTypes(
        self, request: pb.ListHarnessTypesRequest, context: Context
    ) -> pb.ListHarnessTypesResponse:
        types = [
            pb.HarnessType(name=it.name, description=it.description, unavailable=it.unavailable) for it in self._types
        ]
        return pb.ListHarnessTypesResponse(types=types)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        answer = pb.ListRunsResponse(capacity=self._runs.capacity, draining=self._runs.draining)
        answer.hindrances.extend(map(_hindrance, self._condition.hindrances))
        for run in self._runs.list():
            if not await self._owners.may_see(caller(), run.session_id):
                continue
            row = answer.runs.add(session_id=run.session_id, epoch=run.epoch, step=run.doing, harness=run.harness)
            row.start_time.FromNanoseconds(int(run.start_time * 1e9))
            row.step_time.FromNanoseconds(int(run.step_time * 1e9))
            for each in run.running:
                call = row.calls.add(tool_use_id=each.tool_use_id, tool_name=each.tool, hand=each.hand)
                call.start_time.FromNanoseconds(int(each.start_time * 1e9))
            if run.condition.heard is not None:
                row.heard_time.FromNanoseconds(int(run.condition.heard * 1e9))
            row.hindrances.extend(map(_hindrance, run.condition.hindrances))
        return answer

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return pb.DrainResponse()


def _hindrance(it: Hindrance) -> pb.Hindrance:
    away = pb.Hindrance(service=it.service, reason=it.reason, answered=it.answered)
    away.since_time.FromNanoseconds(int(it.since * 1e9))
    return away

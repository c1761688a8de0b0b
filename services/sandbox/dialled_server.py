"""The two methods of `SandboxService` for workers of hands that dial out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceServicer
from services.kit.errors import Denied
from services.kit.guard import Context
from services.sandbox import counting
from services.sandbox import dialled_messages as messages
from services.sandbox.backends import DIALLED, Backends
from services.sandbox.environments import Environments
from services.sandbox.hand_tokens import Checked, HandTokens, NoTokens, shown


class Workers:
    """Lets workers in that show a token of the hand that they want to be."""

    def __init__(self, backends: Backends, environments: Environments, tokens: HandTokens | NoTokens) -> None:
        """Takes who can be asked for tokens, and the names that are the operator's."""
        self._backends = backends
        self._environments = environments
        self._tokens = tokens

    async def connect(self, request: pb.ConnectHandRequest, context: Context) -> AsyncIterator[pb.ConnectHandResponse]:
        """See the contract's `ConnectHand`."""
        token = shown(context.invocation_metadata())
        checked = await self._tokens.check(token)
        self._check_name(checked, request.name)
        works = self._backends.takes_workers().connect(messages.registration(request, checked))
        with self._tokens.link(checked.token_id, token) as check:
            counting.WORKERS.add()
            try:
                async with aclosing(works):
                    async for work in works:
                        check()
                        yield messages.work(work)
            finally:
                counting.WORKERS.add(by=-1)

    def _check_name(self, checked: Checked, name: str) -> None:
        recipe = self._environments.recipes.get(checked.name)
        others = recipe is not None and (recipe.backend, recipe.worker) != (DIALLED, checked.name)
        if name != checked.name or others:
            why = "the operator has an environment of that name" if others else "the token is another hand's"
            raise Denied("HAND_NAME_DENIED", why, name=checked.name)

    async def report(self, request: pb.ReportExecutionRequest, context: Context) -> pb.ReportExecutionResponse:
        """See the contract's `ReportExecution`."""
        checked = await self._tokens.check(shown(context.invocation_metadata()))
        return messages.heard(self._backends.takes_workers().report(messages.report(request, checked)))


class WorkerCalls(SandboxServiceServicer):
    """The service's methods for workers."""

    _workers: Workers

    async def ConnectHand(
        self, request: pb.ConnectHandRequest, context: Context
    ) -> AsyncIterator[pb.ConnectHandResponse]:
        answers = self._workers.connect(request, context)
        async for answer in answers:
            yield answer

    async def ReportExecution(self, request: pb.ReportExecutionRequest, context: Context) -> pb.ReportExecutionResponse:
        return await self._workers.report(request, context)

"""The sandbox service as workers meet it: a real server, real backends, and tokens that the test gives."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handmesh.hand import Hand, Place, Worker
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub, add_SandboxServiceServicer_to_server
from services.kit.errors import Unauthenticated
from services.sandbox.backends import Backends
from services.sandbox.dialled_server import Workers
from services.sandbox.environments import BUILT_IN, Environments
from services.sandbox.hand import Bounds, HandSettings
from services.sandbox.hand_tokens import Checked
from services.sandbox.leave import Leave
from services.sandbox.sandboxes import Sandboxes
from services.sandbox.server import SandboxServicer
from tests.support.git import planting
from tests.support.mesh_server import served
from tests.support.owners import owners

QUICK = Bounds(lease=1.5, offline=0.5, queue=5.0, reattach=10.0, late=0.5)
SECONDS = 20.0  # for anything to come


class Tokens:
    """Stands for the session service's word on tokens."""

    def __init__(self, backends: Backends) -> None:
        self.good: dict[str, Checked] = {}
        self._backends = backends

    def make(self, name: str, tenant: str = "default") -> str:
        """Makes a token."""
        token_id = f"hand_{len(self.good):026d}"
        token = f"{token_id}.secret"
        self.good[token] = Checked(token_id, tenant, name)
        return token

    def revoke(self, token: str) -> None:
        """Makes one void."""
        self._backends.takes_workers().revoke(self.good.pop(token).token_id)

    async def check(self, token: str) -> Checked:
        """Says whose one is."""
        if token not in self.good:
            raise Unauthenticated("GRANT_INVALID", "the hand's token is not valid, or not any more")
        return self.good[token]

    @contextmanager
    def link(self, token_id: str, token: str) -> Iterator[Callable[[], None]]:
        """Nothing is missed here."""
        yield lambda: None


@dataclass
class Ground:
    """A service, a client of the tenant `default`, and workers."""

    client: Any
    address: str
    tokens: Tokens
    state: Path
    workers: list[tuple[Worker, asyncio.Task[None]]] = field(default_factory=list)
    channels: list[Any] = field(default_factory=list)

    async def worker(self, hand: Hand, name: str, address: str = "", **place: Any) -> Worker:
        """Serves a hand, and waits until it is connected."""
        token = place.pop("token", None) or self.tokens.make(name)
        worker = Worker(hand, Place(address or self.address, name, token, **place))
        self.workers.append((worker, asyncio.create_task(worker.run())))
        async with asyncio.timeout(SECONDS):
            await worker.linked.wait()
        return worker

    async def sandbox(self, name: str) -> str:
        """Makes a sandbox that uses a hand, and returns its id."""
        made = await self.client.Provision(pb.ProvisionRequest(environment=name), timeout=SECONDS)
        return str(made.sandbox.sandbox_id)

    async def execute(self, sandbox_id: str, tool: str, execution_id: str = "", **given: Any) -> tool_pb2.ToolResult:
        """Runs a tool to its end."""
        request = pb.ExecuteRequest(
            sandbox_id=sandbox_id, name=tool, input=json.dumps(given), execution_id=execution_id or None
        )
        answer: pb.ExecuteResponse = await self.client.Execute(request, timeout=SECONDS)
        return answer.result

    async def watched(self, sandbox_id: str, execution_id: str, offset: int = 0) -> tuple[str, tool_pb2.ToolResult]:
        """Follows an execution to its end: its output, and its result."""
        request = pb.WatchExecutionRequest(sandbox_id=sandbox_id, execution_id=execution_id, offset=offset)
        said = [each async for each in self.client.WatchExecution(request, timeout=SECONDS)]
        return "".join(each.chunk for each in said), said[-1].result

    async def raw(self, name: str, **said: Any) -> RawWorker:
        """Connects a worker that a test plays itself."""
        import grpc

        channel = grpc.aio.insecure_channel(said.pop("address", "") or self.address)
        self.channels.append(channel)
        token = said.pop("token", None) or self.tokens.make(name)
        return RawWorker(SandboxServiceStub(channel), name, token, said)

    async def close(self) -> None:
        """Ends the workers."""
        for worker, task in self.workers:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await worker.close()
        for channel in self.channels:
            await channel.close()


class RawWorker:
    """A worker that says whatever a test wants."""

    def __init__(self, stub: Any, name: str, token: str, said: dict[str, Any]) -> None:
        self._stub, self._name = stub, name
        self.metadata = (("authorization", f"Bearer {token}"),)
        self.token = token
        self.said: dict[str, Any] = {"worker": "raw-1", "tools": [TOOL]} | said
        self.stream: Any = None

    async def connect(self, **more: Any) -> Any:
        """Registers; returns the first answer."""
        request = pb.ConnectHandRequest(**{"name": self._name} | self.said | more)
        self.stream = self._stub.ConnectHand(request, metadata=self.metadata)
        return await self.next()

    async def next(self) -> Any:
        """Returns the next answer that is no sign of life."""
        async with asyncio.timeout(SECONDS):
            async for answer in self.stream:
                if answer.WhichOneof("work"):
                    return answer
        await self.stream.code()
        raise AssertionError("the stream has ended")

    async def report(self, of: Any = None, **what: Any) -> Any:
        """Reports; `of` is the work."""
        about = {} if of is None else {"sandbox_id": of.sandbox_id, "execution_id": of.execution_id}
        request = pb.ReportExecutionRequest(**{"worker": self.said["worker"]} | about | what)
        return await self._stub.ReportExecution(request, metadata=self.metadata, timeout=SECONDS)


TOOL = tool_pb2.Tool(name="do", description="Does.", input_schema_json='{"type": "object"}')


def result(output: str = "done", outcome: str = "OK", **more: Any) -> tool_pb2.ToolResult:
    """Makes a result."""
    return tool_pb2.ToolResult(output=output, outcome=tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{outcome}"), **more)


@asynccontextmanager
async def ground(data: Path, bounds: Bounds = QUICK, environments: Environments = BUILT_IN) -> AsyncIterator[Ground]:
    """Serves sandboxes of a state folder in `data`."""
    backends = Backends(HandSettings(data / "state", allow_unisolated=True, bounds=bounds))
    sandboxes = Sandboxes(backends, environments, planting=planting(data))
    tokens = Tokens(backends)
    workers = Workers(backends, environments, tokens)  # type: ignore[arg-type]
    servicer = SandboxServicer(sandboxes, Leave(backends), workers, owners(backends))
    add = lambda server: add_SandboxServiceServicer_to_server(servicer, server)  # noqa: E731
    async with served(data, "sandbox", add, "handmesh.sandbox.v1.SandboxService") as it, it.as_client() as channel:
        made = Ground(SandboxServiceStub(channel), it.client_address, tokens, data / "state")
        try:
            yield made
        finally:
            await made.close()
            with contextlib.suppress(Exception):
                backends.takes_workers().drain()
    await sandboxes.close()
    await backends.close()

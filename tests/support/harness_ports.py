"""The harness's ports in memory: a log with the real log's rules, and a model, hands and servers that do as told."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from handmesh.session.v1.event_pb2 import Event, MessageReceived, TokenUsage
from services.harness.adapters import memory
from services.harness.condition import Condition
from services.harness.core import BlobRef, Config, ToolResult, ToolSpec
from services.harness.mesh.tool import Asked, MeshTools
from services.harness.ports import Answer, ModelFailure, Ports, Sandbox, Standing, Toolbox
from services.kit.errors import Gone, Invalid, ServiceError

SESSION = memory.SESSION


def message(text: str, event_id: str) -> Event:
    """Makes a client's message."""
    content = json.dumps([{"type": "text", "text": text}])
    return Event(event_id=event_id, message_received=MessageReceived(content_json=content))


class MemoryLog(memory.MemoryLog):
    """A session's log in memory, of which tests ask more."""

    def __init__(self, config: SessionConfig | None = None, first: str = "hello") -> None:
        super().__init__(config, message(first, "m1"))
        self.fetched: list[str] = []
        self.blob_refusal: ServiceError | None = None
        self.is_watched = False
        self.asked_watched = 0  # how often

    async def put_blob(self, data: bytes, media_type: str) -> BlobRef:
        if self.blob_refusal is not None:
            raise self.blob_refusal
        return await super().put_blob(data, media_type)

    async def get_blob(self, blob_id: str, max_bytes: int) -> bytes | None:
        self.fetched.append(blob_id)
        return await super().get_blob(blob_id, max_bytes)

    async def watched(self, epoch: int) -> bool:
        self.asked_watched += 1
        return self.is_watched


def said(text: str = "done", stop_reason: str = "end_turn", **calls: tuple[str, dict[str, Any]]) -> Answer:
    """Makes an answer: some text, and calls by their ids."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for id, (name, input) in calls.items():
        blocks.append({"type": "tool_use", "id": id, "name": name, "input": input})
    return Answer(json.dumps(blocks), "tool_use" if calls else stop_reason, TokenUsage(output_tokens=1), "msg", "m")


Step = Answer | ModelFailure | Callable[[], Any]


class ScriptedModel:
    """Answers one step after the other. A function among them is awaited first, then the next one counts."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.requests: list[Mapping[str, Any]] = []
        self.betas: list[tuple[str, ...]] = []

    async def newest(self) -> str:
        return "newest"

    async def ask(self, body: bytes, show: Callable[[int, str, str], None], betas: Sequence[str] = ()) -> Answer:
        self.betas.append(tuple(betas))
        self.requests.append(json.loads(body))
        step = self.steps.pop(0)
        while not isinstance(step, Answer | ModelFailure):
            show(0, "text", "par")
            await step()
            step = self.steps.pop(0)
        if isinstance(step, ModelFailure):
            raise step
        return step


class MemoryHands:
    """Sandboxes that run `work(tool, input)` once for each execution id, and keep what it said."""

    def __init__(self, work: Callable[[str, str], Any] | None = None) -> None:
        self.work = work
        self.sandboxes: dict[str, str] = {}
        self.executions: dict[str, asyncio.Task[ToolResult]] = {}
        self.cancelled: list[str] = []
        self.refusal: ServiceError | None = None
        self.names = ["bash"]
        self.unknown: set[str] = set()  # environments that there are not
        self.slow: dict[str, asyncio.Event] = {}  # hands that are not made before the event
        self.asked: list[str] = []  # hands, in the order in which they were to be made
        self.ran: list[tuple[str, str]] = []  # sandbox and tool, likewise
        self.files: dict[tuple[str, str], bytes] = {}  # by sandbox and path
        self.puts: list[tuple[int, int]] = []  # offsets and sizes of what files were extended with
        self.put_refusal: ServiceError | None = None
        self.says: list[str | ServiceError] = []  # what whoever follows an execution is told, before its end
        self.followed: list[tuple[str, int]] = []  # execution and offset

    async def tools(self, spec: bytes, under: Standing, sandbox_id: str = "") -> Toolbox:
        environment = HandSpec.FromString(spec).environment or "default"
        if environment in self.unknown:
            raise Invalid("ENVIRONMENT_UNKNOWN", "there is no such environment")
        tools = [ToolSpec(name, "Runs a command.", '{"type":"object"}') for name in self.names]
        return Toolbox(tools, environment, "For tests.")

    async def provision(self, session_id: str, hand: str, spec: bytes, generation: int, under: Standing) -> Sandbox:
        self.asked.append(hand)
        if self.refusal is not None:
            raise self.refusal
        if hand in self.slow:
            await self.slow[hand].wait()
        made = self.sandboxes.setdefault(f"{hand}/{generation}", f"sbx_{len(self.sandboxes):026d}")
        return Sandbox(made, "default")

    async def execute(self, sandbox_id: str, tool: str, input: str, execution_id: str, under: Standing) -> ToolResult:
        if sandbox_id not in self.sandboxes.values():
            raise Gone("SANDBOX_GONE", "gone")
        if execution_id not in self.executions:
            self.ran.append((sandbox_id, tool))
            self.executions[execution_id] = asyncio.create_task(self._run(tool, input))
        return await asyncio.shield(self.executions[execution_id])

    async def _run(self, tool: str, input: str) -> ToolResult:
        try:
            if self.work is not None:
                await self.work(tool, input)
        except asyncio.CancelledError:
            return ToolResult("half", "INTERRUPTED")
        return ToolResult(f"{tool} ran")

    async def follow(self, sandbox_id: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        self.followed.append((execution_id, offset))
        while self.says:
            said = self.says.pop(0)
            if not isinstance(said, str):
                raise said
            offset += len(said.encode())
            yield said, offset
        await asyncio.shield(self.executions[execution_id])

    async def extend(self, sandbox_id: str, path: str, piece: bytes, offset: int, under: Standing) -> None:
        if self.put_refusal is not None:
            raise self.put_refusal
        there = self.files.get((sandbox_id, path), b"")
        if offset not in (0, len(there)):
            raise Invalid("RESOURCE_INVALID", f"the file has {len(there)} bytes")
        self.files[sandbox_id, path] = there[:offset] + piece
        self.puts.append((offset, len(piece)))

    async def end_of(self, sandbox_id: str, path: str, most: int) -> tuple[int, bytes]:
        there = self.files.get((sandbox_id, path), b"")
        return len(there), there[-most:]

    async def cancel(self, sandbox_id: str, execution_id: str, under: Standing) -> None:
        self.cancelled.append(execution_id)
        if execution_id in self.executions:
            self.executions[execution_id].cancel()


class MemoryServers:
    """One MCP server, `shop`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.refusal: ServiceError | None = None
        self.problems: list[tuple[str, str, str, str]] = []

    async def tools(self, grant: str) -> tuple[list[ToolSpec], list[tuple[str, str, str, str]]]:
        if self.problems:
            return [], self.problems
        return [ToolSpec("shop__buy", "Buys.", '{"type":"object"}')], []

    async def execute(
        self, grant: str, tool: str, input: str, execution_id: str, attach_only: bool, offered: int
    ) -> ToolResult:
        assert offered > 0
        self.calls.append((execution_id, attach_only))
        if self.refusal is not None:
            raise self.refusal
        return ToolResult(f"{tool} ran with {grant}")

    async def follow(self, grant: str, execution_id: str, offset: int) -> AsyncGenerator[tuple[str, int], None]:
        yield f"[{execution_id}]\n", 1

    async def cancel(self, grant: str, execution_id: str) -> None:
        pass


class Told:
    """Remembers how far a run is (see `Progress`)."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.condition = Condition(lambda: 0.0)

    def took_up(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def step(self, name: str) -> None:
        pass

    def calls(self, calls: Sequence[tuple[str, str, str]]) -> None:
        pass

    def linger(self) -> float:
        return 0.0


class Diary:
    """Two tools of the mesh: `note` keeps what it is told once for each execution id, `wait` never ends."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}
        self.asked: list[str] = []  # execution ids
        self.refusals: list[ServiceError] = []
        self.waiting = asyncio.Event()

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        specs = [
            ToolSpec("note", "Keeps a note.", json.dumps(schema)),
            ToolSpec("wait", "Waits.", '{"type":"object"}'),
            ToolSpec("memory", "", '{"type":"object"}', type="memory_20250818"),
        ]
        return [spec for spec in specs if spec.name in config.mesh_tools]

    async def execute(self, asked: Asked) -> ToolResult:
        self.asked.append(asked.execution_id)
        if self.refusals:
            raise self.refusals.pop(0)
        if asked.name == "wait":
            self.waiting.set()
            await asyncio.Event().wait()
        self.notes.setdefault(asked.execution_id, str(asked.input.get("text")))
        return ToolResult(f"kept for {asked.log.session_id} under {asked.under.grant}")


def ports(
    model: ScriptedModel,
    hands: MemoryHands | None = None,
    servers: MemoryServers | None = None,
    mesh: Sequence[MeshTools] = (),
) -> Ports:
    """Joins the ports. Each look at the clock takes 1,000 s, so that retries come at once."""
    clock = itertools.count(1_000_000_000, 1_000)
    hands, servers = hands or MemoryHands(), servers or MemoryServers()
    return Ports(model, hands, servers, now=lambda: next(clock), jitter=lambda: 0.0, mesh=mesh)

"""What the checks of a hand are made with: the hand in question, and a sandbox of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from handmesh.client import Client, HandmeshError
from handmesh.conformance.checking import Worker, expect
from handmesh.conformance.hand.relay import Relay
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1.tool_pb2 import Tool, ToolOutcome, ToolResult

CALL_SECONDS = 120.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Words:
    """How the hand is asked to run a command of a shell: a tool, and its input with `{command}` as a JSON string."""

    tool: str
    input: str

    def run(self, command: str) -> str:
        """Returns the input that runs a command."""
        return self.input.replace("{command}", json.dumps(command))


@dataclass
class Place:
    """A sandbox of the hand."""

    subject: Subject
    sandbox_id: str

    async def execute(self, command: str, execution_id: str, seconds: float = CALL_SECONDS) -> ToolResult:
        """Runs a command and waits for its result; `seconds` is the call's limit. Raises HandmeshError."""
        client, words = self.subject.client, self.subject.words
        limit = Duration()
        limit.FromMilliseconds(int(seconds * 1000))
        request = pb.ExecuteRequest(
            sandbox_id=self.sandbox_id,
            name=words.tool,
            input=words.run(command),
            execution_id=execution_id,
            timeout=limit,
        )
        answer = await client.sandbox_link.call(client.sandbox_stub.Execute, request, CALL_SECONDS)
        return answer.result

    async def cancel(self, execution_id: str) -> None:
        """Kills an execution."""
        client = self.subject.client
        request = pb.CancelExecutionRequest(sandbox_id=self.sandbox_id, execution_id=execution_id)
        await client.sandbox_link.call(client.sandbox_stub.CancelExecution, request)


@dataclass
class Subject:
    """The hand that is checked. Without a relay its link cannot be cut."""

    client: Client
    name: str
    words: Words
    worker: Worker
    relay: Relay | None = None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Makes a sandbox of the hand, and releases it at the end."""
        await self.connected()
        request = pb.ProvisionRequest(environment=self.name)
        made = (await self.client.sandbox_link.call(self.client.sandbox_stub.Provision, request)).sandbox
        try:
            yield Place(self, made.sandbox_id)
        finally:
            await self.client.release(made.sandbox_id)

    async def connected(self) -> list[Tool]:
        """Waits until the hand is there; returns its tools."""
        while True:
            try:
                request = pb.ListToolsRequest(environment=self.name)
                answer = await self.client.sandbox_link.call(self.client.sandbox_stub.ListTools, request)
                return list(answer.tools)
            except HandmeshError as problem:
                if problem.reason not in ("ENVIRONMENT_UNKNOWN", "HAND_OFFLINE"):
                    raise
            await asyncio.sleep(LOOK_SECONDS)


def named(what: str) -> str:
    """Makes up an id for an execution."""
    return f"{what}-{secrets.token_hex(6)}"


def said(result: ToolResult, outcome: ToolOutcome.ValueType, output: str | None = None) -> None:
    """Looks at a result. Raises FailedError when it is another one."""
    seen = ToolOutcome.Name(result.outcome)
    expect(result.outcome == outcome, f"a call came to {seen}: {result.output[:200]}")
    if output is not None:
        expect(
            result.output.strip() == output, f"a call said {json.dumps(result.output[:200])}, not {json.dumps(output)}"
        )

"""One process of Claude Code, and what it is told and says: the only module that knows the SDK.

Our tools are an MCP server in this process. A call of Claude Code's waits there until its result is in the log; no
tool is run from here. So the next question to the model leaves only when the turn says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import mcp_types as types
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    TextBlock,
    UserMessage,
)
from mcp.server.lowlevel import Server

from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.answer import Answering, Malformed, Show
from services.harness.blocks import Block
from services.harness.core import ToolSpec
from services.harness.loops.claude_code.command import SERVER
from services.harness.loops.claude_code.failures import Summarised, broken, ended, failure_of
from services.harness.loops.claude_code.process import Process
from services.harness.ports import Answer, ModelFailure
from services.kit import failpoints

SILENCE_SECONDS = 300.0  # between two messages while an answer is waited for
START_SECONDS = 60.0
CALL_ID = "claudecode/toolUseId"  # where Claude Code says which call it is

logging.getLogger("claude_agent_sdk").setLevel(logging.CRITICAL)  # what it logs may hold what was said


class Running:
    """One process, started in `begin`. It answers once; then again each time that all its calls have results."""

    def __init__(self, process: Process, tools: Sequence[ToolSpec]) -> None:
        self._process = process
        self._tools = [
            types.Tool(name=spec.name, description=spec.description, input_schema=json.loads(spec.schema))
            for spec in tools
        ]
        self._results: dict[str, asyncio.Future[types.CallToolResult]] = {}
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._counted: int | None = None  # tokens of what a summary stands for, between that word and the summary
        server = Server(SERVER, on_list_tools=self._list, on_call_tool=self._call)
        options = ClaudeAgentOptions(
            mcp_servers={SERVER: {"type": "sdk", "name": SERVER, "instance": server}},
            verbatim_prompts=True,  # what a user says is said as it is: no command, no file is looked for in it
        )
        self._client = ClaudeSDKClient(options, transport=process)

    async def begin(self, prompt: Sequence[Block]) -> None:
        """Starts the process, and says the prompt if there is one. Raises ModelFailure."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._client.connect()
                self._reading = asyncio.create_task(self._read(), name="read Claude Code")
                if prompt:
                    await self._client.query(_messages(prompt))
        except Exception:  # whatever it is: the SDK raises bare ones when its process does not answer
            raise ended() from None

    def give(self, results: Mapping[str, tuple[Sequence[Block], bool]]) -> None:
        """Gives the results of all calls of the last answer: blocks (see `can_give`), and whether it is an error."""
        for id, (blocks, is_error) in results.items():
            self._result(id).set_result(types.CallToolResult(content=_contents(blocks), is_error=is_error))

    async def answer(self, show: Show) -> Answer:
        """Waits for the next answer and shows it (see `Model.ask`). Raises ModelFailure and Summarised."""
        answering: Answering | None = None
        while True:
            event = await self._next()
            failpoints.hit("harness.model_streaming", ended)
            if event["type"] == "message_start":
                if answering is not None:
                    raise broken()  # it asks anew by itself: what was shown is void
                answering = Answering(show)
            if answering is None:
                continue  # the end of the answer before
            try:
                answering.take(json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass"))
            except Malformed:
                raise broken() from None
            if event["type"] == "message_delta" and answering.stop_reason:
                if answering.stop_reason != "tool_use":
                    self.kill()  # before it goes on by itself
                failpoints.hit("harness.model_answered", broken)
                return _whole(answering)

    def kill(self) -> None:
        """Kills the process. At once."""
        self._process.kill()

    async def end(self) -> None:
        """Kills the process and waits until nothing of it is left."""
        self.kill()
        for result in self._results.values():
            result.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._client.disconnect()
        await self._process.close()

    async def _next(self) -> dict[str, Any]:
        """Returns the next event of the API's stream. Raises ModelFailure when no answer comes, and Summarised."""
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = await self._said.get()
            except TimeoutError:
                said = f"Claude Code said nothing for {SILENCE_SECONDS:.0f} s"
                raise ModelFailure("MODEL_SILENT", said, retryable=True) from None
            match message:
                case StreamEvent(event=event, parent_tool_use_id=None):
                    return dict(event)
                case ResultMessage():
                    raise failure_of(message.api_error_status, message.terminal_reason, message.result)
                case SystemMessage(subtype="compact_boundary", data=data):
                    self._counted = int((data.get("compact_metadata") or {}).get("pre_tokens") or 0)
                case UserMessage(content=content) if self._counted is not None:
                    self.kill()  # before it asks the next question: another process does, from the log
                    raise Summarised(_text(content), self._counted)
                case None:
                    raise ended()

    async def _read(self) -> None:
        """Takes what it says as it comes, so that it never waits for us."""
        try:
            async for message in self._client.receive_messages():
                self._said.put_nowait(message)
        except Exception:  # the top of a task: it has ended, or said what nobody understands
            pass
        self._said.put_nowait(None)

    async def _list(self, _context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _call(self, context: Any, _params: types.CallToolRequestParams) -> types.CallToolResult:
        return await asyncio.shield(self._result(str((context.meta or {}).get(CALL_ID))))

    def _result(self, id: str) -> asyncio.Future[types.CallToolResult]:
        return self._results.setdefault(id, asyncio.get_running_loop().create_future())


def _contents(blocks: Sequence[Block]) -> list[types.ContentBlock]:
    return [
        types.TextContent(type="text", text=block["text"])
        if block["type"] == "text"
        else types.ImageContent(type="image", data=block["source"]["data"], mime_type=block["source"]["media_type"])
        for block in blocks
    ]


async def _messages(prompt: Sequence[Block]) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "user", "message": {"role": "user", "content": list(prompt)}, "parent_tool_use_id": None}


def _text(content: Any) -> str:
    """Returns the text of a user's message."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def _whole(answering: Answering) -> Answer:
    return Answer(
        answering.content(),
        answering.stop_reason,
        TokenUsage(**answering.usage),
        answering.message_id,
        answering.model,
        answering.stop_sequence,
        answering.stop_details,
        answering.edits,
    )

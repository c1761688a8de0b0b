"""The model asked by its SDK alone: the least that a first token can take. Also the model's half of the coupled arm."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from anthropic import AsyncAnthropic

from bench.ttft.mix import Task, check
from bench.ttft.samples import Sample

MODEL = "claude-opus-4-8"
_TOOL = {
    "name": "bash",
    "description": "Runs a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


async def ask(
    client: AsyncAnthropic, task: Task, begun: float, run: Callable[[str], Awaitable[str]] | None = None
) -> Sample:
    """Has the task's conversation; `run` runs its command. Times are since `begun`, of `time.perf_counter`."""
    messages: list[Any] = [{"role": "user", "content": task.text}]
    token, answer = await _answer(client, messages)
    tool = None
    if task.tool:
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        said = await run(call.input["command"]) if run is not None else "0"
        tool = time.perf_counter() - begun
        if run is not None:
            check(task, said)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": said}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        await _answer(client, messages)
    return Sample(task.number, task.repository, token - begun, tool if run is not None else None)


async def alone(client: AsyncAnthropic, task: Task) -> Sample:
    """Has the task's conversation without any tool being run."""
    return await ask(client, task, time.perf_counter())


async def _answer(client: AsyncAnthropic, messages: list[Any]) -> tuple[float, Any]:
    """Returns when the first text came, and the whole answer."""
    first = 0.0
    given: Any = {"model": MODEL, "max_tokens": 1024, "messages": messages, "tools": [_TOOL]}
    async with client.messages.stream(**given) as stream:
        async for event in stream:
            if event.type == "text" and not first:
                first = time.perf_counter()
        return first, await stream.get_final_message()

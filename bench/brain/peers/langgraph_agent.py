"""The agent as a graph for LangGraph's server, as its documentation has it: one node asks the model, one runs tools."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, TypedDict

from anthropic import AsyncAnthropic
from langgraph.graph import END, START, StateGraph

client = AsyncAnthropic(base_url=os.environ["BENCH_MODEL_URL"], api_key="any", max_retries=0)
answers = Path(os.environ["BENCH_FOLDER"]) / "answers"


class State(TypedDict):
    number: str
    messages: list[dict[str, Any]]


async def ask(state: State) -> dict[str, Any]:
    answer = await client.messages.create(model="claude-opus-4-8", max_tokens=1024, messages=state["messages"])
    content = [block.model_dump() for block in answer.content]
    return {"messages": [*state["messages"], {"role": "assistant", "content": content}]}


async def run(state: State) -> dict[str, Any]:
    results = []
    for call in calls(state):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("bash", "-c", call["input"]["command"], stdout=pipe)
        said, _ = await process.communicate()
        text = said.decode() or "(no output)"
        results.append({"type": "tool_result", "tool_use_id": call["id"], "content": text})
    return {"messages": [*state["messages"], {"role": "user", "content": results}]}


async def answered(state: State) -> dict[str, Any]:
    await asyncio.to_thread(note, f"{state['number']} {time.monotonic_ns()}\n")
    return {}


def note(line: str) -> None:
    with answers.open("a") as file:
        file.write(line)


def calls(state: State) -> list[dict[str, Any]]:
    return [block for block in state["messages"][-1]["content"] if block["type"] == "tool_use"]


builder = StateGraph(State)
for node in (ask, run, answered):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "ask")
builder.add_conditional_edges("ask", lambda state: "run" if calls(state) else "answered", ["run", "answered"])
builder.add_edge("run", "ask")
builder.add_edge("answered", END)
graph = builder.compile()

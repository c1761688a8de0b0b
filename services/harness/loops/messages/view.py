"""Makes the request to the model from the log: `view(state) -> request`, the same bytes for the same log.

A reply stands where it was caused: behind everything that it had read, before what landed while it was written.
Between two replies the model is told the results of the first one's calls, then the messages, each in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from services.harness.core import CallFinished, Message, Replied, ToolResult
from services.harness.loops.messages.policies import routes_of
from services.harness.loops.messages.state import State

MAX_OUTPUT_TOKENS = 16_384  # of one answer, when the session names no other
CACHED = {"type": "ephemeral"}
_CACHEABLE = frozenset({"text", "tool_result", "image", "document"})
Block = dict[str, Any]
NO_BLOBS: Mapping[str, Sequence[Block]] = MappingProxyType({})


def view(state: State, newest_model: str, blobs: Mapping[str, Sequence[Block]] = NO_BLOBS) -> dict[str, Any]:
    """Returns the body of a Messages API request. `newest_model` is used when the session names none.

    `blobs` holds the blocks that take the place of each reference, by the blob's id.
    """
    request: dict[str, Any] = {
        "model": state.config.model or newest_model,
        "max_tokens": state.config.max_output_tokens or MAX_OUTPUT_TOKENS,
        "messages": _messages(state, blobs),
    }
    tools = _tools(state)
    if state.config.system.strip():
        request["system"] = [{"type": "text", "text": state.config.system, "cache_control": CACHED}]
    elif tools:
        tools[-1]["cache_control"] = CACHED
    if tools:
        request["tools"] = tools
    return request


def _tools(state: State) -> list[Block]:
    specs = [spec for _, _, spec in routes_of(state).values()] + list(state.config.custom_tools)
    return [
        {"name": spec.name, "description": spec.description, "input_schema": json.loads(spec.schema)} for spec in specs
    ]


def _messages(state: State, blobs: Mapping[str, Sequence[Block]]) -> list[Block]:
    said: list[Block] = []
    asked: tuple[str, ...] = ()  # ids of the last reply's calls, in its order
    results: dict[str, ToolResult] = {}
    texts: list[Block] = []

    def tell() -> None:
        blocks = [_result(id, results.get(id), blobs) for id in asked] + texts
        if blocks:
            said.append({"role": "user", "content": blocks})

    for fact in sorted(conversation(state), key=_cause):
        match fact:
            case Message(content=content):
                texts.extend(_written(content, blobs))
            case CallFinished(id=id, result=result):
                results[id] = result
            case Replied(content=content, calls=calls):
                tell()
                asked, results, texts = tuple(call.id for call in calls), {}, []
                blocks = [block for block in json.loads(content) if not _blank(block)]
                if blocks:
                    said.append({"role": "assistant", "content": blocks})
    tell()
    if said and said[-1]["role"] == "user" and said[-1]["content"][-1]["type"] in _CACHEABLE:
        said[-1]["content"][-1] = {**said[-1]["content"][-1], "cache_control": CACHED}
    return said


def conversation(state: State) -> list[Message | Replied | CallFinished]:
    """Lists what was said, newest first."""
    facts = []
    link = state.conversation
    while link is not None:
        facts.append(link.fact)
        link = link.before
    return facts


def _cause(fact: Message | Replied | CallFinished) -> tuple[int, int]:
    return (fact.read, 1) if isinstance(fact, Replied) else (fact.position, 0)


def _whole_blocks(content: str, blobs: Mapping[str, Sequence[Block]]) -> list[Block]:
    """Returns a content's blocks, those of blobs in their places; a blob that nobody has looked up is only named."""
    found: list[Block] = []
    for block in json.loads(content):
        if block.get("type") == "handmesh_blob":
            name = str(block.get("blob_id"))
            found += blobs.get(name) or [{"type": "text", "text": f"[blob {name}]"}]
        else:
            found.append(block)
    return found


def _written(content: str, blobs: Mapping[str, Sequence[Block]]) -> list[Block]:
    """Returns a message's blocks as the API takes them: whole characters, and never nothing."""
    blocks = [_whole(block) for block in _whole_blocks(content, blobs) if not _blank(block)]
    return blocks or [{"type": "text", "text": "(empty message)"}]


def _whole(block: Block) -> Block:
    if block.get("type") != "text":
        return block
    return {**block, "text": block["text"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")}


def _blank(block: Block) -> bool:
    return block.get("type") == "text" and not block.get("text", "").strip()


def _result(id: str, result: ToolResult | None, blobs: Mapping[str, Sequence[Block]]) -> Block:
    if result is None:
        result = ToolResult("No result was recorded for this call.", "UNKNOWN")
    blocks: list[Block] = [block for block in _whole_blocks(result.content or "[]", blobs) if not _blank(block)]
    if not any(block.get("type") == "text" for block in blocks):
        output = result.output if result.output.strip() else "(no output)"
        blocks.insert(0, {"type": "text", "text": output})
    told: Block = {"type": "tool_result", "tool_use_id": id, "content": blocks}
    if result.outcome != "OK":
        told["is_error"] = True
    return told

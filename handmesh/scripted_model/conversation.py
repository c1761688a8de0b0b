"""The rules that messages keep among each other: roles, emptiness, thinking, tool calls and their results.

The shapes are right already when these checks run. The sentences are the API's own where they could be seen;
docs/scripted-model.md says where a rule is stricter than the API's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handmesh.scripted_model.content import SERVER_RESULTS, blocks, texts_of
from handmesh.scripted_model.models import MODELS
from handmesh.scripted_model.signatures import verify

NEWEST_VERSION = "2026-10-21"
ANYWHERE = "; the directive-only form (content: [] with output_config) is accepted at any position"
THINKING = ("thinking", "redacted_thinking")
SYSTEM_BLOCKS = ("text", "tool_addition", "tool_removal")
USER_ONLY = ("tool_result", "image", "search_result", "container_upload")
ASSISTANT_ONLY = ("tool_use", "server_tool_use", "compaction", *THINKING)

Message = dict[str, Any]


def check_conversation(request: dict[str, Any], version: str) -> Iterator[str]:
    """Yields what is wrong with the messages and the system prompt, in the order in which the API complains."""
    messages: list[Message] = request["messages"]
    yield from _check_roles(messages, request["model"])
    yield from _check_kinds(messages, version)
    for index, message in enumerate(messages):
        yield from _check_text(message, index)
    yield from _check_system_prompt(request.get("system"))
    yield from _check_thinking(messages)
    yield from _check_ids(messages)
    yield from _check_pairs(messages)
    if not request.get("tools") and _kinds(messages) & {"tool_use", "tool_result"}:
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools."
    yield from _check_end(messages, request["model"])


def is_directive(message: Message) -> bool:
    """Tells whether a message only changes how the model answers from there on: Claude Code sends such (a beta)."""
    return message["role"] == "system" and not blocks(message["content"]) and bool(message.get("output_config"))


def _kinds(messages: list[Message]) -> set[str]:
    return {block["type"] for message in messages for block in blocks(message["content"])}


def _check_roles(messages: list[Message], model: str) -> Iterator[str]:
    if messages[0]["role"] == "assistant" or all(map(is_directive, messages)):
        yield 'messages: first message must use the "user" role'
    rules = MODELS.get(model)
    for index, message in enumerate(messages):
        if message["role"] != "system" or is_directive(message):
            continue
        if rules and not rules.system_messages:
            yield f"messages.{index}: role 'system' is not supported on this model"
        elif all(earlier["role"] == "system" for earlier in messages[:index]):
            yield f"messages.{index}: use the top-level 'system' parameter for the initial system prompt{ANYWHERE}"
        elif not _may_precede_system(messages[index - 1]):
            yield (
                f"messages.{index}: role 'system' must follow a 'user' message or an 'assistant' message ending in a "
                f"server tool result{ANYWHERE}"
            )
        elif index + 1 < len(messages) and messages[index + 1]["role"] == "user":
            yield f"messages.{index}: role 'system' must precede an 'assistant' message or end the array{ANYWHERE}"


def _may_precede_system(message: Message) -> bool:
    content = blocks(message["content"])
    ends_in_result = bool(content) and content[-1]["type"] in SERVER_RESULTS
    return message["role"] in ("user", "system") or ends_in_result


def _check_kinds(messages: list[Message], version: str) -> Iterator[str]:
    for index, message in enumerate(messages):
        for position, block in enumerate(blocks(message["content"])):
            kind, here = block["type"], f"messages.{index}.content.{position}"
            if message["role"] == "system" and kind not in SYSTEM_BLOCKS:
                yield f"messages.{index}: role 'system' supports text, tool_addition, and tool_removal blocks only"
            elif message["role"] == "user" and kind in ASSISTANT_ONLY:
                yield f"{here}: `{kind}` blocks can only be in `assistant` messages"
            elif message["role"] == "assistant" and kind in USER_ONLY:
                yield f"{here}: `{kind}` blocks can only be in `user` messages"
            elif version == NEWEST_VERSION and message["role"] == "assistant" and kind == "document":
                yield f"{here}: `document` blocks can only be in `user` messages"
            elif version == NEWEST_VERSION and message["role"] == "user" and kind == "text" and block.get("citations"):
                yield f"{here}.text.citations: `citations` may not be set on `text` blocks in `user` messages"


def _check_text(message: Message, index: int) -> Iterator[str]:
    content = blocks(message["content"])
    if not content:
        if message["role"] == "user":
            yield f"messages.{index}: user messages must have non-empty content"
        elif message["role"] == "system" and not is_directive(message):
            yield f"messages.{index}: system content must contain at least one block"
        return
    if any(block["type"] == "text" and not block["text"] for block in content):
        yield "messages: text content blocks must be non-empty"
    elif all(block["type"] == "text" and not block["text"].strip() for block in content):
        yield "messages: text content blocks must contain non-whitespace text"


def _check_system_prompt(system: Any) -> Iterator[str]:
    texts = texts_of(system)
    if not all(texts):
        yield "system: text content blocks must be non-empty"
    elif texts and not any(text.strip() for text in texts):
        yield "system: text content blocks must contain non-whitespace text"


def _check_thinking(messages: list[Message]) -> Iterator[str]:
    for index, message in enumerate(messages):
        content = blocks(message["content"])
        for position, block in enumerate(content):
            if block["type"] == "thinking" and not verify(block["thinking"], block["signature"]):
                yield f"messages.{index}.content.{position}: Invalid `signature` in `thinking` block"
        if message["role"] == "assistant" and content and content[-1]["type"] in THINKING:
            yield f"messages.{index}: The final block in an assistant message cannot be `{content[-1]['type']}`."


def _check_ids(messages: list[Message]) -> Iterator[str]:
    seen: set[str] = set()
    for index, message in enumerate(messages):
        for position, block in enumerate(blocks(message["content"])):
            if block["type"] in ("tool_use", "server_tool_use"):
                if block["id"] in seen:
                    yield f"messages.{index}.content.{position}: `tool_use` ids must be unique"
                seen.add(block["id"])


def _check_pairs(messages: list[Message]) -> Iterator[str]:
    """Yields calls without a result right behind them, results without a call right before them, and double results."""
    called: list[str] = []
    for index, message in enumerate([*messages, {"role": "user", "content": []}]):
        if is_directive(message):
            continue
        content = blocks(message["content"])
        leading = _leading_results(content) if message["role"] == "user" else []
        missing = [call for call in called if call not in leading]
        if missing:
            yield (
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        yield from _check_results(content, called, index)
        called = [block["id"] for block in content if block["type"] == "tool_use"]


def _leading_results(content: list[dict[str, Any]]) -> list[str]:
    """Returns the ids answered at the start of a message: behind any other block, results do not count."""
    ids: list[str] = []
    for block in content:
        if block["type"] != "tool_result":
            break
        ids.append(block["tool_use_id"])
    return ids


def _check_results(content: list[dict[str, Any]], called: list[str], index: int) -> Iterator[str]:
    answered: set[str] = set()
    for position, block in enumerate(content):
        if block["type"] != "tool_result":
            continue
        here, call = f"messages.{index}.content.{position}", block["tool_use_id"]
        if call in answered:
            yield (
                f"{here}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {call}"
            )
        elif call not in called:
            yield (
                f"{here}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each `tool_result` block "
                "must have a corresponding `tool_use` block in the previous message."
            )
        answered.add(call)


def _check_end(messages: list[Message], model: str) -> Iterator[str]:
    """Yields what is wrong with an assistant's text at the end, which the model would go on from (prefill)."""
    last = next(message for message in reversed(messages) if not is_directive(message))
    content = blocks(last["content"])
    if last["role"] != "assistant" or (content and content[-1]["type"] != "text"):
        return
    rules = MODELS.get(model)
    if rules and not rules.prefill:
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    elif content and content[-1]["text"] != content[-1]["text"].rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"

"""The rules that requests are held to: one case each, named after its rule, with the sentence of the API.

Longer than a module should be: it is one table, and its rules are read side by side.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from handmesh.scripted_model.errors import ApiError, invalid
from handmesh.scripted_model.signatures import sign
from handmesh.scripted_model.tools import TYPED_TOOLS
from handmesh.scripted_model.validation import (
    check_count_request,
    check_headers,
    check_message_request,
    parse_body,
)

HEADERS = {"authorization": "Bearer key", "anthropic-version": "2026-10-21"}
OLD = {**HEADERS, "anthropic-version": "2023-06-01"}
EPHEMERAL = {"type": "ephemeral"}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"name": "bash", "input_schema": SCHEMA}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.", b"0123456789abcdef")}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if len(content) == 1 and isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def system(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "system"}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def call(identity: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "bash", "input": {}, **more}


def result(identity: str = "toolu_1", content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    basic = {"model": "claude-opus-5-5", "max_tokens": 2048, "messages": [*messages] or [user("hello")]}
    return {name: value for name, value in {**basic, **fields}.items() if value is not None}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    """A conversation that begins with a question and may use a tool."""
    return body(user("hello"), *messages, tools=[TOOL], **fields)


def schema(**keywords: Any) -> dict[str, Any]:
    return body(tools=[{"name": "bash", "input_schema": {**SCHEMA, **keywords}}])


BAD_SCHEMA = (
    "tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
    "(https://json-schema.org/draft/2020-12). Learn more about tool use at "
    "https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview."
)
ANYWHERE = "; the directive-only form (content: [] with output_config) is accepted at any position"
AFTER_USER = "role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result"
BLOCKS = (
    "'bash_code_execution_tool_result', 'code_execution_tool_result', 'container_upload', 'document', 'image', "
    "'redacted_thinking', 'search_result', 'server_tool_use', 'text', 'text_editor_code_execution_tool_result', "
    "'thinking', 'tool_result', 'tool_search_tool_result', 'tool_use', 'web_fetch_tool_result', "
    "'web_search_tool_result'"
)
UNANSWERED = (
    "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block "
    "must have a corresponding `tool_result` block in the next message."
)
UNCALLED = (
    "messages.{}.content.{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must "
    "have a corresponding `tool_use` block in the previous message."
)

PARAMETERS = {
    "model is required": (body(model=None), "model: Field required"),
    "model is a string": (body(model=5), "model: Input should be a valid string"),
    "model is not empty": (body(model=""), "model: String should have at least 1 character"),
    "max_tokens is required": (body(max_tokens=None), "max_tokens: Field required"),
    "max_tokens is an integer": (body(max_tokens=1.5), "max_tokens: Input should be a valid integer"),
    "max_tokens is no boolean": (body(max_tokens=True), "max_tokens: Input should be a valid integer"),
    "max_tokens is not negative": (body(max_tokens=-1), "max_tokens: Input should be greater than or equal to 0"),
    "max_tokens is within the model's limit": (
        body(max_tokens=128_001),
        "max_tokens: 128001 > 128000, which is the maximum allowed number of output tokens for claude-opus-5-5",
    ),
    "messages are required": (
        {"model": "m", "max_tokens": 1},
        "messages: Field required",
    ),
    "messages are a list": (body(messages="hello"), "messages: Input should be a valid list"),
    "messages are not empty": (body(messages=[]), "messages: at least one message is required"),
    "unknown fields are refused": (body(xyz=1), "xyz: Extra inputs are not permitted"),
    "sampling is gone": (body(temperature=1.0), "temperature: Extra inputs are not permitted"),
    "stream is a boolean": (body(stream="yes"), "stream: Input should be a valid boolean"),
    "stop sequences are not blank": (
        body(stop_sequences=["END", " \n"]),
        "stop_sequences: each stop sequence must contain non-whitespace",
    ),
    "metadata is closed": (body(metadata={"session": "1"}), "metadata.session: Extra inputs are not permitted"),
    "effort is known": (
        body(output_config={"effort": "huge"}),
        "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
    ),
    "service tier is known": (
        body(service_tier="fast"),
        "service_tier: Input should be 'auto' or 'standard_only'",
    ),
}
THINKING_CONFIG = {
    "budget is at least 1024": (
        body(model="claude-sonnet-4-5", thinking={"type": "enabled", "budget_tokens": 1000}),
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    "budget is below max_tokens": (
        body(model="claude-sonnet-4-5", thinking={"type": "enabled", "budget_tokens": 2048}),
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
    ),
    "a budget is for older models": (
        body(thinking={"type": "enabled", "budget_tokens": 1024}),
        '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.',
    ),
    "adaptive thinking is for newer models": (
        body(model="claude-sonnet-4-5", thinking={"type": "adaptive"}),
        "adaptive thinking is not supported on this model",
    ),
    "thinking is always on in some models": (
        body(thinking={"type": "disabled"}),
        '"thinking.type.disabled" is not supported for this model. Use "thinking.type.adaptive" and '
        '"output_config.effort" to control thinking behavior.',
    ),
    "full effort needs thinking": (
        body(model="claude-opus-5", thinking={"type": "disabled"}, output_config={"effort": "max"}),
        "output_config.effort 'max' is not supported when thinking is disabled on this model. Use effort 'high' or "
        "below, or enable thinking.",
    ),
    "thinking excludes a forced tool": (
        body(
            model="claude-sonnet-4-5",
            thinking={"type": "enabled", "budget_tokens": 1024},
            tools=[TOOL],
            tool_choice={"type": "any"},
        ),
        "Thinking may not be enabled when tool_choice forces tool use.",
    ),
}
TOOLS = {
    "a tool has a name": (body(tools=[{"input_schema": SCHEMA}]), "tools.0.custom.name: Field required"),
    "a tool's name has known characters": (
        body(tools=[{**TOOL, "name": "bad name"}]),
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    ),
    "a tool's name has at most 128 characters": (
        body(tools=[{**TOOL, "name": "x" * 129}]),
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
    ),
    "tool names are unique": (body(tools=[TOOL, TOOL]), "tools: Tool names must be unique."),
    "a description is a string": (
        body(tools=[{**TOOL, "description": None}]),
        "tools.0.custom.description: Input should be a valid string",
    ),
    "a tool has a schema": (body(tools=[{"name": "bash"}]), "tools.0.custom.input_schema: Field required"),
    "a schema has a type": (
        body(tools=[{"name": "bash", "input_schema": {}}]),
        "tools.0.custom.input_schema.type: Field required",
    ),
    "a schema is of an object": (schema(type="array"), "tools.0.custom.input_schema.type: Input should be 'object'"),
    "a schema has no union at its top": (
        schema(anyOf=[{"required": ["a"]}]),
        "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
    ),
    "a schema's property keys are short and plain": (
        schema(properties={"$filter": {}}),
        "tools.0.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
    ),
    "required is a list": (schema(properties={"a": {"type": "string", "required": True}}), BAD_SCHEMA),
    "items is one schema": (schema(properties={"a": {"items": [{"type": "string"}]}}), BAD_SCHEMA),
    "exclusiveMinimum is a number": (schema(properties={"a": {"exclusiveMinimum": True}}), BAD_SCHEMA),
    "types are known": (schema(properties={"a": {"type": "any"}}), BAD_SCHEMA),
    "properties are schemas": (schema(properties={"a": "string"}), BAD_SCHEMA),
    "enum is a list": (schema(properties={"a": {"enum": "x"}}), BAD_SCHEMA),
    "a tool has no unknown fields": (
        body(tools=[{**TOOL, "parameters": {}}]),
        "tools.0.custom.parameters: Extra inputs are not permitted",
    ),
    "the API's tools have their own names": (
        body(tools=[{"type": "bash_20250124", "name": "shell"}]),
        "tools.0.bash_20250124.name: Input should be 'bash'",
    ),
    "the memory tool describes itself": (
        body(tools=[{"type": "memory_20250818", "name": "memory", "description": "Mine."}]),
        "tools.0.memory_20250818.description: Extra inputs are not permitted",
    ),
    "a tool is of a known kind": (
        body(tools=[{"type": "bash_20990101", "name": "bash"}]),
        "tools.0: Input tag 'bash_20990101' found using 'type' does not match any of the expected tags: "
        + ", ".join(f"'{kind}'" for kind in sorted(["custom", *TYPED_TOOLS])),
    ),
    "tool_choice needs tools": (
        body(tool_choice={"type": "auto"}),
        "tool_choice may only be specified while providing tools.",
    ),
    "tool_choice is of a known kind": (
        body(tools=[TOOL], tool_choice={"type": "some"}),
        "tool_choice: Input tag 'some' found using 'type' does not match any of the expected tags: "
        "'any', 'auto', 'none', 'tool'",
    ),
    "tool_choice names a tool": (
        body(tools=[TOOL], tool_choice={"type": "tool"}),
        "tool_choice.tool.name: Field required",
    ),
    "tool_choice names an offered tool": (
        body(model="claude-opus-5", tools=[TOOL], tool_choice={"type": "tool", "name": "read"}),
        "Tool 'read' not found in provided tools",
    ),
    "some models take no forced tool": (
        body(tools=[TOOL], tool_choice={"type": "any"}),
        'tool_choice: type "tool" and "any" are not supported for this model.',
    ),
}
BLOCK_SHAPES = {
    "roles are known": (
        body({"role": "tool", "content": "x"}),
        "messages.0.role: Input should be 'user', 'assistant' or 'system'",
    ),
    "a message has content": (body({"role": "user"}), "messages.0.content: Field required"),
    "a message has no other fields": (
        body({**user("hi"), "name": "me"}),
        "messages.0.name: Extra inputs are not permitted",
    ),
    "content is text or a list": (
        body({"role": "user", "content": 5}),
        "messages.0.content: Input should be a valid list",
    ),
    "a block has a type": (body(user({"text": "x"})), "messages.0.content.0.type: Field required"),
    "a block is of a known type": (
        body(user({"type": "txt"})),
        "messages.0.content.0: Input tag 'txt' found using 'type' does not match any of the expected tags: " + BLOCKS,
    ),
    "a text block has text": (body(user({"type": "text"})), "messages.0.content.0.text.text: Field required"),
    "a tool_use has an input": (
        chat(assistant({"type": "tool_use", "id": "a", "name": "bash"})),
        "messages.1.content.0.tool_use.input: Field required",
    ),
    "a tool_use's input is an object": (
        chat(assistant(call(input="ls"))),
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    "a tool_use's id has known characters": (
        chat(assistant(call("a.b")), user(result("a.b"))),
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    "a tool_result names its call": (
        chat(assistant(call()), user({"type": "tool_result", "content": "x"})),
        "messages.2.content.0.tool_result.tool_use_id: Field required",
    ),
    "a tool_result holds what tools may return": (
        chat(assistant(call()), user(result(content=[SIGNED]))),
        "messages.2.content.0.tool_result.content.0: Input tag 'thinking' found using 'type' does not match any of the "
        "expected tags: 'browser_state', 'document', 'image', 'search_result', 'text', 'tool_reference'",
    ),
    "thinking has a signature": (
        chat(assistant({"type": "thinking", "thinking": "x"}, text("y")), user("z")),
        "messages.1.content.0.thinking.signature: Field required",
    ),
    "an image has a media type that the API knows": (
        body(user({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": ""}})),
        "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' "
        "or 'image/webp'",
    ),
}
EMPTINESS = {
    "a user's message is not empty": (body(user("")), "messages.0: user messages must have non-empty content"),
    "a user's list is not empty": (body(user()), "messages.0: user messages must have non-empty content"),
    "text blocks are not empty": (body(user(text(""), text("x"))), "messages: text content blocks must be non-empty"),
    "an assistant's text blocks are not empty": (
        chat(assistant(text(""), call()), user(result())),
        "messages: text content blocks must be non-empty",
    ),
    "a message is not blank": (body(user(" \n")), "messages: text content blocks must contain non-whitespace text"),
    "the system prompt is not blank": (
        body(system="  "),
        "system: text content blocks must contain non-whitespace text",
    ),
    "system blocks are not empty": (
        body(system=[text("a"), text("")]),
        "system: text content blocks must be non-empty",
    ),
}
ROLES = {
    "a conversation begins with the user": (
        body(assistant("hi"), user("hello")),
        'messages: first message must use the "user" role',
    ),
    "tool_use is the assistant's": (
        body(user(call()), tools=[TOOL]),
        "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages",
    ),
    "tool_result is the user's": (
        chat(assistant(result())),
        "messages.1.content.0: `tool_result` blocks can only be in `user` messages",
    ),
    "thinking is the assistant's": (
        body(user(SIGNED, text("x"))),
        "messages.0.content.0: `thinking` blocks can only be in `assistant` messages",
    ),
    "documents are the user's": (
        chat(
            assistant({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}),
            user("y"),
        ),
        "messages.1.content.0: `document` blocks can only be in `user` messages",
    ),
    "citations are the assistant's": (
        body(user(text("x", citations=[{"type": "char_location"}]))),
        "messages.0.content.0.text.citations: `citations` may not be set on `text` blocks in `user` messages",
    ),
    "the newest models take no prefill": (
        chat(assistant("The answer is")),
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    ),
    "a prefill does not end in whitespace": (
        chat(assistant("The answer is "), model="claude-sonnet-4-5"),
        "messages: final assistant content cannot end with trailing whitespace",
    ),
    "a system message is not the first": (
        body(system("be kind"), user("hi")),
        f"messages.0: use the top-level 'system' parameter for the initial system prompt{ANYWHERE}",
    ),
    "a system message follows a user's": (
        chat(assistant("Hello"), system("be kind"), user("ok")),
        f"messages.2: {AFTER_USER}{ANYWHERE}",
    ),
    "a system message does not part a call from its result": (
        chat(assistant(call()), system("x"), user(result())),
        f"messages.2: {AFTER_USER}{ANYWHERE}",
    ),
    "a system message precedes an assistant's": (
        chat(system("one"), system("two"), user("ok")),
        f"messages.2: role 'system' must precede an 'assistant' message or end the array{ANYWHERE}",
    ),
    "a system message has content": (
        chat(system()),
        "messages.1: system content must contain at least one block",
    ),
    "a system message holds text": (
        chat(system({"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}})),
        "messages.1: role 'system' supports text, tool_addition, and tool_removal blocks only",
    ),
    "older models take no system message": (
        chat(system("be kind"), model="claude-opus-4-6"),
        "messages.1: role 'system' is not supported on this model",
    ),
}
PAIRS = {
    "a call has a result": (chat(assistant(call()), user("and?")), UNANSWERED.format(1, "toolu_1")),
    "every call has a result": (
        chat(assistant(call("a"), call("b"), call("c")), user(result("b"))),
        UNANSWERED.format(1, "a, c"),
    ),
    "a call at the end has no result yet": (chat(assistant(call())), UNANSWERED.format(1, "toolu_1")),
    "a result is in the very next message": (
        chat(assistant(call()), user("wait"), user(result())),
        UNANSWERED.format(1, "toolu_1"),
    ),
    "results come first in their message": (
        chat(assistant(call()), user(text("here:"), result())),
        UNANSWERED.format(1, "toolu_1"),
    ),
    "a result has a call": (body(user(result()), tools=[TOOL]), UNCALLED.format(0, 0, "toolu_1")),
    "a result's call is in the message before": (
        chat(assistant(call()), user(result()), assistant("Good."), user(result())),
        UNCALLED.format(4, 0, "toolu_1"),
    ),
    "a call has one result": (
        chat(assistant(call()), user(result(), result())),
        "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: "
        "toolu_1",
    ),
    "ids are unique in a message": (
        chat(assistant(call(), call()), user(result())),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "ids are unique in a conversation": (
        chat(assistant(call()), user(result()), assistant(call()), user(result())),
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    "a conversation with calls defines tools": (
        body(user("hello"), assistant(call()), user(result())),
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
    ),
}
REPLAYED_THINKING = {
    "thinking is sent back unchanged": (
        chat(assistant({**SIGNED, "thinking": "Hm!"}, text("Yes.")), user("why?")),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "a signature is one of ours": (
        chat(assistant({**SIGNED, "signature": "c2lnbmVk"}, text("Yes.")), user("why?")),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "a signature is base64": (
        chat(assistant({**SIGNED, "signature": "%%%"}, text("Yes.")), user("why?")),
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "thinking does not end a message": (
        chat(assistant(text("Yes."), SIGNED), user("why?")),
        "messages.1: The final block in an assistant message cannot be `thinking`.",
    ),
}
CACHE_CONTROL = {
    "a marker has a type": (
        body(system=[text("x", cache_control={})]),
        "system.0.text.cache_control.type: Field required",
    ),
    "a marker is ephemeral": (
        body(system=[text("x", cache_control={"type": "persistent"})]),
        "system.0.text.cache_control: Input tag 'persistent' found using 'type' does not match any of the expected "
        "tags: 'ephemeral'",
    ),
    "a marker lives for 5m or 1h": (
        body(user(text("x", cache_control={**EPHEMERAL, "ttl": "2h"}))),
        "messages.0.content.0.text.cache_control.ephemeral.ttl: Input should be '5m' or '1h'",
    ),
    "there are at most four markers": (
        body(
            user(*[text("x", cache_control=EPHEMERAL)] * 3),
            system=[text("x", cache_control=EPHEMERAL)],
            tools=[{**TOOL, "cache_control": EPHEMERAL}],
        ),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "the marker at the root counts": (
        body(user(*[text("x", cache_control=EPHEMERAL)] * 4), cache_control=EPHEMERAL),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "markers inside tool results count": (
        chat(
            assistant(call()),
            user(result(content=[text("x", cache_control=EPHEMERAL)]), *[text("x", cache_control=EPHEMERAL)] * 4),
        ),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "empty text has no marker": (
        body(user(text("x"), text("", cache_control=EPHEMERAL))),
        "messages.0.content.1.text: cache_control cannot be set for empty text blocks",
    ),
    "thinking has no marker": (
        chat(assistant({**SIGNED, "cache_control": EPHEMERAL}, text("y")), user("z")),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    "an hour does not come after five minutes": (
        body(
            user(text("x", cache_control={**EPHEMERAL, "ttl": "1h"})),
            system=[text("x", cache_control=EPHEMERAL)],
        ),
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
        "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`.",
    ),
}
RULES = {
    **PARAMETERS,
    **THINKING_CONFIG,
    **TOOLS,
    **BLOCK_SHAPES,
    **EMPTINESS,
    **ROLES,
    **PAIRS,
    **REPLAYED_THINKING,
    **CACHE_CONTROL,
}


@pytest.mark.parametrize("rule", RULES)
def test_a_request_that_breaks_a_rule_is_refused_in_the_api_s_words(rule: str) -> None:
    """Each rule is kept: its breach gives a 400 invalid_request_error with the API's sentence."""
    request, sentence = RULES[rule]
    assert check_message_request(request, HEADERS) == ApiError(400, "invalid_request_error", sentence)


ACCEPTED = {
    "consecutive user messages are one turn": body(user("one"), user("two")),
    "consecutive assistant messages are one turn": chat(assistant("one"), assistant("two"), user("go on")),
    "an assistant may have said nothing": chat(assistant(), user("hello?")),
    "blank text beside a call is let through": chat(assistant(text("\n\n"), call()), user(result())),
    "an empty system prompt is none": body(system=""),
    "a tool may return nothing": chat(assistant(call("a"), call("b")), user(result("a", ""), result("b", []))),
    "a tool may return an empty text": chat(assistant(call()), user(result(content=[text("")]))),
    "a tool may return no content field": chat(
        assistant(call()), user({"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True})
    ),
    "text may follow the results": chat(assistant(call()), user(result(), text("and hurry"))),
    "a caller is sent back": chat(assistant(call(caller={"type": "direct"})), user(result())),
    "results may come in any order": chat(assistant(call("a"), call("b")), user(result("b"), result("a"))),
    "signed thinking is sent back": chat(assistant(SIGNED, text("Yes.")), user("why?")),
    "system messages may stand between user and assistant": chat(
        system("one"), assistant("ok"), user("x"), system("y")
    ),
    "a paused turn is sent back as it is": chat(
        assistant({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}})
    ),
    "max_tokens 0 fills the cache only": body(max_tokens=0),
    "older models take a prefill": chat(assistant("The answer is"), model="claude-sonnet-4-5"),
    "an unknown model is held to no model's rules": body(
        model="test", tools=[TOOL], tool_choice={"type": "any"}, max_tokens=10**6, thinking={"type": "disabled"}
    ),
    "four markers are taken": body(
        user(*[text("x", cache_control={**EPHEMERAL, "ttl": "5m"})] * 2),
        system=[text("x", cache_control={**EPHEMERAL, "ttl": "1h"})],
        tools=[{**TOOL, "cache_control": {**EPHEMERAL, "ttl": "1h"}}],
    ),
    "a marker may be null": body(user(text("x", cache_control=None, citations=None))),
    "unions may stand inside a schema": schema(properties={"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
    "the memory tool is the API's own": body(tools=[{"type": "memory_20250818", "name": "memory", "strict": True}]),
    "the API's own tools need no schema": body(tools=[{"type": "bash_20250124", "name": "bash"}]),
    "toolsets need no name": body(tools=[{"type": "computer_toolset_20260801"}]),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_the_api_takes_is_taken(case: str) -> None:
    """Nothing is refused that the API was seen to accept."""
    assert check_message_request(ACCEPTED[case], HEADERS) is None


OLD_VERSION = {
    "temperature is at most 1": (
        body(model="claude-sonnet-4-6", temperature=1.5),
        "temperature: Input should be less than or equal to 1",
    ),
    "temperature is not negative": (
        body(model="claude-sonnet-4-6", temperature=-0.1),
        "temperature: Input should be greater than or equal to 0",
    ),
    "newer models have one temperature": (
        body(temperature=0.5),
        "`temperature` is deprecated for this model.",
    ),
    "thinking has one temperature": (
        body(model="claude-sonnet-4-6", temperature=0.5, thinking={"type": "adaptive"}),
        "`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.",
    ),
    "max_tokens is at least 1": (body(max_tokens=0), "max_tokens: Input should be greater than or equal to 1"),
}


@pytest.mark.parametrize("rule", OLD_VERSION)
def test_version_2023_06_01_keeps_its_own_rules(rule: str) -> None:
    """With the older version header, sampling parameters exist and have their ranges."""
    request, sentence = OLD_VERSION[rule]
    assert check_message_request(request, OLD) == ApiError(400, "invalid_request_error", sentence)


def test_version_2023_06_01_takes_documents_from_assistants() -> None:
    """What version 2026-10-21 began to refuse is taken with the older version header."""
    source = {"type": "text", "media_type": "text/plain", "data": "x"}
    request = chat(assistant({"type": "document", "source": source}), user("y"))
    assert check_message_request(request, OLD) is None


def test_what_claude_code_asks_for_is_taken_with_its_betas_only() -> None:
    """A message that only sets the effort from there on, at any place, and thinking that is shown as updates."""
    sets = {"role": "system", "content": [], "output_config": {"effort": "low"}}
    turns = [user("hello"), sets, assistant(call()), sets, user(result()), sets]
    directed = body(*turns, tools=[TOOL])
    updated = body(thinking={"type": "adaptive", "display": "updates"})
    betas = {**HEADERS, "anthropic-beta": "per-turn-control-2026-07-01,thinking-display-updates-2026-08-18"}
    assert [check_message_request(each, betas) for each in (directed, updated)] == [None, None]
    assert [check_message_request(each, HEADERS) for each in (directed, updated)] == [
        invalid("messages.1.output_config: Extra inputs are not permitted"),
        invalid("thinking.adaptive.display: Input should be 'summarized' or 'omitted'"),
    ]
    assert check_message_request(body(sets), betas) == invalid('messages: first message must use the "user" role')
    bare = {"role": "system", "content": []}
    assert check_message_request(body(user("hello"), bare), betas) == invalid(
        "messages.1: system content must contain at least one block"
    )


def test_a_beta_request_may_carry_what_nobody_described() -> None:
    """With an anthropic-beta header unknown fields, blocks and tools pass; known ones are checked all the same."""
    beta = {**HEADERS, "anthropic-beta": "something-2027-01-01"}
    unknown = body(user({"type": "hologram"}), fallbacks=[], tools=[{"type": "hologram_20270101"}])
    assert check_message_request(unknown, beta) is None
    assert check_message_request(body(user({"type": 5})), beta) == ApiError(
        400, "invalid_request_error", "messages.0.content.0.type: Input should be a valid string"
    )


HEADER_RULES = {
    "a key is needed": (
        {"anthropic-version": "2026-10-21"},
        ApiError(401, "authentication_error", "x-api-key header is required"),
    ),
    "an empty key is none": (
        {"authorization": "Bearer ", "anthropic-version": "2026-10-21"},
        ApiError(401, "authentication_error", "x-api-key header is required"),
    ),
    "only bearers are known": (
        {"authorization": "Basic right", "anthropic-version": "2026-10-21"},
        ApiError(401, "authentication_error", "x-api-key header is required"),
    ),
    "the key is the right one": (
        {"x-api-key": "wrong", "anthropic-version": "2026-10-21"},
        ApiError(401, "authentication_error", "invalid x-api-key"),
    ),
    "the bearer's key is the right one": (
        {"authorization": "Bearer wrong", "anthropic-version": "2026-10-21"},
        ApiError(401, "authentication_error", "Invalid bearer token"),
    ),
    "x-api-key goes before a bearer": (
        {"x-api-key": "wrong", "authorization": "Bearer right", "anthropic-version": "2026-10-21"},
        ApiError(401, "authentication_error", "invalid x-api-key"),
    ),
    "a version is needed": (
        {"x-api-key": "right"},
        ApiError(400, "invalid_request_error", "anthropic-version: header is required"),
    ),
    "the version exists": (
        {"x-api-key": "right", "anthropic-version": "2024-01-01"},
        ApiError(400, "invalid_request_error", "anthropic-version: '2024-01-01' is not a valid version"),
    ),
    "x-api-key is enough": ({"x-api-key": "right", "anthropic-version": "2023-06-01"}, None),
    "a bearer is enough": ({"authorization": "Bearer right", "anthropic-version": "2026-10-21"}, None),
}


@pytest.mark.parametrize("rule", HEADER_RULES)
def test_headers_are_checked(rule: str) -> None:
    """A key (x-api-key or bearer) comes first and gives 401, then the version gives 400."""
    headers, expected = HEADER_RULES[rule]
    assert check_headers(headers, "right") == expected


def test_any_key_is_taken_when_none_was_given() -> None:
    """A server without a key of its own only wants to see one."""
    assert check_headers({"x-api-key": "whatever", "anthropic-version": "2026-10-21"}, None) is None


BODIES = {
    "no JSON": (b"{", "The request body is not valid JSON: Expecting property name enclosed in double quotes"),
    "an empty body": (b"", "The request body is not valid JSON: Expecting value"),
    "a constant that is no JSON": (b'{"a": NaN}', "The request body is not valid JSON: NaN is no JSON"),
    "no UTF-8": (b'{"a": "\xff"}', "The request body is not valid JSON: 'utf-8' codec can't decode"),
    "half a surrogate": (rb'{"a": "\ud800"}', "The request body is not valid JSON: no low surrogate in string"),
    "half a surrogate in a key": (rb'{"\ud800": 1}', "The request body is not valid JSON: no low surrogate in string"),
    "deep nesting": (
        b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
        "The request body is not valid JSON: nested too deeply",
    ),
    "bottomless nesting": (b"[" * 200_000, "The request body is not valid JSON: nested too deeply"),
    "no object": (b"[]", "Input should be a valid dictionary or object to extract fields from"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_no_json_object_is_refused(case: str) -> None:
    """A body is a JSON object that UTF-8 can carry, nested no deeper than can be checked."""
    data, start = BODIES[case]
    error = parse_body(data)
    assert isinstance(error, ApiError)
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert error.message.startswith(start)


def test_tokens_are_counted_for_requests_without_max_tokens() -> None:
    """count_tokens holds the messages to the same rules, and knows no max_tokens."""
    counted = {"model": "claude-opus-5-5", "messages": [user("hello")], "system": "be kind", "tools": [TOOL]}
    assert check_count_request(counted, HEADERS) is None
    assert check_count_request({**counted, "max_tokens": 5}, HEADERS) == ApiError(
        400, "invalid_request_error", "max_tokens: Extra inputs are not permitted"
    )
    assert check_count_request({**counted, "messages": [user(result())]}, HEADERS) == ApiError(
        400, "invalid_request_error", UNCALLED.format(0, 0, "toolu_1")
    )


def test_an_error_has_the_api_s_shape() -> None:
    """The body of a refusal is the one of the API, with the request's id."""
    error = ApiError(400, "invalid_request_error", "model: Field required")
    assert json.loads(json.dumps(error.body("req_1"))) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "model: Field required"},
        "request_id": "req_1",
    }

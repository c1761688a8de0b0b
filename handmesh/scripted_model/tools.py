"""The shapes of tools and `tool_choice`, and the rules that tools keep among themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from handmesh.scripted_model.content import CACHE_CONTROL, TOOL_NAME
from handmesh.scripted_model.json_schema import is_schema
from handmesh.scripted_model.shapes import (
    Finding,
    Shape,
    anything,
    array,
    boolean,
    mapping,
    nullable,
    one_of,
    record,
    tagged,
    text,
    under,
)

PROPERTY_KEY = "[a-zA-Z0-9_.-]{1,64}"
_PROPERTY_KEY = re.compile(PROPERTY_KEY)

# The API's own tools: type -> the one name the tool may have (toolsets have none).
TYPED_TOOLS = {
    "bash_20250124": "bash",
    "text_editor_20250124": "str_replace_editor",
    "text_editor_20250429": "str_replace_based_edit_tool",
    "text_editor_20250728": "str_replace_based_edit_tool",
    "memory_20250818": "memory",
    "code_execution_20250522": "code_execution",
    "code_execution_20250825": "code_execution",
    "code_execution_20260120": "code_execution",
    "code_execution_20260521": "code_execution",
    "web_search_20250305": "web_search",
    "web_search_20260209": "web_search",
    "web_search_20260318": "web_search",
    "web_fetch_20250910": "web_fetch",
    "web_fetch_20260209": "web_fetch",
    "web_fetch_20260309": "web_fetch",
    "web_fetch_20260318": "web_fetch",
    "tool_search_tool_bm25": "tool_search_tool_bm25",
    "tool_search_tool_bm25_20251119": "tool_search_tool_bm25",
    "tool_search_tool_regex": "tool_search_tool_regex",
    "tool_search_tool_regex_20251119": "tool_search_tool_regex",
    "browser_toolset_20260801": "",
    "computer_toolset_20260801": "",
}


def _input_schema(value: Any, path: str) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield Finding(path, "Input should be a valid dictionary")
    elif "type" not in value:
        yield Finding(under(path, "type"), "Field required")
    elif value["type"] != "object":
        yield Finding(under(path, "type"), "Input should be 'object'")
    elif any(keyword in value for keyword in ("oneOf", "allOf", "anyOf")):
        yield Finding(path, "input_schema does not support oneOf, allOf, or anyOf at the top level")
    elif not is_schema(value):
        yield Finding(
            path,
            "JSON schema is invalid. It must match JSON Schema draft 2020-12 (https://json-schema.org/draft/2020-12). "
            "Learn more about tool use at https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview.",
        )
    elif not all(map(_PROPERTY_KEY.fullmatch, value.get("properties") or {})):
        yield Finding(under(path, "properties"), f"Property keys should match pattern '^{PROPERTY_KEY}$'")


_CUSTOM = record(
    {"name": text(TOOL_NAME), "input_schema": _input_schema},
    {
        "type": anything,
        "description": text(),
        "cache_control": CACHE_CONTROL,
        "strict": boolean,
        "defer_loading": boolean,
        "eager_input_streaming": nullable(boolean),
        "allowed_callers": array(text()),
        "input_examples": array(mapping),
    },
)


def _typed(name: str) -> Shape:
    required = {"type": anything, **({"name": one_of(name)} if name else {})}
    return record(required, {"cache_control": CACHE_CONTROL}, closed=False)


_MEMORY = record(
    {"type": anything, "name": one_of("memory")},
    {
        "allowed_callers": array(text()),
        "cache_control": CACHE_CONTROL,
        "defer_loading": boolean,
        "input_examples": array(mapping),
        "strict": boolean,
    },
)
_KINDS = tagged({
    "custom": _CUSTOM,
    **{kind: _typed(name) for kind, name in TYPED_TOOLS.items()},
    "memory_20250818": _MEMORY,
})  # fmt: skip


def tool(value: Any, path: str) -> Iterator[Finding]:
    """Describes a tool: without a type it is a custom one."""
    if isinstance(value, dict) and value.get("type") is None:
        value = {**value, "type": "custom"}
    yield from _KINDS(value, path)


TOOL_CHOICE = tagged({
    "auto": record({"type": anything}, {"disable_parallel_tool_use": boolean}),
    "any": record({"type": anything}, {"disable_parallel_tool_use": boolean}),
    "tool": record({"type": anything, "name": text()}, {"disable_parallel_tool_use": boolean}),
    "none": record({"type": anything}),
})  # fmt: skip


def tool_names(request: dict[str, Any]) -> list[str]:
    """Returns the names of the offered tools, in the request's order."""
    return [tool["name"] for tool in request.get("tools") or [] if isinstance(tool.get("name"), str)]


def check_tools(request: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the tools as a set and with the choice among them; shapes are right already."""
    names = tool_names(request)
    if len(set(names)) != len(names):
        yield "tools: Tool names must be unique."
    choice = request.get("tool_choice")
    if choice is None:
        return
    if not request.get("tools"):
        yield "tool_choice may only be specified while providing tools."
    elif choice["type"] == "tool" and choice["name"] not in names:
        yield f"Tool '{choice['name']}' not found in provided tools"

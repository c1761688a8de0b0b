"""The tools of one server: mended, named, counted, and what was left out and why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.vault_proxy.core import naming
from services.vault_proxy.core.schema import SchemaRefused, mend

MOST_TOOLS = 1_000  # of one server
CATALOG_BYTES = 2 * 1024 * 1024  # of one server: names, descriptions and schemas
DESCRIPTION_CHARACTERS = 8_000
SHOWN_NAME_CHARACTERS = 200
PRINT_CHARACTERS = 32  # of SHA-256, in hex

# Control characters but newline and tab, and those that turn the direction of text.
_UNSEEN = dict.fromkeys(
    [
        *(each for each in range(32) if each not in (9, 10)),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    ]
)


@dataclass(frozen=True)
class OfferedTool:
    """A tool as the model is told of it. `own_name` is what its server calls it."""

    name: str
    own_name: str
    description: str
    input_schema_json: str
    idempotent: bool = False
    read_only: bool = False


@dataclass(frozen=True)
class Problem:
    """Why a server (`tool` empty) or one tool of it is not offered. `reason` is an ErrorReason by name."""

    server: str
    tool: str
    reason: str
    message: str


@dataclass(frozen=True)
class Catalog:
    """The tools of one server, in its order."""

    tools: tuple[OfferedTool, ...] = ()
    problems: tuple[Problem, ...] = ()

    def find(self, name: str) -> OfferedTool | None:
        """Returns the tool that is offered under a name."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def narrowed(self, allowed: Sequence[str]) -> Catalog:
        """Returns only the tools whose own names are allowed; all when none is named."""
        if not allowed:
            return self
        return Catalog(
            tuple(tool for tool in self.tools if tool.own_name in allowed),
            tuple(problem for problem in self.problems if problem.tool in ("", *allowed)),
        )


@dataclass(frozen=True)
class Change:
    """How a server's tools differ from those that it had: names as the model sees them, sorted."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]  # their description, schema or annotations


def prints_of(catalog: Catalog) -> dict[str, str]:
    """Returns a hash of what the model is told of each tool, by its name."""
    return {
        tool.name: _print(tool.description, json.loads(tool.input_schema_json), tool.idempotent, tool.read_only)
        for tool in catalog.tools
    }


def prints_of_offer(tools_json: str) -> dict[str, str]:
    """Returns the same of what a session's log says was offered: the `tools_json` of a ToolsOffered."""
    return {
        tool["name"]: _print(
            tool.get("description", ""),
            tool["input_schema"],
            tool.get("idempotent", False),
            tool.get("read_only", False),
        )
        for tool in json.loads(tools_json)
    }


def _print(description: str, schema: Any, idempotent: bool, read_only: bool) -> str:
    said = json.dumps([description, schema, idempotent, read_only])
    return hashlib.sha256(said.encode()).hexdigest()[:PRINT_CHARACTERS]


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> Change | None:
    """Returns how the prints differ, or None when they do not."""
    if before == after:
        return None
    return Change(
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        changed=tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name])),
    )


def build(server: str, raw_tools: Iterable[Mapping[str, Any]]) -> Catalog:
    """Makes a catalog of what a server lists, as MCP's JSON. One bad tool costs only itself."""
    tools: dict[str, OfferedTool] = {}
    problems: list[Problem] = []
    room = CATALOG_BYTES
    for count, raw in enumerate(raw_tools):
        own_name = _text(raw.get("name"))
        shown = own_name[:SHOWN_NAME_CHARACTERS].translate(_UNSEEN)
        try:
            tool = _offered(server, own_name, raw)
        except SchemaRefused as refused:
            problems.append(Problem(server, shown, "TOOL_SCHEMA_INVALID", str(refused)))
            continue
        if tool.name in tools:
            problems.append(Problem(server, shown, "TOOL_SCHEMA_INVALID", "the server has another tool of that name"))
            continue
        room -= len(tool.name) + len(tool.description) + len(tool.input_schema_json)
        if count >= MOST_TOOLS or room < 0:
            problems.append(Problem(server, "", "FULL", f"only the server's first {len(tools)} tools fit"))
            break
        tools[tool.name] = tool
    return Catalog(tuple(tools.values()), tuple(problems))


def _offered(server: str, own_name: str, raw: Mapping[str, Any]) -> OfferedTool:
    if not own_name:
        raise SchemaRefused("the tool has no name")
    given = raw.get("annotations")
    hints = given if isinstance(given, Mapping) else {}
    read_only = hints.get("readOnlyHint") is True
    return OfferedTool(
        name=naming.offered_name(server, own_name),
        own_name=own_name,
        description=_description(raw),
        input_schema_json=json.dumps(mend(raw.get("inputSchema")), separators=(",", ":")),
        idempotent=read_only or hints.get("idempotentHint") is True,
        read_only=read_only,
    )


def _description(raw: Mapping[str, Any]) -> str:
    text = (_text(raw.get("description")) or _text(raw.get("title"))).translate(_UNSEEN)
    if len(text) <= DESCRIPTION_CHARACTERS:
        return text
    return text[:DESCRIPTION_CHARACTERS] + " [cut]"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

"""Offers the mesh's own tools and runs their calls: whose the tool is, and whether its schema takes the input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from services.harness.core import Config, ToolCall, ToolResult, ToolSpec
from services.harness.mesh.tool import Asked, MeshTools
from services.harness.ports import SessionLog, Standing

MAX_SHOWN = 400  # characters of what is wrong with an input


@dataclass(frozen=True)
class MeshCalls:
    """The tools of these families, of which the first one with a name counts."""

    families: Sequence[MeshTools]

    def offered(self, config: Config) -> list[ToolSpec]:
        """Returns the tools that a session with this configuration has."""
        return [spec for spec, _ in self._tools(config)]

    def described(self, specs: Sequence[ToolSpec], config: Config) -> list[ToolSpec]:
        """Returns tools as a model knows them that is not told of the API's own: with description and schema.

        One that nobody here can describe is left out.
        """
        own = {spec.name: replace(spec, type="") for spec in self.offered(config)}
        return [own.get(spec.name, spec) if spec.type else spec for spec in specs if not spec.type or spec.name in own]

    def _tools(self, config: Config) -> Iterator[tuple[ToolSpec, MeshTools]]:
        seen: set[str] = set()
        for family in self.families:
            for spec in family.offered(config):
                if spec.name not in seen:
                    seen.add(spec.name)
                    yield spec, family

    async def execute(
        self,
        call: ToolCall,
        log: SessionLog,
        config: Config,
        under: Standing,
        since: float = 0.0,
        may_rest: bool = False,
    ) -> ToolResult:
        """Runs a call, or runs it again to the same effect. What is wrong with it is a value.

        `since` is when it was first asked, 0 for now. Errors are those of `MeshTools.execute`.
        """
        found = next((tool for tool in self._tools(config) if tool[0].name == call.name), None)
        if found is None:  # an older harness, which does not know the tool, or its configuration is another one now
            return ToolResult(f"The tool {call.name} cannot be had here any more.", "TOOL_ERROR")
        spec, family = found
        given, wrong = checked(spec, call.input)
        if wrong:
            return ToolResult(f"{call.name} does not take this input: {wrong}", "TOOL_ERROR")
        return await family.execute(Asked(log, config, under, call.name, given, call.id, since, may_rest))


def checked(spec: ToolSpec, input_json: str) -> tuple[dict[str, Any], str]:
    """Returns a call's input, and what is wrong with it: nothing when the tool's schema takes it.

    What models spell as null is left out, unless the tool needs it.
    """
    schema = json.loads(spec.schema)
    try:
        given = json.loads(input_json or "{}")
        json.dumps(given, ensure_ascii=False).encode()
    except RecursionError:
        return {}, "it is nested too deeply"
    except UnicodeEncodeError:
        return {}, "it has a lone surrogate, which is no character"
    except ValueError:
        return {}, "it is no JSON"
    if isinstance(given, dict):
        needed = schema.get("required", ())
        given = {key: value for key, value in given.items() if value is not None or key in needed}
    error = best_match(Draft202012Validator(schema).iter_errors(given))
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path)
        return {}, f"{where + ': ' if where else ''}{error.message}"[:MAX_SHOWN]
    return given, ""

"""Reads scripts: YAML text to a document, the document's shape, the document to a `Script`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from handmesh.scripted_model.errors import ApiError, scripted
from handmesh.scripted_model.script import (
    DEFAULT_CHUNK,
    Conversation,
    Cut,
    ErrorFrame,
    Fault,
    HttpError,
    Pace,
    Say,
    SayText,
    SayThinking,
    SayToolUse,
    SayVerbatim,
    Script,
    ScriptError,
    Silence,
    Step,
    Turn,
    When,
)
from handmesh.scripted_model.script_shape import check_script

DEFAULT_SCRIPT = Path(__file__).with_name("default.yaml")


def load_script(script: Script | Path | str | Mapping[str, Any] | None) -> Script:
    """Returns a script from wherever it is; raises ScriptError with the file's name and every mistake in it.

    A Script is returned as it is, a Path is read, a str is YAML text, a mapping is a parsed document, and None is the
    script that ships with handmesh.
    """
    match script:
        case Script():
            return script
        case None:
            return load_script(DEFAULT_SCRIPT)
        case Path():
            try:
                text = script.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ScriptError(str(script), [f"expected a readable UTF-8 file; {error}"]) from None
            return read_script(text, str(script))
        case str():
            return read_script(script)
        case _:
            return build_script(script)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may stand only once."""


def _mapping_once(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[tuple[str, str]] = set()
    for key_node, _ in node.value:
        key = (key_node.tag, str(key_node.value))
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key[1]!r} stands twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_once)


def read_script(text: str, name: str = "script") -> Script:
    """Reads YAML text; raises ScriptError with all mistakes, `name` being the file's or whatever people know it by."""
    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ScriptError(name, [_yaml_problem(error)]) from None
    return build_script(document, name)


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}expected YAML; {getattr(error, 'problem', None) or error}"


def build_script(document: Any, name: str = "script") -> Script:
    """Builds a script from a parsed document; raises ScriptError with all mistakes."""
    problems = check_script(document)
    if problems:
        raise ScriptError(name, problems)
    defaults = document.get("defaults") or {}
    conversations = [
        _conversation(entry, f"conversations[{index}]", defaults)
        for index, entry in enumerate(document.get("conversations") or [])
    ]
    turns = [_turn(entry, f"turns[{index}]", defaults) for index, entry in enumerate(document.get("turns") or [])]
    if turns:
        conversations.append(Conversation("turns", None, (Step(tuple(turns)),), repeat=True))
    default = document.get("default")
    return Script(tuple(conversations), _conversation(default, "default", defaults) if default else None)


def _conversation(entry: Mapping[str, Any], path: str, defaults: Mapping[str, Any]) -> Conversation:
    steps = tuple(_step(step, f"{path}.steps[{index}]", defaults) for index, step in enumerate(entry["steps"]))
    return Conversation(entry.get("name") or path, _when(entry.get("when")), steps, entry.get("repeat", False))


def _step(entry: Mapping[str, Any], path: str, defaults: Mapping[str, Any]) -> Step:
    if "cases" not in entry:
        return Step((_turn(entry, path, defaults),))
    return Step(tuple(_turn(case, f"{path}.cases[{index}]", defaults) for index, case in enumerate(entry["cases"])))


def _turn(entry: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> Turn:
    pace = {**defaults, **entry}
    return Turn(
        key=key,
        when=_when(entry.get("when")),
        times=entry.get("times"),
        say=tuple(map(_say, entry.get("say") or [])),
        stop_reason=entry.get("stop_reason"),
        stop_sequence=entry.get("stop_sequence"),
        stop_details=entry.get("stop_details"),
        usage=entry.get("usage") or {},
        applied_edits=tuple(entry.get("applied_edits") or ()),
        compacted=entry.get("compacted"),
        pace=Pace(pace.get("delay_ms", 0), pace.get("chunk", DEFAULT_CHUNK), pace.get("chunk_delay_ms", 0)),
        fault=_fault(entry),
    )


def _when(entry: Mapping[str, Any] | None) -> When | None:
    if entry is None:
        return None
    result = entry.get("tool_result")
    result = {"contains": result} if isinstance(result, str) else result or {}
    pattern = entry.get("user_matches")
    return When(
        user=entry.get("user"),
        user_matches=re.compile(pattern, re.IGNORECASE) if pattern else None,
        system=entry.get("system"),
        tool_offered=entry.get("tool_offered"),
        tool_result=result.get("contains"),
        tool_result_of=result.get("tool"),
        tool_result_is_error=result.get("is_error"),
        messages=entry.get("messages"),
    )


def _say(entry: Mapping[str, Any]) -> Say:
    kind, value = next(iter(entry.items()))
    match kind:
        case "text":
            return SayText(value)
        case "thinking":
            return SayThinking(value)
        case "tool_use":
            suffix = "tool" in value
            return SayToolUse(
                value["tool"] if suffix else value["name"], suffix, value.get("input") or {}, value.get("input_json")
            )
        case _:
            return SayVerbatim(value)


def _fault(entry: Mapping[str, Any]) -> Fault | None:
    match entry:
        case {"error": told}:
            return HttpError(_error(told))
        case {"error_frame": told}:
            return ErrorFrame(told["after_events"], _error(told))
        case {"silence_after_events": events}:
            return Silence(events)
        case {"cut_after_events": events}:
            return Cut(events, None)
        case {"cut_after_bytes": count}:
            return Cut(None, count)
        case _:
            return None


def _error(told: Mapping[str, Any]) -> ApiError:
    return scripted(told.get("status"), told.get("type"), told.get("message"), told.get("retry_after"))

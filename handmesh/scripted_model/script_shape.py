"""Says what is wrong with a script document, all of it at once, in words that tell what belongs there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from handmesh.scripted_model import shapes
from handmesh.scripted_model.shapes import (
    Finding,
    Shape,
    array,
    boolean,
    integer,
    listed,
    mapping,
    nullable,
    number,
    one_of,
    text,
    under,
)

STOP_REASONS = (
    "end_turn",
    "tool_use",
    "max_tokens",
    "stop_sequence",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)
USAGE_FIELDS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
FAULTS = ("error", "error_frame", "cut_after_events", "cut_after_bytes", "silence_after_events")


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape]) -> Shape:
    """Returns a closed record that names the keys it knows when it meets one it does not."""
    shape = shapes.record(required, optional, closed=False)
    known = [*required, *optional]

    def check(value: Any, path: str) -> Iterator[Finding]:
        yield from shape(value, path)
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                yield Finding(under(path, key), f"unknown key; expected {listed(known)}")

    return check


def _pattern(value: Any, path: str) -> Iterator[Finding]:
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        yield Finding(path, f"expected a regular expression; {error}")


_TOOL_RESULT_RECORD = record({}, {"contains": text(), "tool": text(min_length=1), "is_error": boolean})


def _tool_result(value: Any, path: str) -> Iterator[Finding]:
    if not isinstance(value, str):
        yield from _TOOL_RESULT_RECORD(value, path)


WHEN: dict[str, Shape] = {
    "user": text(),
    "user_matches": _pattern,
    "system": text(),
    "tool_offered": text(min_length=1),
    "tool_result": _tool_result,
    "messages": integer(1),
}
_WHEN = record({}, WHEN)
_TOOL_USE_RECORD = record({}, {"name": text(), "tool": text(min_length=1), "input": mapping, "input_json": text()})


def _tool_use(value: Any, path: str) -> Iterator[Finding]:
    yield from _TOOL_USE_RECORD(value, path)
    if isinstance(value, dict):
        if ("name" in value) == ("tool" in value):
            yield Finding(path, "expected either 'name' (as it is) or 'tool' (an offered tool by its last part)")
        if "input" in value and "input_json" in value:
            yield Finding(path, "expected either 'input' (an object) or 'input_json' (raw text), not both")


SAY = {
    "text": text(min_length=1),
    "thinking": text(),
    "tool_use": _tool_use,
    "block": shapes.record({"type": text(min_length=1)}, closed=False),
}


def _say(value: Any, path: str) -> Iterator[Finding]:
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in SAY:
        yield Finding(path, f"expected an object with one key, {listed(list(SAY))}")
    else:
        key, content = next(iter(value.items()))
        yield from SAY[key](content, under(path, key))


_PACE: dict[str, Shape] = {
    "delay_ms": number(0, 600_000),
    "chunk": integer(1),
    "chunk_delay_ms": number(0, 600_000),
}
_ERROR = {
    "status": integer(400, 599),
    "type": text(min_length=1),
    "message": text(),
    "retry_after": number(0),
}
_APPLIED = shapes.tagged({
    "clear_tool_uses_20250919": record(
        {"type": text(), "cleared_input_tokens": integer(0), "cleared_tool_uses": integer(0)}, {}
    ),
    "clear_thinking_20251015": record(
        {"type": text(), "cleared_input_tokens": integer(0), "cleared_thinking_turns": integer(0)}, {}
    ),
})  # fmt: skip
TURN: dict[str, Shape] = {
    "when": nullable(_WHEN),
    "times": integer(1),
    "say": array(_say),
    "stop_reason": one_of(*STOP_REASONS),
    "stop_sequence": text(),
    "stop_details": record({}, {"category": nullable(text()), "explanation": nullable(text())}),
    "usage": record({}, dict.fromkeys(USAGE_FIELDS, integer(0))),
    "applied_edits": array(_APPLIED),
    "compacted": record({}, dict.fromkeys(USAGE_FIELDS, integer(0))),
    **_PACE,
    "error": record({}, _ERROR),
    "error_frame": record({"after_events": integer(0)}, _ERROR),
    "cut_after_events": integer(0),
    "cut_after_bytes": integer(0),
    "silence_after_events": integer(0),
}
_TURN_RECORD = record({}, TURN)


def _turn(value: Any, path: str) -> Iterator[Finding]:
    yield from _TURN_RECORD(value, path)
    if not isinstance(value, dict):
        return
    faults = [fault for fault in FAULTS if fault in value]
    if len(faults) > 1:
        yield Finding(path, f"expected at most one of {listed(list(FAULTS))}")
    if ("say" in value) == ("error" in value):
        yield Finding(path, "expected 'say' (what is answered) or 'error' (a refusal instead), one of the two")


_CASES = array(_turn, min_length=1)


def _step(value: Any, path: str) -> Iterator[Finding]:
    if not isinstance(value, dict) or "cases" not in value:
        yield from _turn(value, path)
        return
    for key in value:
        if key != "cases":
            yield Finding(under(path, key), "expected 'cases' alone; everything else belongs in a case")
    yield from _cases(value["cases"], under(path, "cases"))


def _cases(value: Any, path: str) -> Iterator[Finding]:
    yield from _CASES(value, path)
    for index, case in enumerate(value[:-1] if isinstance(value, list) else ()):
        if isinstance(case, dict) and not case.get("when") and "times" not in case:
            yield Finding(under(path, index), "expected 'when' or 'times'; without them no later case is ever played")


_STEPS = {"steps": array(_step, min_length=1)}
CONVERSATION: dict[str, Shape] = {"name": text(), "when": nullable(_WHEN), "repeat": boolean}
SCRIPT: dict[str, Shape] = {
    "defaults": nullable(record({}, _PACE)),
    "conversations": array(record(_STEPS, CONVERSATION)),
    "turns": _cases,
    "default": nullable(record(_STEPS, {"name": text(), "repeat": boolean})),
}
_SCRIPT = record({}, SCRIPT)


def _script(value: Any) -> Iterator[Finding]:
    yield from _SCRIPT(value, "")
    if not isinstance(value, dict):
        return
    if not any(value.get(part) for part in ("conversations", "turns", "default")):
        yield Finding("", "expected 'conversations', 'turns' or 'default' with something in it")
    conversations = value.get("conversations")
    for index, entry in enumerate(conversations[:-1] if isinstance(conversations, list) else ()):
        if isinstance(entry, dict) and not entry.get("when"):
            where = under("conversations", index)
            yield Finding(where, "expected 'when'; without it no later conversation is ever played")


def check_script(document: Any) -> list[str]:
    """Returns a line for each mistake, such as `conversations[0].steps[1].say[0]: expected ...`."""
    return [str(Finding(_bracketed(finding.path), finding.text)) for finding in _script(document)]


def _bracketed(path: str) -> str:
    return re.sub(r"(?:^|\.)(\d+)(?=\.|$)", r"[\1]", path)

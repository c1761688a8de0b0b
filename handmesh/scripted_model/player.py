"""Plays a script: finds the turn for a request and makes the answer out of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from handmesh.scripted_model import signatures
from handmesh.scripted_model.script import (
    Conversation,
    Say,
    SayText,
    SayThinking,
    SayToolUse,
    SayVerbatim,
    Script,
    Step,
    Turn,
    When,
)
from handmesh.scripted_model.stream import Answer, Part, Text, Thinking, ToolUse, Verbatim
from handmesh.scripted_model.usage import Usage, tokens_of_text
from handmesh.scripted_model.view import RequestView

PLACEHOLDER = re.compile(r"\{(last_tool_result|last_user_text|unique_id|result [1-9] [a-z_]{1,40})\}")
NOTHING = "(nothing)"  # stands for an empty text: a block of empty text would be refused when it comes back


@dataclass(frozen=True)
class Mismatch:
    """The script has no answer to a request, and why."""

    reason: str


def choose(script: Script, view: RequestView, used: Mapping[str, int]) -> Turn | Mismatch:
    """Returns the turn to play; `used` counts, by key, how often turns with `times` were played."""
    candidates = [*script.conversations, *([script.default] if script.default else [])]
    for conversation in candidates:
        if conversation.when is not None and not fits(conversation.when, view):
            continue
        step = _step(conversation, view.step)
        if step is None:
            return Mismatch(
                f"conversation '{conversation.name}' has {len(conversation.steps)} step(s), and this request asks for "
                f"step {view.step + 1} after the user text {_short(view.user_text)}"
            )
        for turn in step.cases:
            left = turn.times is None or used.get(turn.key, 0) < turn.times
            if left and (turn.when is None or fits(turn.when, view)):
                return turn
    return Mismatch(f"no conversation fits the user text {_short(view.user_text)} at step {view.step + 1}")


def _step(conversation: Conversation, number: int) -> Step | None:
    if conversation.repeat:
        number = min(number, len(conversation.steps) - 1)
    return conversation.steps[number] if number < len(conversation.steps) else None


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= 80 else f"{text[:77]}...", ensure_ascii=False)


def fits(when: When, view: RequestView) -> bool:
    """Returns whether every given part of a condition holds."""
    result = view.last_result
    wants_result = (when.tool_result, when.tool_result_of, when.tool_result_is_error) != (None, None, None)
    if wants_result and result is None:
        return False
    return (
        _contains(view.user_text, when.user)
        and (when.user_matches is None or when.user_matches.search(view.user_text) is not None)
        and _contains(view.system, when.system)
        and (when.tool_offered is None or find_tool(when.tool_offered, view.tools) is not None)
        and (when.messages is None or when.messages == view.messages)
        and (result is None or _contains(result.text, when.tool_result))
        and (result is None or when.tool_result_of is None or is_named(result.tool, when.tool_result_of))
        and (result is None or when.tool_result_is_error in (None, result.is_error))
    )


def _contains(text: str, part: str | None) -> bool:
    return part is None or part.casefold() in text.casefold()


def is_named(name: str, wanted: str) -> bool:
    """Returns whether a tool's name is the wanted one, or ends in `__` and the wanted one (a hand's prefix)."""
    return name == wanted or name.endswith(f"__{wanted}")


def find_tool(wanted: str, offered: tuple[str, ...]) -> str | None:
    """Returns the first offered tool with this name: an exact one before a prefixed one."""
    return wanted if wanted in offered else next((name for name in offered if is_named(name, wanted)), None)


def render(turn: Turn, view: RequestView, prompt: Usage) -> Answer | Mismatch:
    """Makes the answer to a request; `prompt` is the input side of its usage."""
    parts: list[Part] = []
    for index, say in enumerate(turn.say if view.max_tokens else ()):
        part = _part(say, view, index)
        if part is None:
            wanted = say.name if isinstance(say, SayToolUse) else ""
            return Mismatch(f"{turn.key} wants the tool '{wanted}', and the request offers {list(view.tools)}")
        parts.append(part)
    return Answer(
        message_id=f"msg_01{_id(view.fingerprint, 'message')}",
        model=view.model,
        parts=tuple(parts),
        stop_reason=_stop_reason(turn, view, parts),
        usage=_usage(turn, prompt, parts),
        stop_sequence=_stop_sequence(turn, view),
        stop_details=_stop_details(turn),
        applied_edits=turn.applied_edits if view.edits_context else None,
        compacted=turn.compacted,
    )


def _part(say: Say, view: RequestView, index: int) -> Part | None:
    values = _values(view, index)
    match say:
        case SayText():
            return Text(fill(say.text, values) or NOTHING)
        case SayThinking():
            shown = fill(say.text, values) if view.shows_thinking else ""
            nonce = _digest(view.fingerprint, f"thinking {index}")[: signatures.NONCE_BYTES]
            return Thinking(shown, signatures.sign(shown, nonce))
        case SayToolUse():
            name = find_tool(say.name, view.tools) if say.suffix else say.name
            if name is None:
                return None
            raw = say.input_json
            text = json.dumps(_fill_all(say.input, values), ensure_ascii=False) if raw is None else fill(raw, values)
            return ToolUse(f"toolu_01{_id(view.fingerprint, f'tool {index}')}", name, text)
        case SayVerbatim():
            return Verbatim(_fill_all(say.block, values))
        case _:
            assert_never(say)


def _values(view: RequestView, index: int) -> dict[str, str]:
    result = view.last_result
    return {
        "last_tool_result": (result.text if result else "") or NOTHING,
        "last_user_text": view.user_text or NOTHING,
        "unique_id": _id(view.fingerprint, f"block {index}"),
        **_fields(view),
    }


def _fields(view: RequestView) -> dict[str, str]:
    """Returns the texts in those results that are JSON objects, as `result N KEY`."""
    found: dict[str, str] = {}
    for number, result in enumerate(view.results, 1):
        try:
            fields = json.loads(result.text)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            texts = {key: value for key, value in fields.items() if isinstance(value, str)}
            found |= {f"result {number} {key}": text for key, text in texts.items()}
    return found


def fill(text: str, values: Mapping[str, str]) -> str:
    """Puts values in the places of their names in braces; all other braces stay as they are."""
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def _fill_all(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return fill(value, values)
    if isinstance(value, Mapping):
        return {key: _fill_all(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_all(item, values) for item in value]
    return value


def _stop_reason(turn: Turn, view: RequestView, parts: list[Part]) -> str:
    if not view.max_tokens:  # nothing may be generated: the request only fills the cache
        return "max_tokens"
    if turn.stop_reason:
        return turn.stop_reason
    return "tool_use" if any(isinstance(part, ToolUse) for part in parts) else "end_turn"


def _stop_sequence(turn: Turn, view: RequestView) -> str | None:
    if turn.stop_reason != "stop_sequence":
        return None
    return turn.stop_sequence or next(iter(view.stop_sequences), None)


def _stop_details(turn: Turn) -> dict[str, Any] | None:
    if turn.stop_reason != "refusal":
        return None
    return {"type": "refusal", "category": None, "explanation": None, **(turn.stop_details or {})}


def _usage(turn: Turn, prompt: Usage, parts: list[Part]) -> Usage:
    thinking = sum(tokens_of_text(part.text) for part in parts if isinstance(part, Thinking))
    said = thinking
    for part in parts:
        match part:
            case Text():
                said += tokens_of_text(part.text)
            case ToolUse():
                said += tokens_of_text(part.name + part.input_json)
            case Verbatim():
                said += tokens_of_text(json.dumps(part.block, ensure_ascii=False))
            case Thinking():
                pass
            case _:
                assert_never(part)
    counted = replace(prompt, output_tokens=said, thinking_tokens=thinking)
    told = dict(turn.usage)
    if "cache_creation_input_tokens" in told:
        told |= {"cache_5m_input_tokens": told.pop("cache_creation_input_tokens"), "cache_1h_input_tokens": 0}
    return replace(counted, **told)


def _digest(fingerprint: bytes, what: str) -> bytes:
    return hashlib.sha256(fingerprint + what.encode()).digest()


def _id(fingerprint: bytes, what: str) -> str:
    """Returns 24 letters and digits that only this request gives."""
    return base64.b32encode(_digest(fingerprint, what)).decode()[:24]

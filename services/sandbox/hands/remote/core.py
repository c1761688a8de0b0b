"""The rules for workers: what they may say of themselves and of executions, and who gets which call. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from services.sandbox.dialled import TOOLS_BYTES, Registration, invalid, shown
from services.sandbox.hand import Outcome, Result
from services.sandbox.tools import Tool

MOST_TOOLS = 128
MOST_LABELS = 32
LABEL_CHARACTERS = 128
DESCRIPTION_CHARACTERS = 1024
MOST_CAPACITY = 256
CONTENT_BYTES = 6 << 20  # of the content blocks of a result
MOST_BLOCKS = 100
_WORKER = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_TOOL = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_COMBINATORS = ("anyOf", "oneOf", "allOf", "not", "$ref")
_MEDIA = re.compile(r"[a-z]+/[a-zA-Z0-9.+-]{1,100}")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_SURROGATES = re.compile(r"[\ud800-\udfff]")  # half a character, which UTF-8 cannot carry
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def check(registration: Registration) -> None:
    """Raises Invalid (`HAND_REGISTRATION_INVALID`) for a worker that says of itself what cannot be."""
    if not _WORKER.fullmatch(registration.worker):
        raise invalid("worker", f"must match ^{_WORKER.pattern}$")
    if registration.seat and not _WORKER.fullmatch(registration.seat):
        raise invalid("seat", f"must match ^{_WORKER.pattern}$")
    if not 1 <= registration.capacity <= MOST_CAPACITY:
        raise invalid("capacity", f"must be from 1 to {MOST_CAPACITY}")
    if len(registration.description) > DESCRIPTION_CHARACTERS:
        raise invalid("description", f"has at most {DESCRIPTION_CHARACTERS} characters")
    labels = registration.labels
    if len(labels) > MOST_LABELS or any(len(text) > LABEL_CHARACTERS for pair in labels.items() for text in pair):
        raise invalid("labels", f"are at most {MOST_LABELS}, with at most {LABEL_CHARACTERS} characters each")
    _check_tools(registration.tools)


def _check_tools(tools: tuple[Tool, ...]) -> None:
    if not 1 <= len(tools) <= MOST_TOOLS:
        raise invalid("tools", f"are from 1 to {MOST_TOOLS}")
    names = [tool.name for tool in tools]
    wrong = next((name for name in names if not _TOOL.fullmatch(name)), None)
    if wrong is not None:
        raise invalid("tools", f"a tool's name must match ^{_TOOL.pattern}$, not {shown(wrong)!r}")
    if len(set(names)) < len(names):
        raise invalid("tools", "two tools have one name")
    if sum(len(tool.description) + len(json.dumps(tool.input_schema)) for tool in tools) > TOOLS_BYTES:
        raise invalid("tools", f"have at most {TOOLS_BYTES} bytes in all")
    for tool in tools:
        _check_schema(tool)


def _check_schema(tool: Tool) -> None:
    schema = tool.input_schema
    if schema.get("type") != "object" or any(word in schema for word in _COMBINATORS):
        raise invalid("tools", f"the schema of {tool.name} must be of type object, without a combinator at its root")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        raise invalid("tools", f"the schema of {tool.name} is no JSON Schema") from None


def sound(result: Result, text_bytes: int) -> Result:
    """Makes of what a worker says a result that a model can be shown: always, and always the same.

    Text is cut in its middle when it has more bytes than that. Content that no model's API takes ends as an error of
    the tool.
    """
    why = _unfit(result.content_json)
    if why:
        text = f"the hand's answer was left out: its content {why}"
        return Result(text, Outcome.TOOL_ERROR, exit_code=result.exit_code, signal=result.signal)
    text, cut = _cut(_CONTROLS.sub("\ufffd", result.text), text_bytes)
    content = "" if result.content_json.strip() in ("", "[]") else result.content_json
    return replace(
        result,
        text=text or "(no output)",
        content_json=content,
        truncated=result.truncated or cut,
        spill_path=result.spill_path[:4096],
    )


def _cut(text: str, most: int) -> tuple[str, bool]:
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode(), False
    head = data[: most // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (most - most // 2) :].decode("utf-8", "ignore")
    left_out = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n\n[... {left_out} bytes left out ...]\n\n{tail}", True


def _unfit(content: str) -> str:
    """Says what is wrong with content blocks; nothing when they are fit."""
    if not content.strip():
        return ""
    if len(content) > CONTENT_BYTES:
        return f"has more than {CONTENT_BYTES} bytes"
    try:
        blocks = json.loads(content)
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(blocks, list) or len(blocks) > MOST_BLOCKS:
        return f"is no array of at most {MOST_BLOCKS} blocks"
    wrong = next((number for number, block in enumerate(blocks, 1) if not _is_block(block)), 0)
    return f"has something as block {wrong} that is neither a text, nor an image, nor a document" if wrong else ""


def _is_block(block: Any) -> bool:
    match block:
        case {"type": "text", "text": str(text), **rest}:
            return bool(text) and not rest and not _SURROGATES.search(text)
        case {"type": "image" | "document", "source": {"type": "base64", "media_type": str(media), "data": str(data)}}:
            return (
                set(block) == {"type", "source"} and _MEDIA.fullmatch(media) is not None and bool(data) and _is_64(data)
            )
    return False


def _is_64(data: str) -> bool:
    return len(data) % 4 == 0 and _BASE64.fullmatch(data) is not None


def digest(result: Result) -> str:
    """Returns the same for the same result, so that one that is said again is told from another one."""
    kept = asdict(result) | {"outcome": result.outcome.name, "seconds": 0.0}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Says whether a worker's labels have all that a selector wants."""
    return all(labels.get(key) == value for key, value in wanted.items())


def emptiest(loads: Iterable[tuple[str, int, int]]) -> str | None:
    """Returns the worker with most of its room free, the first by name of those; None when all are full.

    Each is its name, how many executions it has, and how many it takes.
    """
    free = [(taken / capacity, name) for name, taken, capacity in loads if taken < capacity]
    return min(free)[1] if free else None


def file_name(key: tuple[str, str]) -> str:
    """Returns a name for a tenant's hand that any file can have."""
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]

"""What a request may ask of the API's own context management: its edits, each behind the beta that brings it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from handmesh.scripted_model.content import block, blocks
from handmesh.scripted_model.models import MODELS
from handmesh.scripted_model.shapes import (
    Finding,
    anything,
    array,
    boolean,
    integer,
    mapping,
    nullable,
    one_of,
    record,
    tagged,
    text,
)

CLEARING = "context-management-2025-06-27"
COMPACTING = "compact-2026-01-12"
BETAS = {
    "clear_thinking_20251015": CLEARING,
    "clear_tool_uses_20250919": CLEARING,
    "compact_20260112": COMPACTING,
}
MIN_COMPACTED_TOKENS = 50_000

_TOKENS = {"input_tokens": record({"type": anything, "value": integer(1)})}
_LATE = tagged({"input_tokens": record({"type": anything, "value": integer(MIN_COMPACTED_TOKENS)})})
_TRIGGER = tagged({**_TOKENS, "tool_uses": record({"type": anything, "value": integer(1)})})
_ALL = tagged({
    "thinking_turns": record({"type": anything, "value": integer(1)}),
    "all": record({"type": anything}),
})  # fmt: skip


def _keep_thinking(value: Any, path: str) -> Iterator[Finding]:
    yield from (one_of("all") if isinstance(value, str) else _ALL)(value, path)


def _inputs(value: Any, path: str) -> Iterator[Finding]:
    yield from (array(text()) if isinstance(value, list) else boolean)(value, path)


_EDIT = tagged({
    "clear_tool_uses_20250919": record({"type": anything}, {
        "trigger": _TRIGGER,
        "keep": tagged({"tool_uses": record({"type": anything, "value": integer(0)})}),
        "clear_at_least": nullable(tagged(_TOKENS)),
        "exclude_tools": nullable(array(text())),
        "clear_tool_inputs": nullable(_inputs),
    }),
    "clear_thinking_20251015": record({"type": anything}, {"keep": _keep_thinking}),
    "compact_20260112": record({"type": anything}, {
        "trigger": nullable(_LATE),
        "pause_after_compaction": boolean,
        "instructions": nullable(text()),
    }),
})  # fmt: skip
CONTEXT_MANAGEMENT = nullable(record({}, {"edits": array(_EDIT)}))

# The API's own summary: everything before it is not shown to the model. Only behind its beta.
_SUMMARY = block(
    {},
    {
        "content": nullable(text(min_length=1)),
        "encrypted_content": nullable(text()),
        "signature": nullable(text()),
        "tool_changes": nullable(array(mapping)),
    },
)


def betas_of(headers: Mapping[str, str]) -> frozenset[str]:
    """Returns the betas that a request's header names."""
    return frozenset(each.strip() for each in headers.get("anthropic-beta", "").split(",") if each.strip())


def check_context_management(request: dict[str, Any], betas: frozenset[str]) -> Iterator[str]:
    """Yields what is wrong with the edits: their shapes, then what they need. The field is there only with a beta."""
    value = request.get("context_management")
    for finding in CONTEXT_MANAGEMENT(value, "context_management"):
        yield str(finding)
    yield from _check_summaries(request, betas)
    edits = (value or {}).get("edits") or []
    kinds = [edit["type"] for edit in edits]
    for place, kind in enumerate(kinds):
        if BETAS[kind] not in betas:
            yield f"context_management.edits.{place}: '{kind}' needs the beta '{BETAS[kind]}' in `anthropic-beta`"
        if kinds.count(kind) > 1:
            yield f"context_management.edits: each strategy may be given once. Found several of '{kind}'"
    if "clear_thinking_20251015" in kinds:
        if kinds[0] != "clear_thinking_20251015":
            yield "context_management.edits: `clear_thinking_20251015` must be the first strategy"
        if not _thinks(request):
            yield "`clear_thinking_20251015` strategy requires `thinking` to be enabled or adaptive"
    rules = MODELS.get(request["model"])
    if "compact_20260112" in kinds and rules and not rules.compaction:
        yield "context_management.edits: 'compact_20260112' is not supported on this model."


def _check_summaries(request: dict[str, Any], betas: frozenset[str]) -> Iterator[str]:
    for index, message in enumerate(request["messages"]):
        for position, each in enumerate(blocks(message["content"])):
            if each["type"] != "compaction":
                continue
            here = f"messages.{index}.content.{position}"
            if COMPACTING not in betas:
                yield f"{here}: `compaction` blocks need the beta '{COMPACTING}' in `anthropic-beta`"
            yield from map(str, _SUMMARY(each, f"{here}.compaction"))


def _thinks(request: dict[str, Any]) -> bool:
    kind = (request.get("thinking") or {}).get("type")
    rules = MODELS.get(request["model"])
    always = rules is not None and "disabled" not in rules.thinking
    return kind in ("enabled", "adaptive", "between_tools") or (kind is None and always)

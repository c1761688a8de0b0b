"""Walks a request in the order in which the API caches it, and checks its cache breakpoints.

The order is tools, system, messages; a prefix of this order is what a breakpoint (`cache_control`) stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from handmesh.scripted_model.content import blocks

MAX_BREAKPOINTS = 4
MAX_BREAKPOINTS_TEXT = "A maximum of 4 blocks with cache_control may be provided. Found {found}."
TTL_ORDER_TEXT = (
    "{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note "
    "that blocks are processed in the following order: `tools`, `system`, `messages`."
)
UNCACHED = ("thinking", "redacted_thinking")


@dataclass(frozen=True)
class Segment:
    """One block of the prompt: where it is, what it holds without its marker, and its marker's time to live or None."""

    path: str
    value: dict[str, Any]
    ttl: str | None


def segments(request: dict[str, Any]) -> list[Segment]:
    """Returns the request's blocks in cache order; a marker at the request's root is on the last cacheable block."""
    found = [*_explicit(request)]
    root = request.get("cache_control")
    if root:
        for index in reversed(range(len(found))):
            if found[index].value.get("type") not in UNCACHED:
                found[index] = replace(found[index], ttl=found[index].ttl or _ttl(root))
                break
    return found


def _explicit(request: dict[str, Any]) -> Iterator[Segment]:
    for index, tool in enumerate(request.get("tools") or []):
        yield _segment(f"tools.{index}", {"type": "custom", **tool})
    for index, block in enumerate(blocks(request.get("system"))):
        yield _segment(f"system.{index}", block)
    for index, message in enumerate(request["messages"]):
        for position, block in enumerate(blocks(message["content"])):
            # A breakpoint inside a tool_result caches up to the end of the tool_result.
            nested = blocks(block.get("content")) if block["type"] == "tool_result" else []
            marker = block.get("cache_control") or next(filter(None, (b.get("cache_control") for b in nested)), None)
            value = {**block, "role": message["role"], "cache_control": marker}
            yield _segment(f"messages.{index}.content.{position}", value)


def _segment(path: str, block: dict[str, Any]) -> Segment:
    value = {key: content for key, content in block.items() if key != "cache_control"}
    return Segment(path, value, _ttl(block.get("cache_control")))


def _ttl(marker: Any) -> str | None:
    """Returns a marker's time to live; in blocks of a beta, which nobody checked, a marker may be anything."""
    if not isinstance(marker, dict):
        return None
    return "1h" if marker.get("ttl") == "1h" else "5m"


def check_breakpoints(request: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong with the markers: on empty text, an hour after five minutes, more than four."""
    marked = [segment for segment in _explicit(request) if segment.ttl is not None]
    for segment in marked:
        if segment.value.get("type") == "text" and segment.value.get("text") == "":
            yield f"{segment.path}.text: cache_control cannot be set for empty text blocks"
    for before, after in pairwise(marked):
        if before.ttl == "5m" and after.ttl == "1h":
            yield TTL_ORDER_TEXT.format(path=after.path)
    found = len(marked) + bool(request.get("cache_control"))
    if found > MAX_BREAKPOINTS:
        yield MAX_BREAKPOINTS_TEXT.format(found=found)

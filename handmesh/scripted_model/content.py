"""The shapes of content blocks, as the newest SDK's `*_param.py` types have them."""

from __future__ import annotations

from typing import Any

from handmesh.scripted_model.shapes import (
    Shape,
    anything,
    array,
    boolean,
    mapping,
    nullable,
    one_of,
    record,
    string_or,
    tagged,
    text,
)

TOOL_USE_ID = "[a-zA-Z0-9_-]+"
TOOL_NAME = "[a-zA-Z0-9_-]{1,128}"
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
SERVER_RESULTS = (
    "bash_code_execution_tool_result",
    "code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "web_fetch_tool_result",
    "web_search_tool_result",
)

CACHE_CONTROL = nullable(tagged({"ephemeral": record({"type": anything}, {"ttl": one_of("5m", "1h")})}))
CITATIONS = nullable(record({}, {"enabled": boolean}))
CALLER = tagged({
    "direct": record({"type": anything}),
    "code_execution_20250825": record({"type": anything, "tool_id": text()}),
    "code_execution_20260120": record({"type": anything, "tool_id": text()}),
})  # fmt: skip


def block(required: dict[str, Shape], optional: dict[str, Shape] | None = None, *, cached: bool = True) -> Shape:
    """Returns the shape of a block; most may carry a cache breakpoint."""
    cache = {"cache_control": CACHE_CONTROL} if cached else {}
    return record({"type": anything, **required}, {**(optional or {}), **cache})


TEXT = block({"text": text()}, {"citations": nullable(array(mapping))})
BASE64_IMAGE = record({"type": anything, "media_type": one_of(*IMAGE_TYPES), "data": text()})
URL = record({"type": anything, "url": text()})
FILE = record({"type": anything, "file_id": text()})
IMAGE = block(
    {"source": tagged({"base64": BASE64_IMAGE, "url": URL, "file": FILE})},
    {"transformations": nullable(record({}, {"oversized_image": one_of("downsize", "error")}))},
)
DOCUMENT_SOURCE = tagged({
    "base64": record({"type": anything, "media_type": one_of("application/pdf"), "data": text()}),
    "text": record({"type": anything, "media_type": one_of("text/plain"), "data": text()}),
    "content": record({"type": anything, "content": string_or(array(tagged({"text": TEXT, "image": IMAGE})))}),
    "url": URL,
    "file": FILE,
})  # fmt: skip
DOCUMENT = block(
    {"source": DOCUMENT_SOURCE},
    {"title": nullable(text(max_length=500)), "context": nullable(text()), "citations": CITATIONS},
)
SEARCH_RESULT = block(
    {"content": array(tagged({"text": TEXT})), "source": text(), "title": text()},
    {"citations": CITATIONS},
)
THINKING = block({"thinking": text(), "signature": text()}, cached=False)
REDACTED_THINKING = block({"data": text()}, cached=False)
TOOL_USE = block(
    {"id": text(TOOL_USE_ID), "name": text(TOOL_NAME), "input": mapping},
    {"caller": CALLER, "toolset_name": nullable(text())},
)
TOOL_RESULT_CONTENT = tagged({
    "text": TEXT,
    "image": IMAGE,
    "document": DOCUMENT,
    "search_result": SEARCH_RESULT,
    "tool_reference": block({"tool_name": text()}),
    "browser_state": record({"type": anything}, closed=False),
})  # fmt: skip
TOOL_RESULT = block(
    {"tool_use_id": text(TOOL_USE_ID)},
    {"content": string_or(array(TOOL_RESULT_CONTENT)), "is_error": boolean, "toolset_name": nullable(text())},
)
SERVER_TOOL_USE = block({"id": text("srvtoolu_[a-zA-Z0-9_]+"), "name": text(), "input": mapping}, {"caller": CALLER})
# Results of the API's own tools are sent back as they came, so only what ties them to their call is looked at.
SERVER_RESULT = record({"type": anything, "tool_use_id": text(), "content": anything}, closed=False)

BLOCK = tagged({
    "text": TEXT,
    "image": IMAGE,
    "document": DOCUMENT,
    "search_result": SEARCH_RESULT,
    "thinking": THINKING,
    "redacted_thinking": REDACTED_THINKING,
    "tool_use": TOOL_USE,
    "tool_result": TOOL_RESULT,
    "server_tool_use": SERVER_TOOL_USE,
    "container_upload": block({"file_id": text()}),
    **dict.fromkeys(SERVER_RESULTS, SERVER_RESULT),
})  # fmt: skip
MESSAGE = record({"role": one_of("user", "assistant", "system"), "content": string_or(array(BLOCK))})


def blocks(content: Any) -> list[dict[str, Any]]:
    """Returns content as a list of blocks: a string is one text block, an empty string is none."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or [])


def texts_of(content: Any) -> list[str]:
    """Returns the texts of the text blocks in content."""
    return [block["text"] for block in blocks(content) if block["type"] == "text"]

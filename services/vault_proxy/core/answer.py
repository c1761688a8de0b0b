"""What goes into a tool and what it said, as the model is told."""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from services.kit.errors import Invalid
from services.vault_proxy.core.scrub import Scrubber

INPUT_BYTES = 1024 * 1024
OUTPUT_CHARACTERS = 100_000
CONTENT_BYTES = 4 * 1024 * 1024  # of images and documents; what is more is left out, and said
PROGRESS_CHARACTERS = 500  # of one message of progress
NO_OUTPUT = "(no output)"
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENT_TYPES = frozenset({"application/pdf"})

Block = dict[str, Any]


class Outcome(enum.Enum):
    """How an execution ended: names of `handmesh.sandbox.v1.ToolOutcome`."""

    OK = "OK"
    TOOL_ERROR = "TOOL_ERROR"
    TIMEOUT = "TIMEOUT"
    INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True)
class Answer:
    """What a tool said. `content_json` is an array of the Messages API's blocks, or empty when the text says all."""

    output: str
    outcome: Outcome = Outcome.OK
    content_json: str = ""
    truncated: bool = False


@dataclass(frozen=True)
class Progress:
    """What a server says of a call that runs: how much is done, of how much if it knows, and in words."""

    done: float
    total: float | None = None
    message: str | None = None

    def line(self, scrubber: Scrubber) -> str:
        """Returns it as a line for people, without the credential."""
        count = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        words = scrubber.value(self.message[:PROGRESS_CHARACTERS]) if self.message else ""
        return f"[{count}] {words}".rstrip() + "\n"


def parse_input(name: str, text: str) -> dict[str, Any]:
    """Reads a tool's input, empty meaning `{}`. Raises Invalid (`TOOL_INPUT_INVALID`, metadata `name`)."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    if len(text.encode("utf-8", "surrogatepass")) > INPUT_BYTES:
        raise Invalid("TOOL_INPUT_INVALID", f"the input is over {INPUT_BYTES} bytes", name=name)
    try:
        value = json.loads(text or "{}", parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be sent on
    except (ValueError, RecursionError):
        raise Invalid("TOOL_INPUT_INVALID", "the input is no JSON", name=name) from None
    if not isinstance(value, dict):
        raise Invalid("TOOL_INPUT_INVALID", "the input is no JSON object", name=name)
    return value


def read_answer(raw: Mapping[str, Any], scrubber: Scrubber) -> Answer:
    """Turns a server's `CallToolResult`, as MCP's JSON, into what the model is told; without the credential."""
    clean = scrubber.value(dict(raw))
    content = clean.get("content")
    blocks = [_block(each) for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    rich = any(block["type"] != "text" for block in blocks)
    structured = clean.get("structuredContent")
    if structured is not None and not _is_said(structured, blocks):
        blocks.append(_text(json.dumps(structured, ensure_ascii=False)))
        rich = True
    output, truncated = cut("\n".join(block["text"] for block in blocks if block["type"] == "text" and block["text"]))
    kept = _fitting(blocks, output, truncated) if rich else []
    return Answer(
        output=output or NO_OUTPUT,
        outcome=Outcome.TOOL_ERROR if clean.get("isError") is True else Outcome.OK,
        content_json=json.dumps(kept, ensure_ascii=False) if kept else "",
        truncated=truncated,
    )


def cut(text: str, limit: int = OUTPUT_CHARACTERS) -> tuple[str, bool]:
    """Returns the text, its middle cut out and the cut marked when it is over the limit; and whether it was."""
    if len(text) <= limit:
        return text, False
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut out ...]\n{text[-half:]}", True


def _fitting(blocks: list[Block], output: str, truncated: bool) -> list[Block]:
    """Returns the blocks that go to the model: those with text as cut, and other content as far as it fits."""
    kept: list[Block] = [_text(output)] if truncated else []
    room = CONTENT_BYTES
    for block in blocks:
        if block["type"] == "text":
            if block["text"] and not truncated:  # the model's API refuses empty text
                kept.append(block)
            continue
        size = len(block["source"]["data"])
        if size > room:
            kept.append(_text(f"[{block['type']} left out: {size} bytes do not fit]"))
            continue
        room -= size
        kept.append(block)
    return kept


def _block(content: Block) -> Block:
    match content:
        case {"type": "text", "text": str(text)}:
            return _text(text)
        case {"type": "image", "data": str(data), "mimeType": str(media_type)}:
            return _binary("image", media_type.lower(), data)
        case {"type": "resource", "resource": {"text": str(text)}}:
            return _text(text)
        case {"type": "resource", "resource": {"blob": str(data), "mimeType": str(media_type)}}:
            media_type = media_type.lower()
            return _binary("document" if media_type in DOCUMENT_TYPES else "image", media_type, data)
        case {"type": "resource_link", "uri": str(uri)}:
            return _text(f"[resource {content.get('name') or ''}: {uri}]")
        case _:
            return _text(f"[{str(content.get('type', 'content'))[:40]} left out: not for the model]")


def _binary(kind: str, media_type: str, data: str) -> Block:
    fits = media_type in (DOCUMENT_TYPES if kind == "document" else IMAGE_TYPES)
    try:
        valid = fits and bool(base64.b64decode(data, validate=True))
    except ValueError:
        valid = False
    if not valid:
        return _text(f"[{kind} of type {media_type[:60]} left out: not for the model]")
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _is_said(structured: Any, blocks: list[Block]) -> bool:
    """Says whether a text block is this very value as JSON, as servers do for clients that read text only."""
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if isinstance(structured, dict) and structured.keys() == {"result"} and isinstance(structured["result"], str):
        return structured["result"] in texts  # how Python servers wrap plain text
    for text in texts:
        try:
            if json.loads(text) == structured:
                return True
        except (ValueError, RecursionError):
            continue
    return False

"""What a tool may answer, and what becomes of it on the wire."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from handmesh.sandbox.v1 import tool_pb2

TEXT_BYTES = 100 << 10
"""Most of a result's text: the middle of a longer one is left out. The whole is in the output, if it was written."""


class ToolError(Exception):
    """The tool could not do what it was asked. The text is shown to the model."""


@dataclass(frozen=True)
class Image:
    """A picture for the model: PNG, JPEG, GIF or WebP, at most 5 MiB."""

    data: bytes
    media_type: str = "image/png"


@dataclass(frozen=True)
class Result:
    """What a tool says, in full. `outcome` is a name of `ToolOutcome` without its prefix."""

    text: str = ""
    outcome: str = "OK"
    images: Sequence[Image] = ()
    exit_code: int | None = None


Answer = str | Image | Result | Sequence["str | Image"] | None


def result_of(answer: Answer) -> Result:
    """Makes a result of whatever a tool has returned."""
    match answer:
        case None:
            return Result()
        case Result():
            return answer
        case str():
            return Result(answer)
        case Image():
            return Result(images=(answer,))
    texts = [part for part in answer if isinstance(part, str)]
    return Result("\n".join(texts), images=[part for part in answer if isinstance(part, Image)])


def message_of(result: Result) -> tool_pb2.ToolResult:
    """Makes the message of a result."""
    text, cut = _cut(result.text)
    if not text:
        text = f"({len(result.images)} image{'s' if len(result.images) > 1 else ''})" if result.images else ""
    return tool_pb2.ToolResult(
        output=text or "(no output)",
        outcome=tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{result.outcome}"),
        content_json=json.dumps([*_text_block(result.text), *map(_image_block, result.images)])
        if result.images
        else "",
        exit_code=result.exit_code,
        truncated=cut,
    )


def _text_block(text: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": _cut(text)[0]}] if text.strip() else []


def _image_block(image: Image) -> dict[str, object]:
    data = base64.b64encode(image.data).decode("ascii")
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}


def _cut(text: str) -> tuple[str, bool]:
    data = text.encode("utf-8", "replace")
    if len(data) <= TEXT_BYTES:
        return data.decode(), False
    head, tail = data[: TEXT_BYTES // 2].decode("utf-8", "ignore"), data[-TEXT_BYTES // 2 :].decode("utf-8", "ignore")
    left_out = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n\n[... {left_out} bytes left out ...]\n\n{tail}", True

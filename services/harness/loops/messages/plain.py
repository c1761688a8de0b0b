"""Shows content in the plainest blocks that there are. Pure.

The API has refused a request, and does not say in a way that a program may rely on which block it was: so everything
up to there is shown as text and tool calls, which it always takes. In short, when it was too long: of every text only
its head and tail are left. The log keeps all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.harness.blocks import text_block

SHORT_CHARACTERS = 2_000  # of a text in short
_CALL = ("type", "id", "name", "input")

Block = dict[str, Any]


def told(blocks: Sequence[Block], short: bool) -> list[Block]:
    """Returns a user's or a tool's blocks as text; of what is none, the model is told that it was there."""
    texts = [
        str(block["text"]) if block.get("type") == "text" else f"[{str(block.get('type'))[:40]} left out: not accepted]"
        for block in blocks
    ]
    return [text_block(shortened(text) if short else text) for text in texts]


def reply(blocks: Sequence[Block], short: bool) -> list[Block]:
    """Returns a reply's text and calls; whatever else it held is left out."""
    kept: list[Block] = []
    for block in blocks:
        if block.get("type") == "text":
            text = str(block["text"])
            kept.append(text_block(shortened(text) if short else text))
        elif block.get("type") == "tool_use":
            call = {key: block[key] for key in _CALL}
            kept.append({**call, "input": _shortened(call["input"])} if short else call)
    return kept


def shortened(text: str) -> str:
    """Keeps the head and the tail of a text that is long."""
    if len(text) <= SHORT_CHARACTERS:
        return text
    half = SHORT_CHARACTERS // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out here]\n{text[-half:]}"


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, list):
        return [_shortened(each) for each in value]
    if isinstance(value, dict):
        return {key: _shortened(each) for key, each in value.items()}
    return value

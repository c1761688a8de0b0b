"""Blocks as the API takes them: without empty text, half characters, and thinking at the end. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from services.harness.blocks import blank, whole
from services.harness.loops.messages.told import Block
from services.harness.loops.messages.trimming import THINKING


class Kept(list[Block]):
    """A reply's blocks, and the text of all of them as the model wrote it."""

    def __init__(self, blocks: Sequence[Block], text: str) -> None:
        super().__init__(blocks)
        self.text = text


def sendable(content: str) -> list[Block]:
    """Returns a reply's blocks as the API takes them back: those that it gave, but for what it would refuse."""
    blocks: list[Block] = json.loads(content)
    kept = [block for block in blocks if not blank(block)]
    while kept and kept[-1].get("type") in THINKING:
        kept.pop()
    if len(kept) == len(blocks) and ("\\u" not in content.lower() or _encodes(blocks)):
        return Kept(blocks, content)
    return [block if block.get("type") in THINKING else whole(block) for block in kept]


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True

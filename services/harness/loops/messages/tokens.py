"""How many tokens something takes before the API has counted it: an estimate, rather too many than too few. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from services.harness.core import CallFinished, Compacted, DoorRefused, Message, Replied, Said

BYTES_PER_TOKEN = 3
TOKENS_PER_PICTURE = 1_600  # an image as big as the API takes it
TOKENS_OF_NEWS = 100  # of a hand that comes or goes
PICTURES = ("image", "document")


def of_text(text: str) -> int:
    """Estimates a text."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def of_blocks(content: str) -> tuple[int, int]:
    """Estimates content, JSON text of blocks: its text, and its images and documents."""
    if '"image' not in content and '"document' not in content:
        return of_text(content), 0
    blocks: Sequence[Any] = json.loads(content)
    pictures = [block for block in blocks if isinstance(block, dict) and block.get("type") in PICTURES]
    rest = [block for block in blocks if block not in pictures]
    return of_text(json.dumps(rest, ensure_ascii=False)), TOKENS_PER_PICTURE * len(pictures)


def of_facts(facts: Iterable[Said]) -> int:
    """Estimates what was said."""
    return sum(map(_of_fact, facts))


def _of_fact(fact: Said) -> int:
    match fact:
        case CallFinished(result=result):
            return of_text(result.output) + sum(of_blocks(result.content) if result.content else (0, 0))
        case DoorRefused(target=target, message=message):
            return of_text(target + message)
        case Message(content=content):
            return sum(of_blocks(content))
        case Replied() | Compacted():
            return of_text(fact.content)
        case _:
            return TOKENS_OF_NEWS

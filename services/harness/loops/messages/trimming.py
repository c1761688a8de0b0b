"""Which old parts of a conversation the model is told no more: tool results, thinking, images. Pure.

It follows from the log: a reply's usage says how big its request was. When that is over the policy's limit, everything
of a kind but the newest parts is cut at once, and stays cut. Between two such steps requests begin alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.harness.core import CallFinished, Message, Replied, Said
from services.harness.loops.messages import tokens
from services.harness.loops.messages.policy import Trim

THINKING = frozenset({"thinking", "redacted_thinking"})
Parts = tuple[tuple[int, int], ...]  # position and tokens, oldest first


@dataclass(frozen=True, slots=True)
class Tally:
    """By kind: up to which position parts are cut, and what may be cut next."""

    cuts: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Parts] = field(default_factory=dict)

    def is_cut(self, kind: str, position: int) -> bool:
        """Tells whether a part is told no more."""
        return position <= self.cuts.get(kind, 0)


NOTHING = Tally()


def tallied(before: Tally, facts: Iterable[object], trims: Mapping[str, Trim]) -> Tally:
    """Goes on with facts in the order of cause."""
    if not trims:
        return before
    cuts, parts = dict(before.cuts), dict(before.parts)
    for fact in facts:
        if not isinstance(fact, CallFinished | Message | Replied):
            continue
        for kind, size in _parts_of(fact):
            if size and kind in trims:
                parts[kind] = (*parts.get(kind, ()), (fact.position, size))
        if isinstance(fact, Replied):
            _step(fact.usage.prompt + fact.usage.output, trims, cuts, parts)
    return Tally(cuts, parts)


def _step(size: int, trims: Mapping[str, Trim], cuts: dict[str, int], parts: dict[str, Parts]) -> None:
    for kind, trim in trims.items():
        old = parts.get(kind, ())[: -trim.keep]
        if size > trim.above and old and sum(size for _, size in old) >= trim.at_least:
            cuts[kind] = old[-1][0]
            parts[kind] = parts[kind][-trim.keep :]


def _parts_of(fact: Said) -> list[tuple[str, int]]:
    match fact:
        case CallFinished(result=result):
            text, pictures = tokens.of_blocks(result.content) if result.content else (tokens.of_text(result.output), 0)
            return [("tool_results", text + pictures), ("images", pictures)]
        case Message(content=content):
            return [("images", tokens.of_blocks(content)[1])]
        case Replied(content=content) if "thinking" in content:
            blocks = [block for block in json.loads(content) if block.get("type") in THINKING]
            return [("thinking", tokens.of_text(json.dumps(blocks)))] if blocks else []
        case _:
            return []


def cleared_result(characters: int, position: int, fetchable: bool) -> str:
    """Says what stood in a result's place."""
    return f"[This result, {characters} characters, is left out to save room.{_where(position, fetchable)}]"


def cleared_image(position: int, fetchable: bool) -> str:
    """Says what stood in an image's place."""
    return f"[An image is left out here to save room.{_where(position, fetchable)}]"


def cleared_thinking(position: int, fetchable: bool) -> str:
    """Says that thinking of a reply is not there any more."""
    return f"[Your thinking before that is left out to save room.{_where(position, fetchable)}]"


def _where(position: int, fetchable: bool) -> str:
    fetch = ": the tool session_events can fetch it" if fetchable else ""
    return f" It is at position {position} of the session's log{fetch}."

"""Tells Claude Code what was said in a session: a log's conversation as messages of the Messages API. Pure.

It is made anew from the log each time that Claude Code starts, so the log is all there is: no transcript is kept. A
reply goes back as the model gave it, behind all that it had read. Between two replies stand the results of the first
one's calls, then what doors of the session's hands have refused and which hands came and went, then what was said, each
in order. A turn that the model refused to answer is left out as a whole, and a summary stands for what it is of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from services.harness import images
from services.harness.blocks import REFERENCE, Block, blank, text_block, whole
from services.harness.core import (
    Attached,
    CallFinished,
    Compacted,
    Detached,
    DoorRefused,
    HandNews,
    Message,
    Replied,
    Said,
    ToolResult,
    Transferred,
)
from services.harness.turn import refusals
from services.harness.turn.state import State

Blobs = Mapping[str, Sequence[Block]]
NO_BLOBS: Blobs = MappingProxyType({})
REFUSED_TURN = "[A turn is left out here: the model refused to answer it.]"
LEFT_OUT = "[an image of before is left out here: a request holds only the newest ones]"
_THINKING = frozenset({"thinking", "redacted_thinking"})


@dataclass(frozen=True, slots=True)
class Told:
    """One message. `reply` is the fact that it was, for a message of the model's."""

    role: str
    content: list[Block]
    reply: Replied | None = None

    @property
    def has_results(self) -> bool:
        """Tells whether it answers calls."""
        return any(block.get("type") == "tool_result" for block in self.content)


def said(state: State) -> list[Said]:
    """Lists what was said, in the order of cause: a reply stands behind what it had read.

    A summary comes first, and what it stands for is left out.
    """
    start = (state.compacted.end, 0) if state.compacted else (0, 0)
    facts: list[Said] = []
    link = state.conversation
    while link is not None:
        if not isinstance(link.fact, Compacted) and _cause(link.fact) >= start:
            facts.append(link.fact)
        link = link.before
    summary: list[Said] = [state.compacted] if state.compacted else []
    return summary + sorted(facts, key=_cause)


def _cause(fact: Said) -> tuple[int, int]:
    return (fact.read, 1) if isinstance(fact, Replied) else (fact.position, 0)


def only_results_since(state: State) -> bool:
    """Tells whether nothing was said since the last reply but what its calls came to."""
    link = state.conversation
    while link is not None and isinstance(link.fact, CallFinished):
        link = link.before
    reply = state.reply
    if link is None or reply is None or link.fact is not reply:
        return False
    before = link.before  # what landed while it was written lies before it, and was not read
    return before is None or before.fact.position <= reply.read


def conversation(state: State, blobs: Blobs = NO_BLOBS) -> list[Told]:
    """Returns all that Claude Code is told. `blobs` holds the blocks that take each reference's place, by its blob."""
    telling = _Telling(blobs, {key: _whole_blocks(text, blobs) for key, text in state.renditions.items()})
    for fact in said(state):
        telling.take(fact)
    telling.tell()
    _within_limits(telling.messages)
    return telling.messages


class _Telling:
    def __init__(self, blobs: Blobs, renditions: dict[str, list[Block]]) -> None:
        self.messages: list[Told] = []
        self._blobs, self._renditions = blobs, renditions
        self._asked: tuple[str, ...] = ()  # ids of the last reply's calls
        self._results: dict[str, ToolResult] = {}
        self._refusals: list[DoorRefused | HandNews] = []
        self._texts: list[Block] = []
        self._border = 0  # messages of turns that have ended

    def take(self, fact: Said) -> None:
        match fact:
            case Message(content=content) | Compacted(content=content):
                self._texts += _fit(content, self._blobs, self._renditions) or [text_block("(empty message)")]
            case CallFinished(id=id, result=result):
                self._results[id] = result
            case DoorRefused() | Attached() | Transferred() | Detached():
                self._refusals.append(fact)
            case Replied():
                self.tell()
                self._replied(fact)

    def tell(self) -> None:
        results = [self._result(id) for id in self._asked]
        refused = whole(refusals.told(self._refusals)) if results or self._texts else []
        content = results + refused + self._texts
        self._asked, self._results, self._texts = (), {}, []
        if refused:
            self._refusals = []
        if content:
            self.messages.append(Told("user", content))

    def _replied(self, reply: Replied) -> None:
        if reply.stop_reason == "refusal":
            del self.messages[self._border :]
            self._texts = [text_block(REFUSED_TURN)]
            return
        self._asked = tuple(call.id for call in reply.calls)
        if blocks := _sendable(reply.content):
            self.messages.append(Told("assistant", blocks, reply))
        if not reply.calls:
            self._border = len(self.messages)

    def _result(self, id: str) -> Block:
        result = self._results.get(id) or ToolResult("No result was recorded for this call.", "UNKNOWN")
        told: Block = {"type": "tool_result", "tool_use_id": id}
        told["content"] = _shown(result, self._blobs, self._renditions)
        return {**told, "is_error": True} if result.outcome != "OK" else told


def result_blocks(result: ToolResult, blobs: Blobs, renditions: Mapping[str, str]) -> list[Block]:
    """Returns what the model is shown of a result: at least one block."""
    return _shown(result, blobs, {key: _whole_blocks(text, blobs) for key, text in renditions.items()})


def _shown(result: ToolResult, blobs: Blobs, renditions: dict[str, list[Block]]) -> list[Block]:
    shown = _fit(result.content, blobs, renditions) if result.content else []
    if not any(block.get("type") == "text" for block in shown):
        shown.insert(0, text_block(whole(result.output) if result.output.strip() else "(no output)"))
    return shown


def _fit(content: str, blobs: Blobs, renditions: dict[str, list[Block]]) -> list[Block]:
    """Returns a content's blocks as the API takes them."""
    kept = (whole(block) for block in _whole_blocks(content, blobs) if not blank(block))
    return [fit for block in kept for fit in images.fitted(block, renditions)]


def _whole_blocks(content: str, blobs: Blobs) -> list[Block]:
    found: list[Block] = []
    for block in json.loads(content):
        if block.get("type") == REFERENCE:
            name = str(block.get("blob_id"))
            found += blobs.get(name) or [text_block(f"[blob {name}]")]
        else:
            found.append(block)
    return found


def _sendable(content: str) -> list[Block]:
    """Returns a reply's blocks as the API takes them back: those that it gave, but for what it would refuse."""
    kept = [block for block in json.loads(content) if not blank(block)]
    while kept and kept[-1].get("type") in _THINKING:
        kept.pop()
    return [block if block.get("type") in _THINKING else whole(block) for block in kept]


def _within_limits(messages: Sequence[Told]) -> None:
    """Leaves out the oldest images when there are more than a request may hold."""
    found: list[tuple[list[Block], int]] = []
    for message in messages:
        lists = [message.content] + [it["content"] for it in message.content if it.get("type") == "tool_result"]
        for blocks in lists if message.role == "user" else ():
            places = (place for place, it in enumerate(blocks) if it.get("type") in ("image", "document"))
            found += [(blocks, place) for place in places if isinstance(blocks[place].get("source"), dict)]
    sizes = [len(str(blocks[place]["source"].get("data", ""))) for blocks, place in found]
    for blocks, place in found[: images.dropped(sizes)]:
        blocks[place] = text_block(LEFT_OUT)


def can_give(blocks: Sequence[Block], is_error: bool) -> bool:
    """Tells whether a result reaches the model as it is through MCP and Claude Code, which knows fewer kinds."""
    kinds = [block.get("type") for block in blocks]
    if is_error:
        return kinds == ["text"]
    return all(
        kind == "text" or (kind == "image" and _is_base64(block)) for kind, block in zip(kinds, blocks, strict=True)
    )


def _is_base64(block: Block) -> bool:
    return isinstance(block.get("source"), dict) and block["source"].get("type") == "base64"
